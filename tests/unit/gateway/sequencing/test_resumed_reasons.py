"""Every reason for which a request is resumed has its series from the start, so that the first event is a rise."""

from gateway.attaching.handing_over import LEFT_DRAINED
from gateway.observability.metrics import GatewayMetrics
from gateway.sequencing.deaths import LEFT_STALLED
from gateway.sequencing.requests import READER_BEHIND
from mesh.messages.jobs import FullKind, Reason, Tier


def test_each_reason_has_a_series_before_it_occurs() -> None:
    own = {LEFT_DRAINED, LEFT_STALLED, READER_BEHIND, *(f"full_{kind.value}" for kind in FullKind)}
    lost = {f"{tier.value}_{how}" for tier in Tier for how in ("gone", "hung")}
    assert GatewayMetrics().resumes == dict.fromkeys(own | lost | {reason.value for reason in Reason}, 0)
