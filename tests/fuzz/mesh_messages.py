"""Fuzz target of every message of the mesh: what its receiver decodes, and the checks that stand before its use.

Bytes are refused by CodecError, or become a message that encodes and decodes to itself. A message that passes its
checks keeps the bounds that the code behind them computes with; they are looked at once more here."""

import math
from random import Random
from typing import Any, get_args

import numpy as np

from decode_svc.handoff.writers import Writers
from kvtransfer.conversion import Conversion
from mesh.messages.codec import DOWN, KV_BACK, KV_OUT, UP, CodecError, decode_register, encode_register
from mesh.messages.field_checks import text_problem
from mesh.messages.hello_checks import clamped, hello_problem, load_problem
from mesh.messages.hello_pairs import PageReach, choose
from mesh.messages.job_check import JobLimits
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import KvHello
from mesh.messages.message import Down, Kv, Up
from mesh.messages.orders import Examine, Open, Prefill
from mesh.messages.packed_tokens import PackedTokens
from mesh.messages.page_fit import page_obstacle
from mesh.messages.page_shape import PageShape
from mesh.messages.page_shape_checks import shape_problem
from mesh.messages.reports import Hello, Load, PageMap, Register, Tokens
from mesh.network.grpc_stream import pieces
from mesh.sessions.page_map import spell
from tests.fuzz.cases import Wrong, chance, mutated
from tests.fuzz.drawn_messages import drawn
from tests.fuzz.drawn_shapes import OURS

ENVELOPES = (
    (DOWN, get_args(Down)),
    (UP, get_args(Up)),
    (KV_OUT, get_args(Kv)),
    (KV_BACK, get_args(Kv)),
)
LIMITS = JobLimits(vocabulary=300, context_tokens=4096)
REACH = PageReach("host", 0, OURS, ("shm", "tcp"))
_LARGEST_BYTES = 1 << 16  # size of the largest pages that are converted here


def mesh_messages(rng: Random) -> bool:
    """A case reaches deep states when its message passes the checks."""
    if chance(rng, 0.03):
        return _register(rng)
    envelope, kinds = rng.choice(ENVELOPES)
    kind = rng.choice(kinds)
    try:
        raw = envelope.encode(drawn(rng, kind))
        if chance(rng, 0.4):
            raw = mutated(rng, raw)
        message = envelope.decode(raw)
    except CodecError:
        return False
    again = envelope.decode(envelope.encode(message))
    if repr(again) != repr(message):
        raise Wrong(f"{message} becomes {again}")
    return _checked(message)


def _register(rng: Random) -> bool:
    try:
        register = decode_register(mutated(rng, encode_register(drawn(rng, Register))))
    except (CodecError, ValueError, OverflowError):
        return False
    return not text_problem("address", register.address)


def _checked(message: Any) -> bool:
    match message:
        case Hello():
            if hello_problem(message):
                return False
            _look_at_load(message.load)
            if not (0 < message.page_tokens <= 1 << 16 and 0 < message.context_tokens <= 1 << 31):
                raise Wrong(f"{message} passed the checks")
            if message.pages is not None:
                choose(message.pages, REACH)
                choose(REACH, message.pages)
                if message.pages.shape is not None:
                    _look_at_shape(message.pages.shape)
        case Load():
            if load_problem(message):
                return _is_clamped(message)
            _look_at_load(message)
        case KvHello():
            if Writers().problem(message) or (message.shape is not None and shape_problem(message.shape)):
                return False
            if message.shape is not None:
                _look_at_shape(message.shape)
            return bool(choose(message, REACH).transport)
        case Open() | Prefill() | Examine():
            if LIMITS.refusal(message) is not None:
                return False
            _look_at_job(message)
        case PageMap():
            spell(message)
        case PackedTokens() | Tokens():
            _look_at_tokens(message)
    return True


def _look_at_load(load: Load) -> None:
    values = [getattr(load, name) for name in Load.__slots__]
    if (
        not all(math.isfinite(value) and 0 <= value <= 1 << 31 for value in values)
        or load.free_pages > load.total_pages
    ):
        raise Wrong(f"{load} passed the checks")


def _is_clamped(load: Load) -> bool:
    if why := load_problem(clamped(load)):
        raise Wrong(f"{load} is clamped to what gateways refuse: {why}")
    return False


def _look_at_shape(shape: PageShape) -> None:
    """Pages that fit are converted without touching memory of others."""
    for source, target in ((shape, OURS), (OURS, shape)):
        if page_obstacle(source, target) or max(source.page_bytes, target.page_bytes) > _LARGEST_BYTES:
            continue
        page = np.zeros(source.page_bytes, np.uint8)
        made = Conversion(source, target).span(0, [page], 0, source.layers) if source != target else page
        if len(made) != target.page_bytes:
            raise Wrong(f"a page of {target.page_bytes} bytes is made of {len(made)}")


def _look_at_job(message: Open | Prefill | Examine) -> None:
    job, sampling = message.job, message.job.sampling
    ids = [*job.prompt, *job.emitted]
    if isinstance(message, Open | Prefill):
        ids += [each.token for each in sampling.adjustments.biases] if sampling.adjustments is not None else []
        numbers = (sampling.temperature, sampling.top_p, sampling.min_p)
        if not all(map(math.isfinite, numbers)) or sampling.max_tokens <= len(job.emitted):
            raise Wrong(f"{sampling} passed the checks")
    times = [seconds for seconds in (job.deadline_seconds, job.start_seconds) if seconds is not None]
    if not job.prompt or not all(0 <= each < LIMITS.vocabulary for each in ids) or not all(map(math.isfinite, times)):
        raise Wrong(f"{job} passed the checks")


def _look_at_tokens(message: Tokens) -> None:
    found = [item for piece in pieces(message) for item in piece.items]  # type: ignore[union-attr]
    if repr(found) != repr(list(message.items)):
        raise Wrong(f"{message} is cut into {found}")
    for item in found:
        Ticket.unpack(item.ticket.pack())
