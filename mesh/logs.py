"""Logs as JSON lines: one object per line, with the ids of the trace that a line belongs to.

`log_format = "json"` turns it on. Whatever a log call passes in `extra` becomes a field of its own."""

import json
import logging

from mesh.telemetry import parse_traceparent

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S%z")
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, self.datefmt),
            "level": record.levelname,
            "logger": record.name,
            "service": self._service,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def trace_fields(traceparent: str) -> dict[str, str]:
    """The ids of a trace for `extra` of a log call; none where nothing is recorded."""
    context = parse_traceparent(traceparent)
    return {} if context is None else {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def log_json(service: str) -> None:
    """Every line of this process is JSON from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(service))
