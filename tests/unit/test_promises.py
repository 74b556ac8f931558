"""What a contract or a setting promises, some product code keeps: every field and every key has a reader.

Found by name in the syntax trees of the rooms that receive the message or the setting. A name that several messages
share can hide one that nobody reads; a field whose name occurs nowhere in its receiver cannot hide."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from baton.inference.v1 import inference_pb2
from baton.kv.v1 import kv_pb2
from baton.worker.v1 import worker_pb2
from mesh.config.services import GatewayConfig, MeshConfig
from mesh.config.worker_config import DecodeConfig, PrefillConfig
from tests.unit.sources import nodes, python_files

CONTRACTS = (inference_pb2, worker_pb2, kv_pb2)
MESSAGES = {
    "mesh/messages/jobs.py",
    "mesh/messages/orders.py",
    "mesh/messages/reports.py",
    "mesh/messages/kv_messages.py",
    "mesh/messages/message.py",
}
CONFIG = ("mesh/config/common_config.py", "mesh/config/worker_config.py", "mesh/config/services.py")
EDGE = {"mesh/messages/codec.py", "mesh/messages/codec_fields.py", "mesh/config/settings.py", *MESSAGES, *CONFIG}

WORKERS = ("prefill_svc", "decode_svc", "engine", "mesh")
GATEWAY = ("gateway", "mesh")
# Rooms that receive what a method's caller sends, and what its server sends.
RECEIVERS = {
    "baton.worker.v1.RegistryService.Register": (GATEWAY, WORKERS),
    "baton.worker.v1.WorkerService.Attach": (WORKERS, GATEWAY),
    "baton.worker.v1.WorkerService.Stats": (WORKERS, ("mesh", "cli")),
    "baton.kv.v1.KvService.Session": (("decode_svc", "kvtransfer", "mesh"), ("prefill_svc", "kvtransfer", "mesh")),
}
PUBLIC = "baton.inference.v1."  # clients read the answers: there the gateway is the one who must write each field
# Tokens travel as columns, which only the codec reads: each becomes a field of each token.
COLUMNS = {
    "tickets": "ticket",
    "positions": "position",
    "tokens": "token",
    "logprobs": "logprob",
    "ends": "end",
    "top_counts": "top_ids",
}
# Fields that their receiver reads in a way that no name shows, each with the place.
READ_OTHERWISE = {
    "baton.inference.v1.ChatMessage.tool_call_id": "gateway/grpc/conversation.py copies it by its name in a table",
    "baton.inference.v1.Timings.tokens_per_step": "gateway/answers/usage.py fills it in by its name in a dictionary",
}
SERVICE_ROOMS = ("gateway", "prefill_svc", "decode_svc", "engine", "kvtransfer", "mesh", "cli")


@dataclass(frozen=True, slots=True)
class Words:
    """The names that a room's code uses."""

    read: frozenset[str]  # x.name, HasField("name"), case Kind(name=...), and names of classes
    written: frozenset[str]  # x.name = ..., Kind(name=...)


@cache
def words(rooms: tuple[str, ...]) -> Words:
    read, written = set[str](), set[str]()
    for path in python_files():
        if path.startswith(tuple(f"{room}/" for room in rooms)) and path not in EDGE:
            found = words_in(path)
            read |= found.read
            written |= found.written
    return Words(frozenset(read), frozenset(written))


@cache
def words_in(path: str) -> Words:
    return words_of(nodes(path))


def words_of(found: Iterable[ast.AST]) -> Words:
    read, written = set[str](), set[str]()
    for node in found:
        if isinstance(node, ast.Attribute):
            (read if isinstance(node.ctx, ast.Load) else written).add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read.add(node.id)
        elif isinstance(node, ast.MatchClass):
            read |= set(node.kwd_attrs)
        elif isinstance(node, ast.keyword) and node.arg:
            written.add(node.arg)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("HasField", "WhichOneof"):
            read |= {word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)}
    return Words(frozenset(read), frozenset(written))


