"""Shared parts of the fault tests: the settings of the mesh they break, the requests they send and the landings that
ended. Every mesh logs its messages, and each test's trace is checked against the model behind the test."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.client import TokenRequest, prompt_of
from tests.harness.recording import recording
from tests.protocol.traces.checking import check_folder

PROMPT_TOKENS = 512
SETTINGS = {
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "64",  # 4 pages and 4 layers each: 32 writes of 4 spans per prompt
    "worker.pool_pages": "200",
    "worker.prefix_cache": "false",  # every run pushes every page
    "worker.threads": "1",
    "gateway.local": "never",  # recovery goes over the hand-off too
}


@dataclass
class EndedLandings:
    """Landings that ended without being admitted, as the decode worker reported them."""

    by_request: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # (valid spans, all spans)

    def take(self, event: Mapping[str, Any]) -> None:
        if event["name"] == "landing_ended":
            spans = event["spans_valid"], event["spans_total"]
            self.by_request.setdefault(event["request"], []).append(spans)


FAULTY = ("test_kill", "test_stop")  # modules whose traces must show that a process died or stood still


@pytest.fixture(autouse=True)
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Meshes of this test log their messages; behind it each trace must be one that the model allows."""
    with recording(tmp_path / "messages") as folder:
        yield
    report = check_folder(folder)
    print(report.text())
    assert not report.problems, "\n".join(report.problems)
    if report.meshes and request.module.__name__.rpartition(".")[2] in FAULTY:
        assert report.missing() == ""


@pytest.fixture
def landings() -> EndedLandings:
    return EndedLandings()


@pytest.fixture
def settings() -> Callable[..., dict[str, str]]:
    return lambda **more: SETTINGS | {name.replace("__", "."): value for name, value in more.items()}


@pytest.fixture
def request_of() -> Callable[..., TokenRequest]:
    def make(number: int, *, max_tokens: int = 16, name: str = "") -> TokenRequest:
        """Odd requests are sampled with a seed, even ones are greedy."""
        prompt = prompt_of(Random(number).randbytes(PROMPT_TOKENS - 1), number)
        return TokenRequest(name or f"request-{number}", prompt, max_tokens, number if number % 2 else None)

    return make
