"""`baton pages`: the map, the sums and the pages as a person reads them."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from cli.main import build
from cli.why.pages import LISTED, drawn
from tests.harness.small_http import small_server

PAGES = LISTED + 10
HOLDERS = [
    {"what": "running", "state": "in_use", "pages": 5, "request": "0a", "request_id": "mine", "attempt": 2}
    | {"writer": None, "why": "", "seconds": 1.25},
    {"what": "quarantine", "state": "quarantined", "pages": 1, "request": "0b", "request_id": None, "attempt": 1}
    | {"writer": "prefill-1", "why": "no_progress", "seconds": None},
    {"what": "step 7", "state": "in_use", "pages": 1, "request": None, "request_id": None, "attempt": 0}
    | {"writer": None, "why": "", "seconds": None},
]
ABOUT = {"worker": "decode-1", "id": "0d", "tier": "decode", "address": "h:1", "model": "m", "page_tokens": 16}
SUMS = {"free": PAGES - 7, "cached": 0, "in_use": 6, "landing": 0, "quarantined": 1}
SHOWN = ABOUT | {
    "answered": True,
    "pages": PAGES,
    "states": SUMS,
    "holders": HOLDERS,
    "faults": [],
    "map": "64:u1f1022q1",
}
SILENT = {**ABOUT, "worker": "prefill-1", "tier": "prefill", "answered": False}


@contextlib.contextmanager
def serving(second_range: str = "answered") -> Iterator[str]:
    """Knows one worker that answers, and one that does not. `second_range`: or what becomes of the first before it."""

    def answer(target: str) -> tuple[int, Any]:
        asked = parse_qs(urlsplit(target).query)
        first, listed = int(asked.get("first", ["0"])[0]), "count" in asked
        runs = (
            [[5, "in_use", [0]], [LISTED - 5, "free", []]] if first == 0 else [[9, "free", []], [1, "quarantined", [1]]]
        )
        one = SHOWN | ({"first": first, "runs": runs} if listed else {})
        if first and second_range == "silent":
            one = ABOUT | {"answered": False}
        if first and second_range in ("gone", "broken"):
            status, reason = (400, "INVALID_REQUEST") if second_range == "gone" else (500, "INTERNAL")
            return status, {"error": {"message": "no way", "reason": reason}}
        return 200, {"workers": [one] if listed else [one, SILENT], "alarms": ["decode-1: 1 pages stay quarantined"]}

    with small_server(answer) as address:
        yield f"http://{address}"


@pytest.fixture
def pages_gateway() -> Iterator[str]:
    with serving() as url:
        yield url


def pages(*arguments: str) -> str:
    done = CliRunner().invoke(build("pages"), ["pages", *arguments])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_the_short_form_shows_alarms_sums_a_map_and_the_gravest_holders_first(pages_gateway: str) -> None:
    out = pages("--url", pages_gateway)
    assert out.startswith("ALARM  decode-1: 1 pages stay quarantined")
    assert "65,546 pages of 16 tokens: 65,539 free, 6 in use, 1 quarantined" in out
    assert "prefill-1  prefill at h:1\n  does not answer" in out
    wanted = [
        "quarantined by request 0b, attempt 1, quarantine, writer prefill-1, because: no_progress",
        "in use by request mine, attempt 2, running, for 1.2 s",
        "in use by step 7",
    ]
    assert [out.index(each) for each in wanted] == sorted(out.index(each) for each in wanted)
    rows = [line.strip() for line in out.splitlines() if line.strip() and set(line.strip()) <= set(".-#+X")]
    assert "".join(rows)[0] == "#" and "".join(rows)[-1] == "X", "a quarantined page is seen among a thousand free ones"


def test_all_pages_are_listed_range_by_range(pages_gateway: str) -> None:
    out = pages("--all", "--url", pages_gateway)
    assert "0-4  in use by request mine" in out and f"5-{LISTED - 1}  free" in out
    assert f"{LISTED + 9}  quarantined by request 0b" in out


def test_json_is_one_object_with_every_range(pages_gateway: str) -> None:
    found = json.loads(pages("--all", "--json", "--url", pages_gateway))
    (one, silent) = found["workers"]
    assert sum(run[0] for part in one["ranges"] for run in part["runs"]) == one["pages"] == PAGES
    assert silent["ranges"] == [] and found["alarms"]


@pytest.mark.parametrize("end", ["gone", "silent"])
def test_ranges_that_no_worker_answered_are_named(end: str) -> None:
    with serving(end) as url:
        out = pages("--all", "--url", url)
        found = json.loads(pages("--all", "--json", "--url", url))
    assert f"  pages {LISTED}-{LISTED + 9}: no answer\n" in out
    assert "0-4  in use by request mine" in out and "prefill-1  prefill at h:1" in out, "the others are listed"
    assert found["workers"][0]["ranges"][1] == {"first": LISTED, "answered": False}


def test_a_gateway_that_fails_ends_the_listing() -> None:
    with serving("broken") as url:
        done = CliRunner().invoke(build("pages"), ["pages", "--all", "--url", url])
    assert done.exit_code == 1 and "no way" in done.stderr


def test_a_map_fits_its_columns_and_shows_the_gravest_state() -> None:
    assert drawn("1:f3c1u1l1q1", 80) == ["...-#+X"]
    rows = drawn("1:f5000q1f4999", 25)
    assert max(map(len, rows)) <= 25 and len(rows) <= 4 and "".join(rows).count("X") == 1
    assert drawn("1:", 20) == []
