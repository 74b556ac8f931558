"""Structured events of the services: a log record with a field `event` has in fields what its text tells a reader.

A worker process forwards each such record as one fact; the fault tests and `tests/chaos/cancel.py` read the fields and
never the text, so that a reworded log line breaks no test."""

import logging
from collections.abc import Mapping
from typing import Any

from tests.harness.window import write_fact

Event = Mapping[str, Any]  # "name", and the fields of that event

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}


def event_of(record: logging.LogRecord) -> dict[str, Any] | None:
    """The record's event name and fields; None for a record that has only text."""
    name = getattr(record, "event", None)
    if name is None:
        return None
    return {"name": name, **{key: value for key, value in vars(record).items() if key not in _STANDARD}}


class EventHandler(logging.Handler):
    """Writes each structured event of this process to stdout as a fact `note`."""

    def emit(self, record: logging.LogRecord) -> None:
        event = event_of(record)
        if event is not None:
            write_fact("note", **event)
