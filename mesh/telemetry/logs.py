"""Log lines: text, or JSON with the ids of the trace that a line belongs to. What a peer sent cannot forge a line.

`log_format = "json"` chooses JSON. Whatever a log call passes in `extra` becomes a field of its own. In both formats a
record is one line: control characters of names, addresses and error texts are escaped. Only a traceback takes further
lines, and each of those begins with a bar."""

import json
import logging

from mesh.telemetry.spans import parse_traceparent

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
BAR = "    | "  # before each line of a traceback


class LineFormatter(logging.Formatter):
    """The usual text, with control characters escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(BAR + escaped(line) for line in lines)

    def formatStack(self, stack_info: str) -> str:
        return "\n".join(BAR + escaped(line) for line in stack_info.split("\n"))


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
        return escaped(json.dumps(line, default=str, ensure_ascii=False), json_text=True)


def escaped(text: str, *, json_text: bool = False) -> str:
    """The text without characters that end a line, move a terminal's cursor or turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each, json_text=json_text) for each in text)


def _escape(character: str, *, json_text: bool) -> str:
    """The character as Python writes it in quotes; for JSON by four hex digits each, the only escape that it knows."""
    if not json_text:
        return repr(character)[1:-1]
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def trace_fields(traceparent: str) -> dict[str, str]:
    """The ids of a trace for `extra` of a log call; none where nothing is recorded."""
    context = parse_traceparent(traceparent)
    return {} if context is None else {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def log_lines(form: str) -> None:
    """Log text to stderr from now on, in this form of `logging`."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def log_json(service: str) -> None:
    """Every line of this process is JSON from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(service))
