"""Answers that follow a grammar, with the real engine, real pages and real gRPC: the same tokens whatever happens."""

import asyncio
import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from decode_svc.speculation.draft_length import DraftLengths
from engine.builtin.tokenizer import END
from gateway.routing.router import Local
from gateway.structured.forms import lark
from gateway.structured.schema import json_grammar
from mesh.errors import InvalidRequest
from mesh.messages.jobs import End, Sampling

pytestmark = pytest.mark.mesh

SCHEMA = {
    "type": "object",
    "properties": {
        "identification_number": {"type": "integer", "minimum": 0, "maximum": 99999},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
        "name": {"type": "string", "pattern": "^[a-z]{3,9}$"},
    },
    "required": ["identification_number", "colours", "name"],
    "additionalProperties": False,
}
GRAMMAR = lark("start: " + json_grammar(SCHEMA, "schema"))
GREEDY = Sampling(max_tokens=300, stop_ids=(END,), grammar=GRAMMAR, top_logprobs=2)
SAMPLED = replace(GREEDY, temperature=1.0, seed=11)
PROMPTS = tuple(tuple((seed * 7919 + slot * 31) % 250 for slot in range(20 + seed)) for seed in range(3))


class Eager(DraftLengths):
    """Drafts in every step, whatever a step costs on this machine."""

    def lengths(self, candidates: Any) -> list[int]:
        return [min(one.most, 4) for one in candidates]


class Slow(ThreadPoolExecutor):
    """Gives every mask back long after its step."""

    def submit(self, work: Any, /, *given: Any, **named: Any) -> "Future[Any]":
        def later() -> Any:
            event.wait(0.05)
            return work(*given, **named)

        import threading

        event = threading.Event()
        return super().submit(later)


def text_of(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode()


def check(asked: Any) -> None:
    assert asked.tokens[-1].end is End.STOP and asked.text[-1] == END
    jsonschema.validate(json.loads(text_of(asked.text)), SCHEMA)


async def answers(mesh: Any, samplings: Any = (GREEDY, SAMPLED)) -> list[Any]:
    """Answers to several requests in one batch, one of them free."""
    free = mesh.ask(PROMPTS[0], sampling=Sampling(max_tokens=60))
    asked = [mesh.ask(prompt, sampling=sampling) for prompt in PROMPTS for sampling in samplings]
    await asyncio.gather(free.task, *(one.task for one in asked))
    assert len(free.text) == 60
    return asked


def seen(asked: list[Any]) -> list[Any]:
    return [[(t.token, t.position, t.logprob, t.top_ids, t.top_logprobs, t.end) for t in one.tokens] for one in asked]


async def test_answers_follow_their_schema_and_are_the_same_in_every_arrangement(real_mesh: Any) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        plain = await mesh.add("decode", speculation="off")
        asked = await answers(mesh)
        for one in asked:
            check(one)
        expected = seen(asked)
        before = plain.counts()
        one = mesh.ask(PROMPTS[0], sampling=GREEDY)
        await one.task
        assert plain.counts()["accepted"] > before["accepted"]  # forced tokens
        assert plain.counts()["steps"] - before["steps"] < len(one.text)
        await mesh.end(plain)
        lookup = await mesh.add("decode", speculation="lookup", pace=Eager(longest=4, prior=1.0))
        assert seen(await answers(mesh)) == expected
        await mesh.end(lookup)
    async with real_mesh(local=Local.ALWAYS) as mesh:
        await mesh.add("decode", speculation="off", chunk_tokens=16)
        alone = []
        for prompt in PROMPTS:  # one request in the batch
            for sampling in (GREEDY, SAMPLED):
                alone.append(mesh.ask(prompt, sampling=sampling))
                await alone[-1].task
        assert seen(alone) == expected


async def test_a_decode_worker_that_dies_in_mid_json_changes_no_byte(real_mesh: Any) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        first = await mesh.add("decode", speculation="off")
        expected = seen(await answers(mesh))
        asked = [mesh.ask(prompt, sampling=sampling) for prompt in PROMPTS for sampling in (GREEDY, SAMPLED)]
        await mesh.until(lambda: all(12 < len(one.text) for one in asked))
        await mesh.end(first)
        await mesh.add("decode", speculation="off")
        await asyncio.gather(*(one.task for one in asked))
        assert seen(asked) == expected


async def test_a_slow_mask_delays_its_own_request_and_no_other(real_mesh: Any) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        worker = await mesh.add("decode", speculation="off")
        expected = seen(await answers(mesh, (GREEDY,)))
        masker = worker._intake._masker
        masker.executor = Slow(4)
        slow = mesh.ask(PROMPTS[0], sampling=GREEDY)
        await mesh.until(lambda: len(slow.text) > 2)
        free = mesh.ask(PROMPTS[1], sampling=Sampling(max_tokens=50))
        await free.task
        assert len(slow.text) < len(free.text)
        await slow.task
        assert seen([slow]) == expected[:1]


async def test_tokens_that_do_not_follow_the_grammar_end_with_an_error_of_their_field(real_mesh: Any) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        await mesh.add("decode")
        wrong = replace(GREEDY, grammar=lark('start: "a" | nothing'))
        asked = mesh.ask(PROMPTS[0], sampling=wrong)
        with pytest.raises(InvalidRequest, match="nothing") as error:
            await asked.task
        assert error.value.field == "structured_outputs"
        again = mesh.ask(PROMPTS[0], sampling=GREEDY)
        await again.task
        check(again)


async def test_a_worker_without_masks_refuses_a_grammar_by_name(real_mesh: Any) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        worker = await mesh.add("decode")
        worker._intake._masker = None
        asked = mesh.ask(PROMPTS[0], sampling=GREEDY)
        with pytest.raises(InvalidRequest, match="GPU"):
            await asked.task
