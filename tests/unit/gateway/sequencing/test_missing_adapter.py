"""When a request learns that no worker can compute its adapter any more."""

import pytest

from gateway.core.interface import ChosenAdapter
from mesh.errors import Unavailable
from mesh.messages.adapters import NamedAdapter
from mesh.messages.jobs import Reason
from mesh.messages.reports import Lost
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import error_of, mesh

SQL = NamedAdapter("sql", "a" * 64, "/adapters/sql")


@pytest.mark.parametrize("tier", ["p", "d"])
@virtual
async def test_an_adapter_that_one_tier_cannot_bring_back_ends_the_request_at_once(tier: str) -> None:
    m = mesh()
    for worker in m.workers.values():
        worker.has_adapters((SQL,))
    request = m.accept(adapter=ChosenAdapter(SQL.name, SQL.digest))
    for _ in range(2):
        prefill, decode = m.serving(request)
        assert request.ticket is not None
        name = prefill if tier == "p" else decode
        m.sequencer.on_lost(m.workers[name], Lost(request.ticket, Reason.ADAPTER, "holds another content"))
    error = error_of(request)
    assert isinstance(error, Unavailable)
    assert "'sql'" in error.message and "its folder has changed; load it again" in error.message
