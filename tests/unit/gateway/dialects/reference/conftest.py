"""A gateway with all pages that are described, and the description of its API."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.batches.bounds import FileBounds
from gateway.batches.store import BatchStore
from gateway.dialects.api import HttpApi
from gateway.dialects.debug_pages import debug_routes
from gateway.dialects.receipt_pages import receipt_routes
from gateway.dialects.reference.document import document
from gateway.observability.pages import page_routes, worker_pages
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import Receipts
from gateway.stored.responses import StoredResponses
from gateway.tracing.traces import RecentTraces
from mesh.config.door_config import DoorConfig
from mesh.messages.jobs import Tier
from mesh.messages.reports import PageHolder, PageMap, PageReport
from mesh.telemetry.spans import Silent
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.reference.described import ALL_PATHS

_WRITTEN: list[str] = []  # the document, which is made once


def receipts_in(folder: Path) -> Receipts:
    return Receipts(folder, random=Random(5), clock=lambda: 1.0, version="1", seconds=60.0, most_bytes=1 << 24)


async def page_view(name: str, first: int, count: int) -> dict[str, Any]:
    """Pages of a worker of each kind that an answer can have: it answers, or not."""
    hello = SimpleNamespace(address="h:1", page_tokens=16)
    worker: Any = SimpleNamespace(name="decode-1", incarnation=1, tier=Tier.DECODE, hello=hello, model="tiny")
    gateway: Any = SimpleNamespace(sequencer=SimpleNamespace(requests={}), workers={})
    holder = PageHolder("quarantine", "quarantined", 5, 1, 7, "no_progress", -1.0, 1)
    report = PageReport(
        1, 1, 0, 0, 0, 1, (holder,), ("page 3",), PageMap(1, b"\0\4", (1, 1)), (1, 1), b"\0\4", (0, 1), (0,)
    )
    views = [worker_pages(gateway, worker, each, first, 2) for each in (report, None)]
    return {"workers": views, "alarms": ["decode-1: look"]}


@pytest.fixture
def new_api(core: FakeCore, assets: Assets, tmp_path: Path) -> Callable[[], HttpApi]:
    def make() -> HttpApi:
        traces, receipts = RecentTraces(Silent(), random=Random(1)), receipts_in(tmp_path / "receipts")
        pages = [*debug_routes(traces, lambda: 1.0), *receipt_routes(receipts), *page_routes(page_view)]
        stored = StoredResponses(tmp_path / "responses", seconds=60.0, most_bytes=1 << 24, clock=lambda: 1.0)
        return HttpApi(
            core,
            assets,
            random=Random(7),
            clock=lambda: 1.0,
            traces=traces,
            receipts=receipts,
            also=pages,
            stored=stored,
            batches=BatchStore(tmp_path / "files", FileBounds(1 << 24), days=1.0, clock=lambda: 1.0, random=Random(2)),
        )

    return make


@pytest.fixture
def api(new_api: Callable[[], HttpApi]) -> HttpApi:
    return new_api()


@pytest.fixture
def described(assets: Assets) -> Any:
    """A copy of one's own, which may be changed."""
    if not _WRITTEN:
        _WRITTEN.append(json.dumps(document(DoorConfig(), assets, ALL_PATHS)))
    return json.loads(_WRITTEN[0])
