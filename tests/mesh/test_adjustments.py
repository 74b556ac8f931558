"""Penalties, biases and bans in real meshes: the same tokens and logprobs on every path that a request can take."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.builtin.model import tiny
from gateway.core.interface import ChoiceRequest
from gateway.routing.router import Local
from mesh.messages.jobs import Adjustments, Sampling, TokenBias, TokenSequence
from tests.mesh.test_speculation import Steady, prompt, said

pytestmark = pytest.mark.mesh

RealMeshes = Callable[..., AbstractAsyncContextManager[Any]]
ADJUSTED = Adjustments(
    biases=(TokenBias(7, 1.5), TokenBias(8, -3.0)),
    repetition_penalty=1.25,
    frequency_penalty=0.6,
    presence_penalty=0.3,
    suppressed_ids=(20, 21),
    bad_words=(TokenSequence((30,)), TokenSequence((40, 41))),
    no_repeat_ngram=3,
)
GREEDY = Sampling(max_tokens=30, top_logprobs=2, adjustments=ADJUSTED)
SAMPLED = replace(GREEDY, temperature=0.9, top_p=0.95, seed=7)
PLAIN = replace(GREEDY, adjustments=None)
SAMPLINGS = (GREEDY, SAMPLED, PLAIN)
PROMPT = prompt(3, 50)


async def asked(mesh: Any, samplings: tuple[Sampling, ...] = SAMPLINGS) -> list[Any]:
    requests = [mesh.ask(PROMPT, sampling=sampling) for sampling in samplings]
    await asyncio.gather(*(one.task for one in requests))
    return said(requests)


async def test_every_path_draws_the_same_tokens_with_the_same_logprobs(real_mesh: RealMeshes, tmp_path: Path) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        await mesh.add("decode", speculation="off")
        expected = await asked(mesh)
        assert [await asked(mesh, (one,)) for one in SAMPLINGS] == [[one] for one in expected]  # one by one
        greedy = [token for token, *_ in expected[0]]
        assert greedy != [token for token, *_ in expected[2]], "negative control: the adjustments do matter"
        assert not {20, 21, 30} & set(greedy)
        text = [*PROMPT, *greedy]
        grams = [tuple(text[first : first + 3]) for first in range(len(PROMPT) - 2, len(text) - 2)]
        assert len(set(grams)) == len(grams)
        for emitted in (1, 13):  # as after a fail-over, or on another gateway
            for sampling, whole in zip(SAMPLINGS, expected, strict=True):
                known = tuple(token for token, *_ in whole[:emitted])
                stream = mesh.gateway.submit(ChoiceRequest("r", "tiny", PROMPT, known, sampling))
                rest = [(t.token, t.position, t.logprob) async for t in stream.events()]
                assert rest == [token[:3] for token in whole[emitted:]]
    async with real_mesh(local=Local.ALWAYS) as mesh:
        await mesh.add("decode", speculation="off")
        assert await asked(mesh) == expected
    draft = tiny(tmp_path / "draft", "llama3", dtype="bf16", context=8192, seed=0)
    async with real_mesh() as mesh:
        await mesh.add("prefill", draft=draft)
        decode = await mesh.add("decode", draft=draft, pace=Steady(4))
        assert await asked(mesh) == expected
        counts = decode.counts()
        assert counts["drafted"] > counts["accepted"] > 0
    async with real_mesh(local=Local.ALWAYS) as mesh:
        decode = await mesh.add("decode", speculation="lookup", pace=Steady(4))
        repeating = tuple(range(5, 12)) * 6
        loose = replace(GREEDY, adjustments=Adjustments(repetition_penalty=0.5, frequency_penalty=-1.0))
        first = mesh.ask(repeating, sampling=loose)
        await first.task
        assert decode.counts()["drafted"] > 0
    async with real_mesh(local=Local.ALWAYS) as mesh:
        await mesh.add("decode", speculation="off")
        again = mesh.ask(repeating, sampling=loose)
        await again.task
        assert said([again]) == said([first])


async def test_a_request_whose_decode_worker_dies_continues_with_its_penalties(real_mesh: RealMeshes) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        workers = {worker.attachments.incarnation: worker for worker in [await mesh.add("decode") for _ in range(2)]}
        whole = await asked(mesh, (SAMPLED,))
        long = replace(SAMPLED, max_tokens=300)
        request = mesh.ask(PROMPT, sampling=long)
        await mesh.until(lambda: len(request.tokens) > 8)
        (held,) = mesh.gateway.sequencer.requests.values()
        await mesh.end(workers[held.decode])
        await request.task
        assert request.handle.timings.attempts > 1
        undisturbed = mesh.ask(PROMPT, sampling=long)
        await undisturbed.task
        assert said([request]) == said([undisturbed])
        assert said([request])[0][:29] == whole[0][:29]
