"""Negative controls of the fuzz targets: with one guard switched off, its target fails within some hundred cases.

With the guard in place such cases pass (tests/unit/test_fuzz.py)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from decode_svc.handoff import landings
from decode_svc.handoff.spans import Spans
from decode_svc.handoff.writers import Writers
from decode_svc.request.requests import DecodeRequest, OpenLanding
from kvtransfer import mapped, portion_reader, portions, shm, tcp, tcp_writer
from kvtransfer.frame_landings import FrameLandings
from kvtransfer.portions import Frame
from mesh.messages.job_check import JobLimits
from mesh.network.mesh_token import MeshToken
from prefill_svc import handoff
from tests.fuzz import gateway_reports, kv_welcomes, mesh_messages
from tests.fuzz.__main__ import Slice, run


@dataclass(frozen=True)
class Guard:
    """A guard, the target that needs it, and what stands in its place."""

    what: str
    target: str
    cases: int
    place: Any
    name: str
    instead: Any

    def __str__(self) -> str:
        return f"{self.target}: {self.what}"


def _nothing(*arguments: Any, **more: Any) -> str:
    return ""


def _none(*arguments: Any) -> None:
    return None


def _always(*arguments: Any) -> bool:
    return True


def _unchecked(raw: bytes, shape: Any) -> list[Frame]:
    """The frames as they came, but none that leaves this process's memory."""
    rows = [Frame(*row[2:]) for row in portions._FRAME.iter_unpack(raw)]
    return [row._replace(length=min(row.length, 1 << 16), first_layer=0, layers=1) for row in rows]


def _address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _shifted(pool: Any) -> Any:
    """The address of each page but the first is that of the page before it."""
    return np.roll(page_addresses(pool), 1)


def _one_layer_too_few(spans: Any, source: Any, pages: int) -> Any:
    table = span_table(spans, source, pages)
    table[:, 1] = (table[:, 1] + 1) % pages
    return table


page_addresses, span_table = shm.page_addresses, kv_welcomes.span_table

GUARDS = (
    Guard("a landing ends", "kv_frames", 400, FrameLandings, "close", _nothing),
    Guard("half a frame goes into the sink", "kv_frames", 2000, tcp, "drain", _nothing),
    Guard("valid layers take no second copy", "kv_frames", 2000, OpenLanding, "frame_begins", _always),
    Guard("frames fit their pages", "kv_frames", 600, portion_reader, "unpack_portion", _unchecked),
    Guard("a writer shows a token", "kv_frames", 3000, tcp.TcpReceiver, "knows", _always),
    Guard("pages fit", "kv_greetings", 600, mapped, "transport_obstacle", _nothing),
    Guard("an address is one that a socket takes", "kv_welcomes", 1500, kv_welcomes, "host_and_port", _address),
    Guard("pages fit, says the writer", "kv_welcomes", 2000, tcp_writer, "transport_obstacle", _nothing),
    Guard("spans name their pages", "kv_welcomes", 600, shm, "span_table", _one_layer_too_few),
    Guard("a copy goes where its span says", "kv_copies", 200, shm, "page_addresses", _shifted),
    Guard("Written is checked", "kv_control", 600, landings, "written_problem", _nothing),
    Guard("Commit is checked", "kv_control", 1500, landings, "commit_problem", _nothing),
    Guard(
        "pages have their checksums", "kv_control", 300, Spans, "check", lambda self, stated, *_: [True] * len(stated)
    ),
    Guard("a writer settles its own", "kv_control", 3000, DecodeRequest, "lands_from_another", lambda *_: False),
    Guard("a Landing fits the prompt", "kv_answers", 600, handoff, "landing_problem", _nothing),
    Guard("a Resend fits the landing", "kv_answers", 1500, handoff, "resend_problem", _nothing),
    Guard("Hello is checked", "mesh_messages", 6000, mesh_messages, "hello_problem", _nothing),
    Guard("jobs are checked", "mesh_messages", 2000, JobLimits, "refusal", _none),
    Guard("jobs are checked", "worker_orders", 400, JobLimits, "refusal", _none),
    Guard("reports are checked", "gateway_reports", 400, gateway_reports, "report_problem", _nothing),
    Guard("calls show a token", "mesh_credentials", 200, MeshToken, "accepts", _always),
    Guard("an incarnation has one secret", "mesh_credentials", 200, Writers, "problem", _nothing),
)


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_a_target_fails_without_its_guard(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.place, guard.name, guard.instead)
    for first in range(1, guard.cases, 100):
        if run(Slice(guard.target, first, 100)).failures:
            return
    pytest.fail(f"{guard.cases} cases have not noticed")
