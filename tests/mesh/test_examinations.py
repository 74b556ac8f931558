"""Examinations in a real mesh: prefill workers answer alone, bits are those of decode, and any worker may die.

The mesh has every shape that a deployment may have: with and without prefill workers, and with `local = "always"`."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.interface import ChoiceRequest, PromptScores
from gateway.routing.router import Local
from mesh.errors import Cancelled, PoolTooSmall
from mesh.messages.jobs import Pooling, Sampling
from mesh.messages.orders import Examination
from tests.mesh.conftest import RealMesh

pytestmark = pytest.mark.mesh

StartMesh = Callable[..., AbstractAsyncContextManager[RealMesh]]
SCORES = Examination(top=3)
PROMPT = tuple((7 * i) % 250 for i in range(150))


def examine(mesh: RealMesh, prompt: tuple[int, ...], wanted: Examination, **more: Any) -> Any:
    spec = ChoiceRequest("r", "tiny", prompt, (), Sampling(max_tokens=0), examination=wanted, **more)
    return mesh.gateway.examine(spec)


def logprobs(scores: PromptScores) -> list[float]:
    return [entry.logprob for entry in scores.entries()]


async def test_scores_have_the_bits_of_the_tokens_that_were_sampled(real_mesh: StartMesh) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        await mesh.add("decode")
        sampling = Sampling(temperature=1.2, seed=5, max_tokens=40, top_logprobs=3)
        running = mesh.ask(PROMPT[:20], sampling=sampling)
        assert running.task is not None
        await running.task
        stream = examine(mesh, (*PROMPT[:20], *running.text), SCORES)
        entries = list((await stream.scores()).entries())[19:]
        assert [entry.logprob for entry in entries] == [token.logprob for token in running.tokens]
        assert [entry.top_ids for entry in entries] == [token.top_ids for token in running.tokens]
        assert [entry.top_logprobs for entry in entries] == [token.top_logprobs for token in running.tokens]
        assert mesh.prefills[0].counts()["examined"] == 1 and mesh.decodes[0].counts()["examined"] == 0
        assert stream.numerics == running.classes[-1]


@pytest.mark.parametrize("wanted", [SCORES, Examination(pooling=Pooling.LAST), Examination(pooling=Pooling.MEAN)])
async def test_every_shape_of_mesh_reports_the_same_bits(real_mesh: StartMesh, wanted: Examination) -> None:
    async def found(mesh: RealMesh, prompt: tuple[int, ...] = PROMPT) -> Any:
        stream = examine(mesh, prompt, wanted)
        if wanted.pooling is not None:
            return await stream.embedding()
        return list((await stream.scores()).entries())

    async with real_mesh(local=Local.ALWAYS) as mesh:
        decode = await mesh.add("decode", chunk_tokens=32)
        alone = await found(mesh)
        assert decode.counts()["examined"] == 1
        busy = [mesh.ask((index, *PROMPT[:50]), max_tokens=30) for index in range(3)]
        assert await asyncio.gather(*(found(mesh) for _ in range(4))) == [alone] * 4
        prefill = await mesh.add("prefill", chunk_tokens=50, step_tokens=70)
        others = asyncio.gather(*(found(mesh, PROMPT[index:]) for index in range(1, 4)))
        assert await asyncio.gather(*(found(mesh) for _ in range(4))) == [alone] * 4
        await others
        assert prefill.counts()["examined"] == 7
        await asyncio.gather(*(each.task for each in busy if each.task))
        await mesh.until(lambda: not prefill.busy and not decode.busy)
        for worker in (prefill, decode):
            assert worker.pages.counts().in_use == 0


async def test_a_prefill_worker_that_dies_is_replaced_and_nothing_is_told_twice(real_mesh: StartMesh) -> None:
    long = tuple((11 * i) % 250 for i in range(1500))
    async with real_mesh() as mesh:
        first = await mesh.add("prefill", chunk_tokens=16, step_tokens=16)
        alone = logprobs(await examine(mesh, long, SCORES).scores())
        stream = examine(mesh, long, SCORES)
        await mesh.until(lambda: any(0 < len(r.findings) for r in mesh.gateway.sequencer.requests.values()))
        await mesh.add("prefill")
        await mesh.end(first)
        assert logprobs(await stream.scores()) == alone
        assert len(alone) == len(long) - 1


async def test_cancelled_examinations_leave_no_page_behind(real_mesh: StartMesh) -> None:
    async with real_mesh() as mesh:
        prefill = await mesh.add("prefill", chunk_tokens=16, step_tokens=16)
        streams = [examine(mesh, (index, *PROMPT), SCORES) for index in range(6)]
        await mesh.until(lambda: prefill.counts()["pages_in_use"] > 0)
        for stream in streams:
            stream.cancel()
        with pytest.raises(Cancelled):
            await streams[0].scores()
        await mesh.until(lambda: not prefill.busy)
        assert prefill.counts()["pages_in_use"] == 0


async def test_an_examination_fills_the_prefix_cache_for_the_answer_behind_it(real_mesh: StartMesh) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        await mesh.add("decode")
        await examine(mesh, PROMPT, SCORES).scores()
        running = mesh.ask(PROMPT, max_tokens=2)
        assert running.task is not None
        await running.task
        assert running.handle.timings.cached_tokens >= 144
        again = examine(mesh, PROMPT, SCORES)
        await again.scores()
        assert again.cached_tokens == 0, "scores need every row, so they do not read the cache"
        embedded = examine(mesh, PROMPT, Examination(pooling=Pooling.LAST))
        await embedded.embedding()
        assert embedded.cached_tokens == 144


async def test_a_prompt_beyond_the_prefill_pool_is_examined_by_decode_and_beyond_both_refused(
    real_mesh: StartMesh,
) -> None:
    async with real_mesh(local=Local.AUTO) as mesh:
        await mesh.add("prefill", pool_pages=4)
        decode = await mesh.add("decode", pool_pages=16)
        values = await examine(mesh, PROMPT, Examination(pooling=Pooling.MEAN, dimensions=5)).embedding()
        assert len(struct.unpack("<5f", values)) == 5 and decode.counts()["examined"] == 1
        with pytest.raises(PoolTooSmall):
            await examine(mesh, PROMPT * 4, SCORES).scores()


async def test_the_smallest_prompts_are_examined(real_mesh: StartMesh) -> None:
    async with real_mesh() as mesh:
        await mesh.add("prefill", chunk_tokens=1)
        assert logprobs(await examine(mesh, (5,), SCORES).scores()) == []
        assert len(logprobs(await examine(mesh, (5, 6), replace(SCORES, top=0)).scores())) == 1
        assert len(await examine(mesh, (5,), Examination(pooling=Pooling.LAST)).embedding()) > 8
