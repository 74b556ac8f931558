"""The contracts keep their promises to programs that were built against yesterday's."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[3] / "protos"
ENUM, MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_ENUM, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_protos", ROOT / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fresh(generator: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    generator.generate(out)
    return Path(out)


FOREIGN = "vllm"  # a package whose names are not ours to choose


def own(files: descriptor_pb2.FileDescriptorSet) -> descriptor_pb2.FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet(file=[file for file in files.file if file.package != FOREIGN])


def read(folder: Path) -> descriptor_pb2.FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet.FromString((folder / "descriptors.binpb").read_bytes())


def messages_of(parent: Any, name: str) -> Iterator[tuple[str, Any]]:
    for message in parent.message_type if hasattr(parent, "message_type") else parent.nested_type:
        yield f"{name}.{message.name}", message
        yield from messages_of(message, f"{name}.{message.name}")


def enums_of(file: Any) -> Iterator[tuple[str, Any]]:
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}", enum
    for name, message in messages_of(file, file.package):
        for enum in message.enum_type:
            yield f"{name}.{enum.name}", enum


def breaks(old: descriptor_pb2.FileDescriptorSet, new: descriptor_pb2.FileDescriptorSet) -> list[str]:
    """Lists what a program that speaks `old` would misread in `new`. New messages, fields and members are no break."""
    found: list[str] = []
    after = {name: message for file in new.file for name, message in messages_of(file, file.package)}
    after_enums = {name: enum for file in new.file for name, enum in enums_of(file)}
    after_rpcs = dict(rpcs_of(new))
    for file in old.file:
        for name, message in messages_of(file, file.package):
            if name not in after:
                found.append(f"{name} is gone")
                continue
            fields = {field.number: field for field in after[name].field}
            reserved = {n for each in after[name].reserved_range for n in range(each.start, each.end)}
            for field in message.field:
                now = fields.get(field.number)
                if now is None and field.number not in reserved:
                    found.append(f"{name}.{field.name} is gone and its number {field.number} is not reserved")
                elif now is not None and shape(now) != shape(field):
                    found.append(
                        f"{name}.{field.name} = {field.number} became {now.name}: {shape(field)} -> {shape(now)}"
                    )
        for name, enum in enums_of(file):
            numbers = {value.number: value.name for value in after_enums[name].value} if name in after_enums else {}
            found += [
                f"{name}.{value.name} = {value.number} became {numbers.get(value.number)}"
                for value in enum.value
                if numbers.get(value.number) != value.name
            ]
    found += [f"{name} became {after_rpcs.get(name)}" for name, rpc in rpcs_of(old) if after_rpcs.get(name) != rpc]
    return found


def shape(field: Any) -> tuple[Any, ...]:
    in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    return (field.name, field.type, field.type_name, field.label, field.proto3_optional, in_oneof)


def rpcs_of(files: descriptor_pb2.FileDescriptorSet) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for file in files.file:
        for service in file.service:
            for rpc in service.method:
                kind = (rpc.input_type, rpc.output_type, rpc.client_streaming, rpc.server_streaming)
                yield f"{file.package}.{service.name}.{rpc.name}", kind


def test_committed_code_equals_regeneration(fresh: Path, generator: ModuleType) -> None:
    made = {path.relative_to(fresh).as_posix(): path.read_bytes() for path in fresh.rglob("*") if path.is_file()}
    committed = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for pattern in ("baton/**/*_pb2*", "*.binpb")
        for path in ROOT.glob(pattern)
        if "__pycache__" not in path.parts
    }
    assert made.keys() == committed.keys()
    stale = [name for name in made if made[name] != committed[name]]
    assert not stale, f"run `make protos` and commit: {stale}"
    assert len(generator.sources()) == 6


def test_packages_are_versioned_and_lie_where_their_name_says() -> None:
    for file in own(read(ROOT)).file:
        assert re.fullmatch(r"baton\.(admin|inference|worker|kv|rpc)\.v[0-9]+", file.package)
        assert file.name.rpartition("/")[0] == file.package.replace(".", "/")


def test_enums_begin_with_unspecified() -> None:
    count = 0
    for file in own(read(ROOT)).file:
        for name, enum in enums_of(file):
            prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
            assert (enum.value[0].name, enum.value[0].number) == (f"{prefix}_UNSPECIFIED", 0), name
            assert all(value.name.startswith(f"{prefix}_") for value in enum.value), name
            count += 1
    assert count >= 5


def test_every_rpc_has_a_request_and_a_response_type_of_its_own() -> None:
    rpcs = list(rpcs_of(own(read(ROOT))))
    used = [kind for _, (request, response, *_) in rpcs for kind in (request, response)]
    assert len(used) == len(set(used)) == 2 * len(rpcs)
    for name, (request, response, *_) in rpcs:
        method = name.rpartition(".")[2]
        assert request.endswith(f".{method}Request"), name
        assert response.endswith(f".{method}Response"), name


def test_every_public_scalar_is_optional() -> None:
    public = [file for file in read(ROOT).file if file.package in ("baton.admin.v1", "baton.inference.v1")]
    assert len(public) == 2
    for name, message in (each for file in public for each in messages_of(file, file.package)):
        if message.options.map_entry:
            continue  # an entry without its value has the value 0, as one that says so
        for field in message.field:
            repeated = field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            assert repeated or field.HasField("oneof_index"), f"{name}.{field.name} cannot be absent"


def test_no_field_was_renumbered_or_retyped_since_the_committed_descriptors(fresh: Path) -> None:
    assert breaks(read(ROOT), read(fresh)) == []


def field_of(files: descriptor_pb2.FileDescriptorSet, message: str, field: str) -> Any:
    (found,) = (
        item
        for file in files.file
        for name, each in messages_of(file, file.package)
        if name == message
        for item in each.field
        if item.name == field
    )
    return found


def test_the_comparison_notices_every_kind_of_break() -> None:
    old = read(ROOT)
    for number, damage in enumerate(
        (
            lambda files: setattr(field_of(files, "baton.worker.v1.Job", "prompt"), "number", 77),
            lambda files: setattr(field_of(files, "baton.worker.v1.Job", "prompt"), "type", 4),
            lambda files: setattr(field_of(files, "baton.worker.v1.Job", "prompt"), "name", "text"),
            lambda files: setattr(field_of(files, "baton.worker.v1.Job", "salt"), "proto3_optional", True),
            lambda files: files.file[0].message_type.pop(),
            lambda files: next(file for file in files.file if file.enum_type).enum_type[0].value.pop(),
            lambda files: setattr(files.file[0].service[0].method[-1], "server_streaming", True),
        )
    ):
        new = read(ROOT)
        damage(new)
        assert breaks(old, new), f"damage {number} went unnoticed"
        assert breaks(old, old) == []
