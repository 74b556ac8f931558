"""Prefill and decode workers that do not fit are never paired, and are named; no request is left to wait for them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.attaching.served_models import facts_of
from gateway.routing.costs import Need
from gateway.routing.registry import Workers
from gateway.routing.router import Local, RouteDecision, route
from gateway.routing.unpaired import Pairing
from gateway.sequencing.reasons import FITTING, lacking, no_pair
from gateway.workers.attached import AttachedWorker
from gateway.workers.pairs import fits, kinds, misfit
from mesh.errors import Unavailable
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.messages.orders import Refused
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Hello, Load, PrefixChange
from tests.sim.loop import virtual

SHAPE = opaque_pages((2, 2048), content="model")
REACH = PageReach("host", 1000, SHAPE, ("shm", "tcp"))
MISFITS = {
    "no transport in common": (replace(REACH, transports=("tcp",)), replace(REACH, transports=("shm",)), ""),
    "no transport in common: shm: another host": (
        replace(REACH, transports=("shm",)),
        replace(REACH, transports=("shm",), host="elsewhere"),
        "",
    ),
    "draft models differ": (replace(REACH, shape=opaque_pages((2, 2048), (1, 512), content="model")), REACH, ""),
    "pages differ": (replace(REACH, shape=opaque_pages((2, 4096), content="model")), REACH, ""),
    "numerics classes differ": (REACH, REACH, "pairs"),
}


def worker(tier: Tier, incarnation: int, pages: PageReach | None = REACH, numerics: str = "fp32") -> AttachedWorker:
    load = Load(free_pages=100, total_pages=100)
    name = f"{tier.value}-{incarnation}"
    hello = Hello(tier, incarnation, f"{name}:1", numerics, "print", "m", "0", 4, 4096, load, PrefixChange(0), name)
    sent: list[object] = []
    session = SimpleNamespace(send=sent.append, sent=sent)
    return AttachedWorker(replace(hello, pages=pages), cast(Any, session), load)


def told(one: AttachedWorker) -> list[str]:
    return [message.why for message in cast(Any, one.session).sent if isinstance(message, Refused)]


def tiers(why: str) -> tuple[Workers, AttachedWorker, AttachedWorker]:
    """A mesh of two workers that do not fit for this reason."""
    theirs, ours, numerics = MISFITS[why]
    prefill, decode = worker(Tier.PREFILL, 1, theirs, numerics or "fp32"), worker(Tier.DECODE, 2, ours)
    workers = Workers()
    workers.add(prefill)
    workers.add(decode)
    return workers, prefill, decode


def routed(workers: Workers, local: Local) -> RouteDecision:
    found = route(Need(100), workers.table("m"), local=local)
    return found.decision if found is not None else RouteDecision.WAIT


@pytest.mark.parametrize("why", MISFITS)
def test_workers_that_do_not_fit_are_never_paired_and_the_mesh_is_not_healthy(why: str) -> None:
    workers, prefill, decode = tiers(why)
    assert misfit(prefill, decode).startswith(why) and not fits(prefill, decode)
    assert routed(workers, Local.NEVER) is RouteDecision.WAIT and not facts_of("m", workers, Local.NEVER).healthy
    assert routed(workers, Local.AUTO) is RouteDecision.LOCAL_NO_PREFILL
    assert facts_of("m", workers, Local.AUTO).healthy, "decode computes prompts itself"
    assert lacking(workers.of("m"), Local.NEVER) == FITTING


def test_equal_workers_and_those_that_do_not_tell_fit() -> None:
    for theirs, ours in [(REACH, REACH), (None, REACH), (REACH, None), (replace(REACH, host="x"), REACH)]:
        assert fits(worker(Tier.PREFILL, 1, theirs), worker(Tier.DECODE, 2, ours))


@pytest.mark.parametrize("local", [Local.NEVER, Local.AUTO])
@pytest.mark.parametrize("why", MISFITS)
@virtual
async def test_both_sides_learn_at_registration_why_they_get_no_requests(
    why: str, local: Local, caplog: pytest.LogCaptureFixture
) -> None:
    workers, prefill, decode = tiers(why)
    pairing = Pairing(workers, local)
    pairing.judge()
    unfit = [prefill, decode] if local is Local.NEVER else [prefill]
    assert [name.partition(" at ")[0] for name in pairing.names()] == [one.name for one in unfit]
    assert all(why in name for name in pairing.names())
    for one in unfit:
        assert len(told(one)) == 1 and why in told(one)[0] and one.name in caplog.text
    pairing.judge()
    assert [len(told(one)) for one in unfit] == [1] * len(unfit), "once is enough"
    if local is Local.AUTO:
        assert told(decode) == []
    workers.add(worker(Tier.DECODE, 3, prefill.hello.pages, prefill.hello.numerics))
    workers.add(worker(Tier.PREFILL, 4, decode.hello.pages))
    pairing.judge()
    assert pairing.names() == () and all(told(one)[-1] == "" for one in unfit)


@virtual
async def test_requests_are_refused_with_the_reason_once_the_tiers_have_not_fitted_for_a_while() -> None:
    workers, prefill, decode = tiers("draft models differ")
    pairing = Pairing(workers, Local.NEVER)
    pairing.judge()
    assert pairing.mismatch("m", 9.0, 10.0) == "", "a worker that fits may just be starting"
    why = pairing.mismatch("m", 10.0, 10.0)
    assert "prefill-1 does not fit decode-2: draft models differ" in why
    error = no_pair(why)
    assert isinstance(error, Unavailable) and why in str(error)
    workers.remove(prefill)
    pairing.judge()
    assert pairing.mismatch("m", 100.0, 10.0) == "", "a tier that is missing is another matter"
    workers.add(worker(Tier.PREFILL, 5, decode.hello.pages))
    pairing.judge()
    assert pairing.mismatch("m", 200.0, 10.0) == ""


@virtual
async def test_an_older_worker_is_not_sent_what_it_does_not_know() -> None:
    workers, prefill, decode = tiers("numerics classes differ")
    workers.remove(prefill)
    older = worker(Tier.PREFILL, 7, None, "pairs")
    workers.add(older)
    pairing = Pairing(workers, Local.NEVER)
    pairing.judge()
    assert told(older) == [] and told(decode) and len(pairing.names()) == 2


def test_a_thousand_workers_are_judged_by_their_kinds() -> None:
    assert len(kinds([worker(Tier.PREFILL, number) for number in range(1000)], hosts=frozenset())) == 1
