"""Messages are the same after encoding and decoding; bytes that are no message are refused by name."""

import dataclasses
import types
import typing
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.worker.v1 import worker_pb2
from mesh.messages import codec
from mesh.messages import message as messages
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import End, Job, Sampling, Ticket, Tier, Token
from mesh.messages.orders import Open
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Hello, Load, PrefixChange, TokenOf, Tokens

SIXTY_FOUR = {"incarnation", "decode_incarnation", "prefill_incarnation", "seed", "request", "attempt", "checksums"}
SIGNED = {"priority"}
PENALTIES = {"repetition_penalty", "frequency_penalty", "presence_penalty", "bias"}
DOUBLES = {"temperature", "top_p", "min_p", "deadline_seconds", "start_seconds"} | PENALTIES
DOUBLES |= {"tokens_per_second", "place_seconds"}
ENVELOPES = {
    codec.DOWN: typing.get_args(messages.Down),
    codec.UP: typing.get_args(messages.Up),
    codec.KV_OUT: (
        messages.KvHello,
        messages.Ready,
        messages.Written,
        messages.Computing,
        messages.Commit,
        messages.Quiet,
        messages.Heartbeat,
    ),
    codec.KV_BACK: (
        messages.KvHello,
        messages.Landing,
        messages.Later,
        messages.Resend,
        messages.Landed,
        messages.Abort,
        messages.Heartbeat,
    ),
}


def values(hint: typing.Any, name: str) -> st.SearchStrategy[typing.Any]:
    if hint is Ticket:
        word = st.integers(0, 2**64 - 1)
        return st.builds(Ticket, word, word, st.binary(min_size=16, max_size=16))
    if hint is Token:
        tops = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.floats(width=32, allow_nan=False)), max_size=4)
        return st.builds(
            lambda position, token, logprob, tops, *rest: Token(
                position, token, logprob, tuple(i for i, _ in tops), tuple(p for _, p in tops), *rest
            ),
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**32 - 1),
            st.floats(width=32, allow_nan=False),
            tops,
            st.sampled_from(End),
            st.integers(0, 64),
            st.booleans(),
        )
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{f.name: values(hints[f.name], f.name) for f in dataclasses.fields(hint)})
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return st.one_of(*(values(option, name) for option in typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0], name), max_size=5).map(tuple)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is float:
        return st.floats(allow_nan=False) if name in DOUBLES else st.floats(width=32, allow_nan=False)
    whole = st.integers(0, 2**64 - 1 if name in SIXTY_FOUR else 2**32 - 1)
    by_type = {
        int: st.integers(-(2**31), 2**31 - 1) if name in SIGNED else whole,
        bool: st.booleans(),
        str: st.text(),
        bytes: st.binary(),
        type(None): st.none(),
    }
    return by_type[hint]


CASES = [(envelope, cls) for envelope, classes in ENVELOPES.items() for cls in classes]


@pytest.mark.parametrize(("envelope", "cls"), CASES, ids=[f"{e.name.split('.')[-1]}-{c.__name__}" for e, c in CASES])
def test_every_message_survives_the_wire_unchanged(envelope: codec.Envelope, cls: type) -> None:
    @settings(max_examples=30, deadline=None)
    @given(values(cls, ""))
    def round_trip(message: messages.Message) -> None:
        assert envelope.decode(envelope.encode(message)) == message

    round_trip()


@settings(max_examples=30, deadline=None)
@given(values(messages.Register, ""))
def test_register_survives_the_wire_unchanged(message: messages.Register) -> None:
    assert codec.decode_register(codec.encode_register(message)) == message


def test_every_message_of_the_mesh_travels_somewhere() -> None:
    travelling = {cls for classes in ENVELOPES.values() for cls in classes} | {messages.Register}
    assert travelling == set(typing.get_args(messages.Message))


def test_a_logprob_keeps_its_bits() -> None:
    ticket = Ticket(1, 1, bytes(16))
    logprob = float.fromhex("-0x1.8f1e2ap-3")  # a float32
    sent = Tokens((TokenOf(ticket, Token(0, 1, logprob)),))
    received = codec.UP.decode(codec.UP.encode(sent))
    assert isinstance(received, Tokens)
    assert received.items[0].token.logprob.hex() == logprob.hex()