def messages_within(descriptor: Any, seen: set[str] | None = None) -> Iterator[Any]:
    """A message and those that it contains."""
    seen = set() if seen is None else seen
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    yield descriptor
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.full_name.startswith("baton."):
            yield from messages_within(field.message_type, seen)


def unread_fields(descriptor: Any, rooms: tuple[str, ...]) -> set[str]:
    known, found = words(rooms), set[str]()
    for message in messages_within(descriptor):
        for field in message.fields:
            is_envelope = field.containing_oneof is not None and field.containing_oneof.name == "message"
            name = field.message_type.name if is_envelope else field.name  # its class is received as a whole
            if message.name == "Tokens":
                name = COLUMNS.get(name, name)
            if name not in known.read:
                found.add(f"{message.full_name}.{field.name}")
    return found


def unwritten_fields(descriptor: Any, rooms: tuple[str, ...]) -> set[str]:
    known = words(rooms)
    return {
        f"{message.full_name}.{field.name}"
        for message in messages_within(descriptor)
        for field in message.fields
        if field.name not in known.written and field.name not in known.read  # filled in place: x.name.extend(...)
    }


def unkept(contracts: Iterable[Any] = CONTRACTS) -> set[str]:
    found = set[str]()
    for contract in contracts:
        for service in contract.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if method.full_name.startswith(PUBLIC):
                    found |= unread_fields(method.input_type, ("gateway",))
                    found |= unwritten_fields(method.output_type, ("gateway",))
                else:
                    server, caller = RECEIVERS[method.full_name]
                    found |= unread_fields(method.input_type, server) | unread_fields(method.output_type, caller)
    return found


def unread_keys(kind: type) -> set[str]:
    """Settings that no service reads, be it through a property of the configuration."""
    known = set(words(SERVICE_ROOMS).read)
    derived = {
        member.name: words_of(ast.walk(member)).read
        for path in CONFIG
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef) and member.name != "__post_init__"
    }
    for _ in derived:  # a property may read another
        for name, read in derived.items():
            if name in known:
                known |= read
    return {f"{kind.__name__}.{field.name}" for field in fields(kind) if field.name not in known}


def test_every_field_of_every_contract_is_read_by_its_receiver() -> None:
    assert unkept() - READ_OTHERWISE.keys() == set()


def test_every_message_of_the_contracts_travels_in_some_method() -> None:
    sent, defined = set[str](), set[str]()
    for contract in CONTRACTS:
        defined |= {message.full_name for message in contract.DESCRIPTOR.message_types_by_name.values()}
        for service in contract.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                for one in (method.input_type, method.output_type):
                    sent |= {message.full_name for message in messages_within(one)}
    assert defined - sent == set()


@pytest.mark.parametrize("kind", [GatewayConfig, PrefillConfig, DecodeConfig, MeshConfig])
def test_every_setting_is_read_by_a_service(kind: type) -> None:
    assert unread_keys(kind) == set()


def test_negative_control_an_invented_field_has_no_reader() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="invented.proto", package="baton.invented", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, name in enumerate(("address", "invented_by_this_test"), 1):
        message.field.add(name=name, number=number, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = pool.FindMessageTypeByName("baton.invented.Order")
    assert unread_fields(order, GATEWAY) == {"baton.invented.Order.invented_by_this_test"}
    assert unwritten_fields(order, ("gateway",)) >= {"baton.invented.Order.invented_by_this_test"}


def test_negative_control_an_invented_setting_has_no_reader() -> None:
    more = make_dataclass(
        "More", [("invented_by_this_test", int, 0)], bases=(GatewayConfig,), frozen=True, kw_only=True
    )
    assert unread_keys(more) == {"More.invented_by_this_test"}


def test_a_name_that_is_only_assigned_is_not_read() -> None:
    found = words_of(ast.walk(ast.parse("job.one = 1\nmake(two=2)\nprint(job.three)\ncheck.HasField('four')\n'five'")))
    assert {"one", "two"} <= found.written and {"one", "two", "five"}.isdisjoint(found.read)
    assert {"three", "four"} <= found.read
