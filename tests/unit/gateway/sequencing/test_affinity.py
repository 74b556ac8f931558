"""Routing keys: the next request with a key goes where the last one went, and the memory is bounded."""

from dataclasses import replace

from gateway.core.interface import ChoiceRequest
from gateway.sequencing.affinity import NOWHERE, Affinities
from mesh.messages.jobs import Adjustments, Sampling
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import mesh

CHOICE = ChoiceRequest("r", "m", (1,), (), Sampling(), affinity="a")


def test_a_key_is_remembered_for_its_salt_until_newer_ones_need_the_place() -> None:
    known = Affinities(most=2)
    known.remember(CHOICE, 11, None)
    known.remember(replace(CHOICE, affinity=""), 12, 3)
    assert known.preferred(CHOICE) == {11} and known.preferred(replace(CHOICE, affinity="")) is NOWHERE
    assert known.preferred(replace(CHOICE, salt=b"other")) is NOWHERE
    for key in ("b", "a", "c"):
        known.remember(replace(CHOICE, affinity=key), 20, 4)
    assert known.preferred(replace(CHOICE, affinity="b")) is NOWHERE
    assert known.preferred(CHOICE) == {20, 4}


@virtual
async def test_requests_with_a_key_stay_together_and_others_spread() -> None:
    fake = mesh()
    first = fake.serving(fake.accept(affinity="chat"))
    assert fake.serving(fake.accept()) != first  # negative control: load decides
    assert fake.serving(fake.accept(affinity="chat")) == first


@virtual
async def test_requests_that_adjust_logits_go_to_workers_that_do() -> None:
    fake = mesh()
    for name in ("p1", "d1"):
        worker = fake.workers[name]
        fake.sequencer.workers.remove(worker)
        worker.hello = replace(worker.hello, adjusts_logits=False)
        fake.sequencer.workers.add(worker)
    request = fake.accept(affinity="x")
    sampling = Sampling(adjustments=Adjustments(presence_penalty=1.0))
    for _ in range(3):
        choice = replace(request.choice, sampling=sampling)
        assert fake.serving(fake.sequencer.accept(choice)) == ("p2", "d2")
    assert fake.serving(fake.accept()) == ("p1", "d1"), "negative control: others go anywhere"
