"""Real tiers that cannot serve together: refused by name when they register, and /health tells."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from engine.builtin.model import tiny
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling

pytestmark = pytest.mark.mesh

PROMPT = tuple(range(2, 90))
StartMesh = Callable[..., AbstractAsyncContextManager[Any]]


def draft_of(folder: Path) -> dict[str, Any]:
    return {"speculation": "draft", "draft": tiny(folder / "draft", "llama3", dtype="bf16", context=8192, seed=3)}


MISFITS: dict[str, Callable[[Path], tuple[dict[str, Any], dict[str, Any]]]] = {
    "no transport in common": lambda folder: ({"transports": ("tcp",)}, {"transports": ("shm",)}),
    "draft models differ": lambda folder: ({}, draft_of(folder)),
    "numerics classes differ": lambda folder: ({"product_path": "fp32"}, {"product_path": "pairs"}),
}


@pytest.mark.parametrize("why", MISFITS)
async def test_tiers_that_do_not_fit_are_named_and_one_that_fits_heals_the_mesh(
    why: str, real_mesh: StartMesh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefill, decode = MISFITS[why](tmp_path)
    async with real_mesh(local=Local.NEVER) as mesh:
        await mesh.add("prefill", name="early", **prefill)
        assert mesh.gateway.refused_workers() == (), "nobody knows yet what it must fit"
        await mesh.add("decode", name="late", **decode)
        early, late = sorted(mesh.gateway.refused_workers())
        assert early.startswith("early at ") and late.startswith("late at ") and why in early and why in late
        assert not mesh.gateway.healthy()
        await mesh.until(lambda: caplog.text.count("sends this worker no requests") == 2)
        await mesh.add("prefill", **decode)
        assert [name.partition(" at ")[0] for name in mesh.gateway.refused_workers()] == ["early"]
        assert mesh.gateway.healthy()
        running = mesh.ask(PROMPT, sampling=Sampling(max_tokens=6))
        await running.task
        assert len(running.text) == 6


async def test_a_decode_worker_that_may_compute_prompts_serves_beside_a_prefill_worker_that_does_not_fit(
    real_mesh: StartMesh, tmp_path: Path
) -> None:
    async with real_mesh(local=Local.AUTO) as mesh:
        await mesh.add("prefill", name="early")
        await mesh.add("decode", **draft_of(tmp_path))
        running = mesh.ask(PROMPT, sampling=Sampling(max_tokens=6))
        await running.task
        assert len(running.text) == 6 and mesh.gateway.healthy()
        assert [name.partition(" at ")[0] for name in mesh.gateway.refused_workers()] == ["early"]
