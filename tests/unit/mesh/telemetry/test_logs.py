"""JSON lines: one object per line, with whatever the log call adds."""

import json
import logging
import sys

from mesh.telemetry.logs import BAR, JsonFormatter, LineFormatter


def line(message: str, *arguments: object, **extra: object) -> dict[str, object]:
    record = logging.LogRecord("baton.gateway", logging.WARNING, "file.py", 7, message, arguments, None)
    for key, value in extra.items():
        setattr(record, key, value)
    text = JsonFormatter("prefill-0").format(record)
    assert "\n" not in text
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_line_names_its_service_and_its_message() -> None:
    found = line("%s is\ngone", "decode")
    assert found.pop("time")
    assert found == {
        "level": "WARNING",
        "logger": "baton.gateway",
        "service": "prefill-0",
        "message": "decode is\ngone",
    }


def test_extras_become_fields_and_odd_values_become_text() -> None:
    found = line("x", trace_id="abc", tokens=3, odd={1})
    assert (found["trace_id"], found["tokens"], found["odd"]) == ("abc", 3, "{1}")


def test_an_exception_is_part_of_its_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        found = line("x", exc_info=sys.exc_info())
    assert "ValueError: wrong" in str(found["exception"])


FORGED = "decode-0\n2026-01-01 00:00:00,000 INFO all is well\r\x1b[2J\x85\u2028\u202egnp"


def text(message: str, *arguments: object, **extra: object) -> str:
    record = logging.LogRecord("baton.gateway", logging.WARNING, "file.py", 7, message, arguments, None)
    for key, value in extra.items():
        setattr(record, key, value)
    return LineFormatter("%(levelname)s %(message)s").format(record)


def test_what_a_peer_sends_cannot_forge_a_line() -> None:
    found = text("%s is up", FORGED)
    assert found.isprintable() and found.startswith("WARNING decode-0\\n2026-01-01") and found.endswith("gnp is up")
    as_json = json.loads(json_text := JsonFormatter("s").format(logging.makeLogRecord({"msg": FORGED})))
    assert json_text.isprintable() and as_json["message"] == FORGED


def test_negative_control_the_usual_formatter_writes_a_forged_line() -> None:
    record = logging.LogRecord("baton.gateway", logging.WARNING, "file.py", 7, "%s is up", (FORGED,), None)
    lines = logging.Formatter("%(levelname)s %(message)s").format(record).split("\n")
    assert lines[1].startswith("2026-01-01 00:00:00,000 INFO all is well")


def test_lines_of_a_traceback_begin_with_a_bar_and_its_message_cannot_forge_one() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        first, *others = text("it failed", exc_info=sys.exc_info(), stack_info="Stack:\n  here").split("\n")
    assert first == "WARNING it failed" and len(others) > 3
    assert all(line.startswith(BAR) and line.isprintable() for line in others)


def test_plain_text_stays_as_it_is() -> None:
    assert text("%s: ümläut, 漢字, 'quotes' and \\ stay", "décode") == (
        "WARNING décode: ümläut, 漢字, 'quotes' and \\ stay"
    )


def test_an_odd_character_beyond_the_first_plane_is_escaped_in_json_too() -> None:
    odd = "\U000e0001\ud800"
    written = JsonFormatter("s").format(logging.makeLogRecord({"msg": odd}))
    assert written.isprintable() and json.loads(written)["message"] == odd
