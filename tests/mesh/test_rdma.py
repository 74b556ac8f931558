"""A mesh whose pages travel over NIXL, and the command that checks RDMA on a host. UCX imitates one-sided writes here,
over TCP; on a host with a device `make rdma-check` needs no imitation."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvtransfer import transports
from kvtransfer.rdma import Rdma, RdmaOptions
from kvtransfer.transfer import TransferError
from tests.rdma.__main__ import problems
from tests.rdma.fabric import chosen_fabric, need_nixl

pytestmark = pytest.mark.mesh
ROOT = Path(__file__).resolve().parents[2]
StartMesh = Callable[..., AbstractAsyncContextManager[Any]]
PROMPTS = [tuple(Random(seed).choices(range(2, 90), k=20 + 60 * seed)) for seed in range(4)]


@pytest.fixture
def rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of this process offer RDMA, imitated unless the environment chooses a device."""
    need_nixl()
    monkeypatch.setattr(
        transports, "Rdma", lambda random, options: Rdma(random, replace(options, fabric=chosen_fabric()))
    )


async def answers(mesh: Any) -> list[list[int]]:
    running = [mesh.ask(prompt, max_tokens=12) for prompt in PROMPTS]
    for each in running:
        await each.task
    return [each.text for each in running]


async def test_pages_over_rdma_give_the_tokens_of_pages_over_shared_memory(
    rdma: None, real_mesh: StartMesh, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    texts = []
    for allowed in (("shm",), ("rdma", "tcp")):
        async with real_mesh() as mesh:
            await mesh.add("prefill", transports=allowed)
            await mesh.add("decode", transports=allowed)
            texts.append(await answers(mesh))
            (decode,) = mesh.decodes
            counts = decode.counts()
            assert counts["pages_landing"] == counts["pages_quarantined"] == 0
            assert f"over {allowed[0]}" in caplog.text
    assert texts[0] == texts[1] and all(len(text) == 12 for text in texts[0])


async def test_a_prefill_worker_that_ends_loses_its_key_and_the_requests_go_on(
    rdma: None, real_mesh: StartMesh
) -> None:
    async with real_mesh() as mesh:
        first = await mesh.add("prefill", transports=("rdma",))
        decode = await mesh.add("decode", transports=("rdma",))
        wanted = await answers(mesh)
        receiver = decode.sessions.receivers["rdma"]
        (incarnation,) = receiver._gates
        running = [mesh.ask(prompt, max_tokens=12) for prompt in PROMPTS]
        await mesh.until(lambda: first.plans)
        await mesh.end(first)
        await mesh.until(lambda: incarnation not in receiver._gates)
        assert await receiver.silent(incarnation, 0)
        await mesh.until(lambda: decode.counts()["pages_quarantined"] == 0)
        await mesh.add("prefill", transports=("rdma",))
        for each in running:
            await each.task
        assert [each.text for each in running] == wanted


async def test_a_fabric_that_does_not_join_the_two_leaves_them_tcp(
    rdma: None, real_mesh: StartMesh, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(self: Rdma, handle: bytes, pool: Any, incarnation: int) -> Any:
        raise TransferError("rdma: no way between these two networks")

    monkeypatch.setattr(Rdma, "connect", unreachable)
    caplog.set_level(logging.INFO)
    async with real_mesh() as mesh:
        await mesh.add("prefill", transports=("rdma", "tcp"))
        await mesh.add("decode", transports=("rdma", "tcp"))
        assert all(len(text) == 12 for text in await answers(mesh))
    assert "no way between these two networks" in caplog.text and "over tcp" in caplog.text


def test_the_check_passes_over_the_imitation(rdma: None) -> None:
    command = [sys.executable, "-m", "tests.rdma", "--json", "--imitated", "--no-suite"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ok"] and found["wrong_bytes"] == 0 and found["pages"] > 200
    assert found["late"]["landed_bytes"] == 0 < found["control"]["landed_bytes"]


def test_the_check_needs_a_device_or_says_what_is_missing() -> None:
    if not Rdma(None, RdmaOptions()).available():  # type: ignore[arg-type]
        return  # this host has one
    done = subprocess.run([sys.executable, "-m", "tests.rdma", "--json"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr) > 20


FINE: dict[str, Any] = {
    "bytes": 100,
    "wrong_bytes": 0,
    "late": {"silent": True, "tries_after": 3, "landed_bytes": 0},
    "control": {"silent": True, "tries_after": 3, "landed_bytes": 64},
    "suite": {"passed": 21, "failed": 0},
}


def test_a_run_in_which_all_holds_has_no_problem() -> None:
    assert problems(FINE) == []
    assert problems({**FINE, "suite": {}}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"wrong_bytes": 1},
        {"bytes": 0},
        {"late": {"silent": False, "tries_after": 3, "landed_bytes": 0}},
        {"late": {"silent": True, "tries_after": 0, "landed_bytes": 0}},
        {"late": {"silent": True, "tries_after": 3, "landed_bytes": 1}},
        {"control": {"silent": True, "tries_after": 3, "landed_bytes": 0}},
        {"suite": {"passed": 20, "failed": 1}},
        {"suite": {"passed": 0, "failed": 0}},
    ],
    ids=str,
)
def test_each_failure_is_a_problem(change: dict[str, Any]) -> None:
    assert len(problems({**FINE, **change})) == 1