def test_tokens_without_drafts_carry_no_draft_columns() -> None:
    ticket = Ticket(1, 1, bytes(16))
    plain = codec.UP.encode(Tokens((TokenOf(ticket, Token(0, 1)), TokenOf(ticket, Token(1, 1)))))
    drafted = codec.UP.encode(Tokens((TokenOf(ticket, Token(0, 1, drafted=4)), TokenOf(ticket, Token(1, 1)))))
    assert not worker_pb2.AttachResponse.FromString(plain).tokens.drafted and len(drafted) > len(plain)


def test_an_absent_prefill_incarnation_is_not_incarnation_zero() -> None:
    job = Job(Ticket(1, 1, bytes(16)), (1,), (), Sampling())
    for incarnation in (None, 0):
        decoded = codec.DOWN.decode(codec.DOWN.encode(Open(job, incarnation)))
        assert isinstance(decoded, Open)
        assert decoded.prefill_incarnation == incarnation


def test_an_older_workers_hello_names_its_layout_and_describes_no_pages() -> None:
    reach = PageReach("host", 1000, opaque_pages((2, 64), content="model"), ("shm",))
    hello = Hello(Tier.DECODE, 1, "w:1", "class", "print", "m", "0", 32, 4096, Load(), PrefixChange(0), pages=reach)
    assert codec.UP.decode(codec.UP.encode(hello)) == hello
    raw: typing.Any = worker_pb2.AttachResponse.FromString(codec.UP.encode(hello))
    raw.hello.pages.ClearField("shape")
    raw.hello.pages.MergeFromString(b"\x1a\x05tiles\x20\x80\x20")  # the numbers 3 and 4: layout, bytes of a page
    older = codec.UP.decode(raw.SerializeToString())
    assert older == dataclasses.replace(hello, pages=dataclasses.replace(reach, shape=None))


def test_a_message_does_not_travel_against_its_direction() -> None:
    with pytest.raises(codec.CodecError, match=r"Tokens does not travel in baton\.worker\.v1\.AttachRequest"):
        codec.DOWN.encode(Tokens(()))


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(codec.CodecError, match="are no valid baton"):
        codec.UP.decode(b"\xff\xff\xff")
    with pytest.raises(codec.CodecError, match="holds no message"):
        codec.UP.decode(b"")


def test_a_half_message_is_refused_by_the_name_of_what_is_missing() -> None:
    raw = worker_pb2.AttachRequest(open=worker_pb2.Open(age_ms=3)).SerializeToString()
    with pytest.raises(codec.CodecError, match=r"baton\.worker\.v1\.Open\.job is missing"):
        codec.DOWN.decode(raw)
    raw = worker_pb2.AttachResponse(lost=worker_pb2.Lost(ticket=bytes(31), reason="LOST_REASON_NO_PROGRESS"))
    with pytest.raises(codec.CodecError, match="32 bytes, not 31"):
        codec.UP.decode(raw.SerializeToString())
    raw = worker_pb2.AttachResponse(lost=worker_pb2.Lost(ticket=bytes(32)))
    with pytest.raises(codec.CodecError, match="0 is no member"):
        codec.UP.decode(raw.SerializeToString())


@pytest.mark.parametrize(
    "columns",
    [
        {"positions": []},
        {"ends": [0]},
        {"ends": [9]},
        {"tickets": [bytes(5)]},
        {"top_counts": [2], "top_ids": [1], "top_logprobs": [0.5]},
        {"top_counts": [1], "top_ids": [1], "top_logprobs": []},
    ],
)
def test_ragged_columns_of_tokens_are_refused(columns: dict[str, list[typing.Any]]) -> None:
    whole: dict[str, list[typing.Any]] = {
        "tickets": [bytes(32)],
        "positions": [0],
        "tokens": [7],
        "logprobs": [0.0],
        "ends": [1],
    }
    assert codec.UP.decode(worker_pb2.AttachResponse(tokens=worker_pb2.Tokens(**whole)).SerializeToString())
    broken = worker_pb2.AttachResponse(tokens=worker_pb2.Tokens(**(whole | columns)))
    with pytest.raises(codec.CodecError):
        codec.UP.decode(broken.SerializeToString())


def test_a_number_that_does_not_fit_names_the_message() -> None:
    with pytest.raises(codec.CodecError, match="Computing does not fit"):
        codec.KV_OUT.encode(messages.Computing(Ticket(1, 1, bytes(16)), 2**32))
