"""`baton explain` as a command: what it prints where, and what it says when it finds nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.local_mesh.up import drawing
from cli.main import build
from cli.why.explain import MOST_STOPS, lines
from cli.why.waterfall import waterfall
from mesh.telemetry import semconv
from tests.harness.small_http import small_server
from tests.unit.cli.why.test_waterfall import HANDED

REQUESTS: dict[str, Any] = {"/debug/requests?limit=20": {"requests": [HANDED]}, "/debug/requests/one": HANDED}


@pytest.fixture
def gateway() -> Iterator[str]:
    """Knows one request, named one."""

    def answer(target: str) -> tuple[int, Any]:
        return (200, REQUESTS[target]) if target in REQUESTS else (404, {"error": f"no request {target!r} here"})

    with small_server(answer) as address:
        yield f"http://{address}"


def explain(*arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    done = CliRunner().invoke(build("explain"), ["explain", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["one"], []])
def test_the_waterfall_and_its_reasons_go_to_stdout(gateway: str, arguments: list[str]) -> None:
    status, out, err = explain(*arguments, "--url", gateway)
    assert (status, err) == (0, "")
    assert out.startswith("one  POST /v1/chat/completions") and "kv.send" in out and "hidden behind" in out
    assert "own: " in out and "floor: " in out


def test_a_gateway_is_named_by_its_address_or_its_url(gateway: str) -> None:
    address = gateway.removeprefix("http://")
    found = [explain("nosuch", option, name)[2] for option in ("--http", "--url") for name in (gateway, address)]
    assert len(set(found)) == 1 and "has no request" in found[0]


@pytest.mark.parametrize("path", ["", "/", "/v1"])
def test_an_unknown_id_says_what_to_type_and_where_to_look(gateway: str, path: str) -> None:
    status, out, said = explain("nosuch", "--url", gateway + path)
    assert (status, out) == (1, "")
    assert f"the gateway at {gateway} has no request 'nosuch'" in said and "/v1" not in said
    assert f"`baton explain --http {gateway}`" in said and f"{gateway}/debug/requests" in said


def test_a_drawing_of_baton_up_begins_with_the_id_that_explain_takes() -> None:
    assert drawing(HANDED)[0] == "one"


def test_help_says_what_the_columns_mean() -> None:
    _, out, _ = explain("--help")
    assert "own" in out and "floor" in out and "measured" in out


@pytest.mark.parametrize("count", [MOST_STOPS, MOST_STOPS + 1, 500])
def test_many_moments_of_a_blocked_loop_share_one_row(count: int) -> None:
    computing = next(span for span in HANDED["spans"] if span["name"] == semconv.COMPUTE)
    step = computing["duration_ms"] / count
    stops = [
        computing
        | {
            "name": semconv.LOOP_BLOCKED,
            "span_id": f"stop-{number}",
            "parent_id": computing["span_id"],
            "start_ms": computing["start_ms"] + number * step,
            "duration_ms": step / 2,
        }
        for number in range(count)
    ]
    trace = HANDED | {"spans": [*HANDED["spans"], *stops]}
    shown = lines(trace, waterfall(trace["spans"]))
    rows = [line for line in shown if line.lstrip().startswith(semconv.LOOP_BLOCKED)]
    if count > MOST_STOPS:
        assert len(rows) == 1 and f"{semconv.LOOP_BLOCKED} x {count} " in rows[0]
        taken = float(rows[0].split(" ms")[0].split()[-1])
        assert taken == pytest.approx(computing["duration_ms"] / 2, abs=0.6), "all of them together"
    else:
        assert len(rows) == count
