"""JSON lines: one object per line, with whatever the log call adds."""

import json
import logging
import sys

from mesh.logs import JsonFormatter


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
