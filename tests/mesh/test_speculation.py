"""Speculation with the real engine, real pages and real gRPC: the same tokens and logprobs in fewer steps."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from decode_svc.speculation.draft_length import Candidate, DraftLengths
from engine.builtin.model import tiny
from mesh.messages.jobs import Sampling

pytestmark = pytest.mark.mesh

GREEDY = Sampling(max_tokens=40, top_logprobs=2)
SAMPLED = replace(GREEDY, temperature=0.8, top_p=0.95, top_k=50, seed=7)


class Steady(DraftLengths):
    """Asks for the most drafts in every step, whatever a step costs on this machine."""

    def __init__(self, longest: int) -> None:
        super().__init__(longest=longest, prior=1.0)

    def lengths(self, candidates: Sequence[Candidate]) -> list[int]:
        return [min(one.most, self._longest) for one in candidates]


def prompt(seed, tokens):
    return tuple((seed * 7919 + slot * 31 + slot // 7) % 250 for slot in range(tokens))


PROMPTS = (prompt(1, 40), prompt(2, 61), prompt(1, 40))
REPEATS = (5, 6, 7, 8, 9) * 12


async def answers(mesh, samplings, prompts=PROMPTS):
    """Answers to several requests in one batch; the last request finds the first one's pages in the prefix cache."""
    asked = [mesh.ask(one, sampling=sampling) for one in prompts for sampling in samplings]
    await asyncio.gather(*(one.task for one in asked))
    return asked


def said(asked):
    """Everything that a client may see of each token, bit for bit."""
    return [[(t.token, t.position, t.logprob, t.top_ids, t.top_logprobs, t.end) for t in one.tokens] for one in asked]


@pytest.mark.parametrize("seed", [0, 1], ids=["the model as its own draft", "a random draft"])
async def test_tokens_and_logprobs_are_the_same_with_and_without_a_draft(real_mesh, tmp_path, seed):
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        plain = await mesh.add("decode", speculation="off")
        expected = said(await answers(mesh, (GREEDY, SAMPLED)))
        assert plain.counts()["drafted"] == 0
        stop = replace(GREEDY, stop_ids=(expected[0][20][0],))
        late = replace(stop, min_tokens=25)
        ends = said(await answers(mesh, (stop, late)))
        assert len(ends[0]) <= 21 < 25 <= len(ends[1])
    draft = tiny(tmp_path / "draft", "llama3", dtype="bf16", context=8192, seed=seed)
    async with real_mesh() as mesh:
        await mesh.add("prefill", draft=draft)
        decode = await mesh.add("decode", draft=draft, pace=Steady(4))
        asked = await answers(mesh, (GREEDY, SAMPLED))
        counts = decode.counts()
        assert said(asked) == expected
        assert said(await answers(mesh, (stop, late))) == ends
        assert counts["drafted"] > 0
        if seed == 0:  # the draft model is the model itself and uses the same noise
            assert counts["accepted"] == counts["drafted"]
            assert asked[0].handle.timings.decode_steps <= -(-39 // 5) + 1
        else:
            assert counts["accepted"] < counts["drafted"]


async def test_prompt_lookup_finds_what_repeats_and_changes_nothing(real_mesh):
    prompts = (REPEATS, (1, 2, 3) * 11)
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        await mesh.add("decode", speculation="off")
        expected = said(await answers(mesh, (GREEDY, SAMPLED), prompts))
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        decode = await mesh.add("decode", speculation="lookup", pace=Steady(4))
        assert said(await answers(mesh, (GREEDY, SAMPLED), prompts)) == expected
        assert decode.counts()["drafted"] > 0


async def test_a_worker_without_the_draft_is_refused_with_the_reason(real_mesh, tmp_path, caplog):
    draft = tiny(tmp_path / "draft", "llama3", dtype="bf16", context=8192, seed=1)
    async with real_mesh() as mesh:
        await mesh.add("prefill", draft=draft)
        await mesh.add("decode")
        asked = mesh.ask(prompt(1, 20))
        await mesh.until(lambda: "draft" in caplog.text)
        assert "gets no requests: it fits no prefill worker" in caplog.text and "`draft`" in caplog.text
        asked.handle.cancel()
