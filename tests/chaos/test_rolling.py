"""A rolling upgrade of real processes: each worker in turn gets SIGTERM and is started again, under load.

No request fails, no token is wrong, and each worker is gone soon after its grace period, though answers run longer."""

import asyncio
from random import Random

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.storm import SETTINGS
from tests.chaos.storm_load import StormLoad
from tests.chaos.storm_mesh import storm_mesh
from tests.harness.process import pages_held

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

GRACE_SECONDS = 0.1  # less than many an answer takes
CLOSE_SECONDS = 20.0  # for the end of a process on a busy machine


async def test_every_worker_is_replaced_under_load_and_no_client_notices():
    settings = SETTINGS | {"worker.drain_seconds": str(GRACE_SECONDS)}
    async with storm_mesh(prefills=2, decodes=2, settings=settings, drains=True) as mesh:
        load, over, loop = StormLoad(mesh.addresses, Random(3)), asyncio.Event(), asyncio.get_running_loop()
        await load.learn()
        running = asyncio.create_task(load.run(6, over))
        await asyncio.sleep(2.0)
        for worker in mesh.workers:
            began = loop.time()
            worker.send_signal(15)
            assert await worker.ended(GRACE_SECONDS + CLOSE_SECONDS) == 0, mesh.last_lines()
            print(f"{worker.name} left after {loop.time() - began:.1f} s")
            await worker.start()
            await mesh.complete()
            await asyncio.sleep(1.0)
        over.set()
        await running
        held = sum([pages_held(await worker.quiet()) for worker in mesh.workers])
        resumed = sum([await drained(http) for http in mesh.http])
        lines = mesh.last_lines()
    assert (load.failed, load.wrong_tokens, held) == ([], 0, 0), lines
    assert load.requests > len(mesh.workers)
    assert resumed > 0, "answers that ran longer went on elsewhere"


async def drained(http: str) -> float:
    """Attempts that began at this gateway because a worker handed its request over."""
    async with httpx.AsyncClient(timeout=None) as client:
        page = (await client.get(f"http://{http}/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(page)}
    samples = families["baton_resumes"].samples
    return sum(each.value for each in samples if each.labels["reason"] == "drained")
