"""Services "on cuda" as a whole mesh: real processes, whose kernels run in Triton's interpreter on shared memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from baton.client import Client
from cli.verify.answers import compare
from cli.verify.reference import Reference
from cli.verify.requests import VerifyRequest, single
from mesh.messages.jobs import Sampling
from tests.mesh.cuda.conftest import CHUNK_TOKENS, PAGE_TOKENS, POOL_PAGES, GpuMesh, gpu_mesh

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")


def ask(number: int, tokens: int, *, answer: int = 5) -> VerifyRequest:
    """Every second one is sampled."""
    prompt = tuple((number * 7919 + slot * 31 + slot // 7) % 250 for slot in range(tokens))
    wish = Sampling(temperature=single(0.8 * (number % 2)), seed=number, max_tokens=answer, top_logprobs=3)
    return VerifyRequest(prompt, wish)


TOGETHER = (ask(0, 5, answer=12), ask(1, 33), ask(2, 16))  # the first still runs when the others join it
LONG = ask(9, 5 * CHUNK_TOKENS + 3, answer=2)
DURATION = 300  # tokens: an answer that is cancelled long before its end


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(folder: Path, home: Path) -> AsyncIterator[GpuMesh]:
    async with gpu_mesh(folder, home / "cache") as running:
        yield running


@in_one_loop
async def test_requests_together_get_the_bits_of_each_alone_over_both_transports(
    mesh: GpuMesh, alone: Reference
) -> None:
    answers = await mesh.answers(TOGETHER)
    expected = await asyncio.to_thread(alone.answers, TOGETHER)
    assert [bool(compare(*pair)) for pair in zip(expected, answers, strict=True)] == [False] * len(TOGETHER)
    assert mesh.classes == {(alone.identity.numerics, alone.identity.fingerprint)}
    assert "path=cuda-sm90" in alone.identity.numerics
    decode, ipc, nccl = [await mesh.counts(name) for name in ("decode-0", "prefill-0", "prefill-1")]
    assert decode["admitted_remote"] == len(TOGETHER) == ipc["committed"] + nccl["committed"]
    assert ipc["bytes_written"] > 0 < nccl["bytes_written"]
    assert ipc["bytes_written"] + nccl["bytes_written"] == decode["bytes_landed"]
    assert decode["largest_batch"] > 1 and decode["steps_ahead"] > 0


@in_one_loop
async def test_a_prompt_whose_pages_are_cached_on_both_tiers_gets_the_same_bits_and_moves_none(
    mesh: GpuMesh, alone: Reference
) -> None:
    whole = TOGETHER[-1]
    assert len(whole.prompt) == PAGE_TOKENS
    await mesh.answer(whole)
    landed = (await mesh.counts("decode-0"))["bytes_landed"]
    assert not compare(await asyncio.to_thread(alone.answer, whole), await mesh.answer(whole))
    assert (await mesh.counts("decode-0"))["bytes_landed"] == landed


@in_one_loop
async def test_another_seed_is_noticed(mesh: GpuMesh, alone: Reference) -> None:
    one = TOGETHER[1]
    answer = await mesh.answer(replace(one, sampling=replace(one.sampling, seed=77)))
    assert compare(await asyncio.to_thread(alone.answer, one), answer).token is not None


@in_one_loop
async def test_a_prefill_worker_killed_while_it_pushes_changes_no_bit_and_costs_no_page(
    mesh: GpuMesh, alone: Reference
) -> None:
    before = {name: (await mesh.counts(name))["bytes_written"] for name in ("prefill-0", "prefill-1")}
    committed = {name: (await mesh.counts(name))["committed"] for name in before}
    asked = asyncio.ensure_future(mesh.answer(LONG))
    victim = ""
    async with asyncio.timeout(120):
        while not victim:
            for name, written in before.items():
                counts = await mesh.counts(name)
                if counts["bytes_written"] > written:
                    assert counts["committed"] == committed[name], "too late to kill it in the middle"
                    victim = name
            await asyncio.sleep(0.03)
    mesh.kill(victim)
    del mesh.addresses[victim]
    answer = await asked
    assert not compare(await asyncio.to_thread(alone.answer, LONG), answer)
    await mesh.until(nothing_out)
    async with asyncio.timeout(120):
        while victim not in mesh.addresses:  # the supervisor starts another one
            await asyncio.sleep(0.05)


@in_one_loop
async def test_a_cancelled_request_leaves_no_page_behind_on_either_tier(mesh: GpuMesh) -> None:
    async def until_token(client: Client, number: int) -> None:
        """Gone at once after its second token."""
        wish = ask(20 + number, 20 + 20 * number, answer=DURATION)
        seen = 0
        async with aclosing(client.stream(wish.message(f"cancel-{number}"), timeout_seconds=240)) as events:
            async for event in events:
                seen += event.HasField("delta")
                if seen == 2:
                    return

    await asyncio.gather(*(until_token(mesh.client, number) for number in range(2)))
    await mesh.until(nothing_out)
    early = asyncio.ensure_future(mesh.answer(ask(30, 8 * CHUNK_TOKENS, answer=DURATION)))
    await mesh.until(lambda counts: any(one["pages_in_use"] or one["pages_landing"] for one in counts.values()))
    early.cancel()
    await mesh.until(nothing_out)


def nothing_out(counts: dict[str, dict[str, int]]) -> bool:
    return all(one["pages_free"] + one["pages_cached"] == POOL_PAGES for one in counts.values())


assert max(len(one.prompt) for one in (*TOGETHER, LONG)) + DURATION < PAGE_TOKENS * POOL_PAGES
