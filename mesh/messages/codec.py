"""Encodes messages as bytes and decodes them: the edge where `mesh/messages/message.py` meets the contracts in protos/.

Each direction of each stream has an envelope, and a message that does not belong to a direction cannot be sent in it.
Field names are equal on both sides, so conversions are derived from the types; only Tokens, one message per engine
step, is written out by hand, as columns. Bytes that are not a whole, valid message raise CodecError."""

from collections.abc import Callable
from itertools import islice
from typing import Any, get_args

from google.protobuf.message import DecodeError

from baton.kv.v1 import kv_pb2
from baton.worker.v1 import worker_pb2
from mesh.messages.codec_fields import Codec, CodecError, derive, enum_tables, unpack_ticket
from mesh.messages.jobs import End, Token
from mesh.messages.message import Message
from mesh.messages.packed_tokens import PackedTokens
from mesh.messages.reports import Register, TokenOf, Tokens

KINDS = {kind.__name__: kind for kind in get_args(Message)}  # the class of each message by its name

__all__ = ["DOWN", "KV_BACK", "KV_OUT", "UP", "Envelope", "CodecError", "decode_register", "encode_register"]

TICKET_BYTES = 32


class Envelope:
    """One direction of one stream: which messages may travel in it, and how they are encoded."""

    def __init__(self, outer: Any, written_out: dict[type, Codec] | None = None) -> None:
        self._outer = outer
        self._encode: dict[type, tuple[str, Callable[[Any], Any]]] = {}
        self._decode: dict[str, Callable[[Any], Any]] = {}
        if written_out and Tokens in written_out:
            self._encode[PackedTokens] = "tokens", _encode_packed
        for field in outer.DESCRIPTOR.fields:
            cls = KINDS[field.message_type.name]
            codec = (written_out or {}).get(cls) or derive(cls, field.message_type)
            self._encode[cls] = (field.name, codec.encode)
            self._decode[field.name] = codec.decode

    def encode(self, message: Message) -> bytes:
        try:
            name, encode = self._encode[type(message)]
        except KeyError:
            allowed = ", ".join(cls.__name__ for cls in self._encode)
            raise CodecError(f"{type(message).__name__} does not travel in {self.name}; these do: {allowed}") from None
        try:
            raw: bytes = self._outer(**{name: encode(message)}).SerializeToString()
        except (TypeError, ValueError, OverflowError) as error:
            raise CodecError(f"{type(message).__name__} does not fit its contract: {error}") from error
        return raw

    def decode(self, raw: bytes) -> Message:
        try:
            outer = self._outer.FromString(raw)
        except DecodeError as error:
            raise CodecError(f"{len(raw)} bytes are no valid {self.name}: {error}") from error
        name = outer.WhichOneof("message")
        if name is None:
            raise CodecError(f"a {self.name} holds no message that this version of Baton knows")
        message: Message = self._decode[name](getattr(outer, name))
        return message

    @property
    def name(self) -> str:
        return str(self._outer.DESCRIPTOR.full_name)


def encode_register(message: Register) -> bytes:
    raw: bytes = _REGISTER.encode(message).SerializeToString()
    return raw


def decode_register(raw: bytes) -> Register:
    try:
        message = worker_pb2.RegisterRequest.FromString(raw)
    except DecodeError as error:
        raise CodecError(f"{len(raw)} bytes are no valid RegisterRequest: {error}") from error
    register: Register = _REGISTER.decode(message)
    return register


def _encode_tokens(message: Tokens) -> Any:
    outer: Any = worker_pb2.Tokens
    items = message.items
    tokens = [item.token for item in items]
    with_top = any(token.top_ids for token in tokens)
    with_drafts = any(token.drafted or token.accepted for token in tokens)
    return outer(
        tickets=[item.ticket.pack() for item in items],
        positions=[token.position for token in tokens],
        tokens=[token.token for token in tokens],
        logprobs=[token.logprob for token in tokens],
        ends=[_END_NUMBER[token.end] for token in tokens],
        top_counts=[len(token.top_ids) for token in tokens] if with_top else (),
        top_ids=[top for token in tokens for top in token.top_ids],
        top_logprobs=[top for token in tokens for top in token.top_logprobs],
        drafted=[token.drafted for token in tokens] if with_drafts else (),
        accepted=[token.accepted for token in tokens] if with_drafts else (),
    )


def _encode_packed(message: PackedTokens) -> Any:
    outer: Any = worker_pb2.Tokens
    return outer(
        tickets=message.tickets,
        positions=message.positions,
        tokens=message.tokens,
        logprobs=message.logprobs,
        ends=[_END_NUMBER[end] for end in message.ends],
    )


def _decode_tokens(message: Any) -> Tokens:
    count = len(message.tickets)
    if not (message.top_counts or message.top_ids or message.top_logprobs or message.drafted or message.accepted):
        return _decode_plain(message, count)
    counts, drafted = list(message.top_counts) or [0] * count, list(message.drafted) or [0] * count
    accepted = list(message.accepted) or [False] * count
    columns = (message.positions, message.tokens, message.logprobs, message.ends, counts, drafted, accepted)
    if any(len(column) != count for column in columns):
        raise CodecError(f"Tokens: columns of {[len(column) for column in columns]} entries for {count} tickets")
    if not sum(counts) == len(message.top_ids) == len(message.top_logprobs):
        raise CodecError(f"Tokens: {sum(counts)} likeliest tokens are announced, {len(message.top_ids)} are there")
    ids, logprobs = iter(message.top_ids), iter(message.top_logprobs)
    try:
        items = tuple(
            TokenOf(
                unpack_ticket(ticket),
                Token(
                    position,
                    token,
                    logprob,
                    tuple(islice(ids, top)),
                    tuple(islice(logprobs, top)),
                    _END[end],
                    drafts,
                    draft,
                ),
            )
            for ticket, position, token, logprob, end, top, drafts, draft in zip(message.tickets, *columns, strict=True)
        )
    except (KeyError, ValueError) as error:
        raise CodecError(f"Tokens: {error} is no valid entry") from error
    return Tokens(items)


def _decode_plain(message: Any, count: int) -> PackedTokens:
    tickets, positions, tokens = list(message.tickets), list(message.positions), list(message.tokens)
    logprobs, numbers = list(message.logprobs), list(message.ends)
    sizes = [count, len(positions), len(tokens), len(logprobs), len(numbers)]
    if len(set(sizes)) > 1:
        raise CodecError(f"Tokens: columns of {sizes[1:]} entries for {count} tickets")
    if any(len(ticket) != TICKET_BYTES for ticket in tickets):
        raise CodecError(f"Tokens: a ticket has {TICKET_BYTES} bytes")
    try:
        ends = [_END[number] for number in numbers]
    except KeyError as error:
        raise CodecError(f"Tokens: {error} is no valid entry") from error
    return PackedTokens(tickets, positions, tokens, logprobs, ends)


_END_NUMBER, _END = enum_tables(End, worker_pb2.End.DESCRIPTOR)
_REGISTER = derive(Register, worker_pb2.RegisterRequest.DESCRIPTOR)

DOWN = Envelope(worker_pb2.AttachRequest)  # gateway -> worker
UP = Envelope(worker_pb2.AttachResponse, {Tokens: Codec(_encode_tokens, _decode_tokens)})  # worker -> gateway
KV_OUT = Envelope(kv_pb2.SessionRequest)  # prefill -> decode
KV_BACK = Envelope(kv_pb2.SessionResponse)  # decode -> prefill
