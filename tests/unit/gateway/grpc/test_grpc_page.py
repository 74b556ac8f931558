"""docs/grpc.md lists every field of HTTP with its field of gRPC, and every field of gRPC."""

import re

from baton.inference.v1 import inference_pb2 as pb
from gateway.dialects.openai.types import ChatRequest, CompletionRequest, EmbeddingRequest, StreamOptions
from tests.unit.gateway.grpc_page import NONE, PAGE, names, paths, rows

PARTS = {
    "sampling": pb.SamplingOptions,
    "stop": pb.StopOptions,
    "chat": pb.Chat,
    "structured_output": pb.StructuredOutput,
}
# Fields of gRPC that no field of HTTP is, with the place where the page names them.
ALONE = {"emitted", "growing_tool_calls"}
CONTAINERS = {"sampling", "stop", "logprobs", "chat", "structured_output", "request", "form"}


def resolves(path: str) -> bool:
    """Whether the path leads to a field, from GenerateRequest or from the message that it begins with."""
    first, _, rest = path.partition(".")
    message = getattr(pb, first).DESCRIPTOR if first[0].isupper() else pb.GenerateRequest.DESCRIPTOR
    for name in (rest if first[0].isupper() else path).split("."):
        field = message.fields_by_name.get(name) if message is not None else None
        if field is None:
            return False
        message = field.message_type
    return True


def http_fields() -> set[str]:
    own = {*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__, *EmbeddingRequest.__struct_fields__}
    return own | {f"stream_options.{name}" for name in StreamOptions.__struct_fields__}


def test_every_field_of_http_has_a_row() -> None:
    listed = [name for row in rows("Requests") for name in names(row[0])]
    assert len(listed) == len(set(listed)) and set(listed) == http_fields()


def test_a_row_without_a_field_of_grpc_says_why() -> None:
    for http, grpc, why in rows("Requests"):
        assert (grpc == NONE) <= bool(why), http


def test_every_field_that_a_row_names_exists() -> None:
    starred = {
        "structured_output.response_format",
        "structured_output.structured_outputs",
        "chat.tool_choice.tool_choice",
    }
    named = [path for row in rows("Requests") if row[1] != NONE for path in paths(row)]
    assert [path for path in named if path not in starred and not resolves(path)] == []
    answers = [path for row in rows("Answers") for path in names(row[1]) if path[0].isupper()]
    assert answers and [path for path in answers if not resolves(path)] == []
    assert not resolves("sampling.heat") and not resolves("Choice.heat")


def test_every_field_of_grpc_stands_on_the_page() -> None:
    text = PAGE.read_text()
    told = {path.rpartition(".")[2] for row in rows("Requests") for path in paths(row)} | set(re.findall(r"\w+", text))
    messages = (pb.GenerateRequest, pb.StreamGenerateRequest, *PARTS.values())
    fields = {field.name for message in messages for field in message.DESCRIPTOR.fields} - CONTAINERS
    forms = {field.name for field in pb.StructuredOutput.DESCRIPTOR.oneofs_by_name["form"].fields}
    assert fields - forms - told == set()
    assert fields >= ALONE
