"""Every target of `python -m tests.fuzz`, and its share of the cases.

A target makes one case from a random generator and raises if the code breaks a promise. It returns False if the case
ended at the first check, so that the report shows a target that never gets behind it."""

from collections.abc import Callable
from random import Random

from tests.fuzz.gateway_reports import gateway_reports
from tests.fuzz.kv_answers import kv_answers
from tests.fuzz.kv_control import kv_control
from tests.fuzz.kv_copies import kv_copies
from tests.fuzz.kv_frames import kv_frames
from tests.fuzz.kv_greetings import kv_greetings
from tests.fuzz.kv_welcomes import kv_welcomes
from tests.fuzz.mesh_credentials import mesh_credentials, tls_handshakes
from tests.fuzz.mesh_messages import mesh_messages
from tests.fuzz.model_files import model_files
from tests.fuzz.texts import sse_frames, templates, tool_parsers
from tests.fuzz.translations import answer_events, translations
from tests.fuzz.worker_orders import worker_orders

Target = Callable[[Random], bool | None]  # None counts as True

TEXTS: dict[str, Target] = {
    "sse_frames": sse_frames,
    "tool_parsers": tool_parsers,
    "templates": templates,
    "translations": translations,
    "answer_events": answer_events,
}
FILES: dict[str, Target] = {"model_files": model_files}
WIRES: dict[str, Target] = {
    "gateway_reports": gateway_reports,
    "kv_answers": kv_answers,
    "kv_control": kv_control,
    "kv_copies": kv_copies,
    "kv_frames": kv_frames,
    "kv_greetings": kv_greetings,
    "kv_welcomes": kv_welcomes,
    "mesh_credentials": mesh_credentials,
    "mesh_messages": mesh_messages,
    "tls_handshakes": tls_handshakes,
    "worker_orders": worker_orders,
}
TARGETS = TEXTS | FILES | WIRES
SHARES = {
    "sse_frames": 12,
    "tool_parsers": 5,
    "templates": 3,
    "translations": 6,
    "answer_events": 4,
    "model_files": 2,
    "gateway_reports": 2,
    "kv_answers": 8,
    "kv_control": 8,
    "kv_copies": 10,
    "kv_frames": 12,
    "kv_greetings": 5,
    "kv_welcomes": 15,
    "mesh_credentials": 10,
    "mesh_messages": 25,
    "tls_handshakes": 1,
    "worker_orders": 2,
}
NATIVE = ("kv_copies", "kv_frames", "kv_welcomes")  # these reach native code, which AddressSanitizer watches
