"""Derives how a frozen dataclass becomes a protobuf message and back, from its types and the message's descriptor.

A field that one side lacks is an error when `mesh/messages/codec.py` is imported, so the two cannot drift apart.
Tickets are 32 raw bytes, enums map by name, None is an absent optional field; a message without a required part is
refused."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from google.protobuf import message_factory

from mesh.messages.jobs import Ticket

Convert = Callable[[Any], Any]


class CodecError(ValueError):
    """The bytes are no valid message, or the contract cannot carry the message."""


@dataclass(frozen=True, slots=True)
class Codec:
    encode: Convert
    decode: Convert


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    required: bool  # the field is a nested message that must be there
    optional: bool  # an absent field is None
    encode: Convert | None  # None: the value goes into the field as it is
    decode: Convert | None  # None: the field's value is taken as it is


def derive(cls: Any, descriptor: Any) -> Codec:
    """A codec between the dataclass `cls` and the protobuf message of `descriptor`."""
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    if set(names) != set(descriptor.fields_by_name):
        odd = sorted(set(names) ^ set(descriptor.fields_by_name))
        raise TypeError(f"{cls.__name__} and {descriptor.full_name} differ in the fields {odd}")
    plan = tuple(_field(name, hints[name], descriptor.fields_by_name[name]) for name in names)
    outer: Any = message_factory.GetMessageClass(descriptor)

    def encode(value: Any) -> Any:
        arguments = {}
        for field in plan:
            item = getattr(value, field.name)
            if item is not None:
                arguments[field.name] = item if field.encode is None else field.encode(item)
        return outer(**arguments)

    def decode(message: Any) -> Any:
        values: list[Any] = []
        for field in plan:
            if (field.required or field.optional) and not message.HasField(field.name):
                if field.required:
                    raise CodecError(f"{descriptor.full_name}.{field.name} is missing")
                values.append(None)
                continue
            item = getattr(message, field.name)
            values.append(item if field.decode is None else field.decode(item))
        return cls(*values)

    return Codec(encode, decode)


def enum_tables(cls: type[Enum], descriptor: Any) -> tuple[dict[Any, int], dict[int, Any]]:
    """Tables from member to number and from number to member; both sides must have the same members."""
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    numbers = {value.name.removeprefix(prefix): value.number for value in descriptor.values if value.number != 0}
    if set(numbers) != set(cls.__members__):
        raise TypeError(f"{cls.__name__} and {descriptor.full_name} differ in {set(numbers) ^ set(cls.__members__)}")
    return {cls[name]: number for name, number in numbers.items()}, {numbers[name]: cls[name] for name in numbers}


def _field(name: str, hint: Any, descriptor: Any) -> _Field:
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if optional:
        (hint,) = (argument for argument in get_args(hint) if argument is not NoneType)
    inner = get_args(hint)[0] if get_origin(hint) is tuple else hint
    codec = _value(inner, descriptor)
    if get_origin(hint) is tuple:
        if codec is None:
            return _Field(name, False, False, None, tuple)
        item = codec
        return _Field(name, False, False, lambda v: [item.encode(i) for i in v], lambda v: tuple(map(item.decode, v)))
    required = descriptor.message_type is not None and not optional
    if codec is None:
        return _Field(name, required, optional, None, None)
    return _Field(name, required, optional, codec.encode, codec.decode)


def _value(hint: Any, descriptor: Any) -> Codec | None:
    if hint is Ticket:
        return Codec(Ticket.pack, unpack_ticket)
    if is_dataclass(hint):
        return derive(hint, descriptor.message_type)
    if isinstance(hint, type) and issubclass(hint, Enum):
        to_number, to_member = enum_tables(hint, descriptor.enum_type)

        def decode(number: int) -> Any:
            try:
                return to_member[number]
            except KeyError:
                raise CodecError(f"{descriptor.full_name}: {number} is no member that this version knows") from None

        return Codec(to_number.__getitem__, decode)
    if hint in (int, float, str, bytes, bool):
        return None
    raise TypeError(f"{descriptor.full_name}: a protobuf field cannot carry {hint}")


@lru_cache(maxsize=4096)  # every token carries its ticket
def unpack_ticket(raw: bytes) -> Ticket:
    try:
        return Ticket.unpack(raw)
    except struct.error as error:
        raise CodecError(f"a ticket has 32 bytes, not {len(raw)}") from error
