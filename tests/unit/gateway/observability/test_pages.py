"""`/debug/pages`: what a gateway shows of the pages of a mesh, and what it shows of a worker that is silent."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.attaching.page_queries import ANSWER_SECONDS, alarms_of
from gateway.observability.pages import number, view_of_pages
from mesh.errors import InvalidRequest
from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

Json = dict[str, Any]


async def view(cluster: Cluster, name: str = "", first: int = 0, count: int = 0) -> Json:
    found = await view_of_pages(cluster.gateway, name, first, count)
    return {
        each["worker"] if each["worker"] in cluster.processes else each["address"]: each for each in found["workers"]
    }


@virtual
async def test_pages_are_shown_with_the_requests_that_hold_them() -> None:
    cluster = await Cluster(3).start(1, 1)
    client = cluster.ask(tuple(range(30)), Sampling(max_tokens=40))
    await cluster.until(lambda: len(client.seen) > 5)
    decode = (await view(cluster, count=1000))["decode0"]
    (holder,) = decode["holders"]
    assert holder["request_id"] == client.spec.request_id and holder["what"] == "running" and not holder["why"]
    assert decode["answered"] and decode["states"]["in_use"] == holder["pages"] > 6 and decode["faults"] == []
    assert sum(decode["states"].values()) == decode["pages"] == sum(run[0] for run in decode["runs"])
    assert sum(pages for pages, state, by in decode["runs"] if (state, by) == ("in_use", [0])) == holder["pages"]
    assert "u" in decode["map"]
    assert await cluster.finish() == []
    after = (await view(cluster))["decode0"]
    assert after["holders"] == [] and "runs" not in after and after["states"]["in_use"] == 0


@virtual
async def test_quarantined_pages_are_shown_with_their_writer_and_the_reason() -> None:
    cluster = Cluster(4, one_sided=True)
    cluster.may_kill = False
    await cluster.start(1, 1)
    release = cluster.fabric.hold(lambda write: True)
    client = cluster.ask(tuple(range(30)), Sampling(max_tokens=4))
    decode = cluster.decode()
    await cluster.until(lambda: decode.pages.counts().landing > 0)
    cluster.freeze("prefill0")
    client.may_fail = True
    client.handle.cancel()
    await cluster.until(lambda: decode.pages.counts().quarantined > 0)
    shown = await view(cluster)
    (holder,) = shown["decode0"]["holders"]
    assert (holder["state"], holder["why"]) == ("quarantined", "the attempt ended here")
    prefill = cluster.processes["prefill0"].incarnation
    assert holder["writer"] == cluster.gateway.workers.get(prefill).name  # type: ignore[union-attr]
    assert shown["prefill0"] == shown["prefill0"] | {"answered": False} and "states" not in shown["prefill0"]
    cluster.thaw("prefill0")
    release()
    assert await cluster.finish() == []


@virtual
async def test_a_worker_of_an_older_version_is_not_asked() -> None:
    cluster = await Cluster(5).start(0, 1)
    (worker,) = cluster.gateway.workers
    sent: list[Any] = []
    hello, session = worker.hello, SimpleNamespace(send=sent.append, name="old")
    worker.hello, worker.session = cast(Any, SimpleNamespace(reports_pages=False)), cast(Any, session)
    before = asyncio.get_running_loop().time()
    found = await cluster.gateway.attaching.page_queries.ask([cast(Any, worker)])
    assert found == [(worker, None)] and sent == []
    assert asyncio.get_running_loop().time() - before < ANSWER_SECONDS
    worker.hello = hello


@pytest.mark.parametrize("text", ["-1", "1.0", "x", "", "9" * 11, "65537", "\u0663"])
def test_a_count_is_a_whole_number_within_its_bounds(text: str) -> None:
    with pytest.raises(InvalidRequest, match="count"):
        number({"count": text}, "count", 65_536)
    assert number({"count": "65536"}, "count", 65_536) == 65_536 and number({}, "count", 1) == 0


@virtual
async def test_an_unknown_worker_is_refused_with_the_names_of_those_that_are_there() -> None:
    cluster = await Cluster(6).start(1, 1)
    with pytest.raises(InvalidRequest, match=r"attached: .*decode"):
        await view_of_pages(cluster.gateway, "nobody", 0, 0)


def test_stuck_pages_and_a_broken_ledger_are_alarms_and_a_short_quarantine_is_none() -> None:
    def worker(**measures: float) -> Any:
        return SimpleNamespace(name="decode-1", measures=measures)

    assert alarms_of([worker(), worker(pages_quarantined=8.0, stuck=0.0, ledger_broken=0.0)]) == ()
    (stuck,) = alarms_of([worker(stuck=8.0)])
    assert stuck.startswith("decode-1: 8 pages stay quarantined") and "silent" not in stuck and "end that" in stuck
    (broken,) = alarms_of([worker(ledger_broken=1.0)])
    assert "did not add up once since it started" in broken
    assert "3 times" in alarms_of([worker(ledger_broken=3.0)])[0]
