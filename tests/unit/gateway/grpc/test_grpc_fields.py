"""Answers over gRPC: reasoning, growing calls, usage, logprobs of the prompt; errors that name fields of this API."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.client import Client, request_of
from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc import reply
from mesh.errors import Internal, Unavailable
from tests.unit.gateway.public_grpc import CLASS, RICH_TEMPLATE, ask, details_of, events_of, serve

THOUGHT = "<think>\nné, 漢.\n</think>\n\n"
CALLS = "".join(
    f'<tool_call>\n{{"name": "add", "arguments": {{"a": {number}, "b": "né"}}}}\n</tool_call>' for number in (1, 2)
)
ADD = pb.Tool(name="add", parameters_json='{"type": "object", "properties": {"a": {"type": "integer"}}}')


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(RICH_TEMPLATE)
    return folder


def chat(content: str = "hi", **fields: Any) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role="user", content=content)], **fields)


def asked(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"chat": chat(), "sampling": {"seed": 4}} | fields))


async def streamed(stub: Any, request: pb.GenerateRequest, **options: Any) -> list[pb.StreamGenerateResponse]:
    message = pb.StreamGenerateRequest(request=request, **options)
    return [event async for event in stub.StreamGenerate(message)]


def deltas(events: list[pb.StreamGenerateResponse]) -> list[pb.Delta]:
    return [event.delta for event in events if event.HasField("delta")]


# ---- reasoning and tool calls


async def test_reasoning_comes_apart_from_the_text_and_can_be_left_out(stub: Any, core: Any) -> None:
    core.reply = f"{THOUGHT}Yes.".encode()
    (choice,) = (await stub.Generate(asked())).choices
    assert (choice.reasoning, choice.text) == ("né, 漢.", "Yes.")
    events = await streamed(stub, asked())
    assert "".join(delta.reasoning for delta in deltas(events)) == "né, 漢."
    assert events[-1].finished.usage.reasoning_tokens > 0
    without = await stub.Generate(asked(include_reasoning=False))
    assert (without.choices[0].text, without.choices[0].HasField("reasoning")) == ("Yes.", False)
    assert without.finished.usage == events[-1].finished.usage
    assert list(without.choices[0].token_ids) == list(choice.token_ids), "to continue, a client needs all of them"


@pytest.mark.parametrize("growing", [False, True])
async def test_reasoning_and_calls_continue_anywhere(stub: Any, core: Any, growing: bool) -> None:
    core.reply = f"{THOUGHT}Yes. {CALLS}".encode()
    request = asked(chat=chat(tools=[ADD]), request_id="r1")
    events = await streamed(stub, request, growing_tool_calls=growing)
    whole = deltas(events)
    assert joined(whole) == ("né, 漢.", "Yes. ", ['{"a": 1, "b": "né"}', '{"a": 2, "b": "né"}'])
    assert events[-2].choice_finished.reason == pb.FINISH_REASON_TOOL_CALLS
    request.numerics_class.CopyFrom(CLASS)
    for cut in range(0, len(whole), 1 if growing else 3):
        had = whole[:cut]
        del request.emitted[:]
        request.emitted.add(index=0, token_ids=[token for delta in had for token in delta.token_ids])
        rest = await streamed(stub, request, growing_tool_calls=growing)
        assert joined([*had, *deltas(rest)]) == joined(whole), cut
        assert rest[-2].choice_finished == events[-2].choice_finished


def joined(some: list[pb.Delta]) -> tuple[str, str, list[str]]:
    """Reasoning, text and the arguments of each call."""
    calls = [call.arguments_json for delta in some for call in delta.tool_calls]
    parts: dict[int, str] = {}
    for delta in some:
        for part in delta.tool_call_parts:
            assert (part.index in parts) != part.HasField("name"), "the first part has the name"
            parts[part.index] = parts.get(part.index, "") + part.arguments_json
    return "".join(delta.reasoning for delta in some), "".join(delta.text for delta in some), [*calls, *parts.values()]


async def test_growing_calls_leave_before_they_are_whole(stub: Any, core: Any) -> None:
    core.reply = CALLS.encode()
    grown = deltas(await streamed(stub, asked(chat=chat(tools=[ADD])), growing_tool_calls=True))
    whole = deltas(await streamed(stub, asked(chat=chat(tools=[ADD]))))
    assert sum(len(delta.tool_call_parts) for delta in grown) > 10 and not any(delta.tool_calls for delta in grown)
    assert [call.name for delta in whole for call in delta.tool_calls] == ["add", "add"]
    first = next(part for delta in grown for part in delta.tool_call_parts)
    assert (first.name, bool(first.id), first.index) == ("add", True, 0)


async def test_continuous_usage_counts_up_and_ends_with_the_whole(stub: Any, core: Any) -> None:
    events = await streamed(stub, ask(), continuous_usage=True)
    counts = [event.usage.completion_tokens for event in events if event.HasField("usage")]
    assert counts == sorted(counts) and counts[-1] == events[-1].finished.usage.completion_tokens == 12
    assert [event.HasField("usage") for event in events] == [False, *[True] * 13, False]
    assert not any(event.HasField("usage") for event in await streamed(stub, ask()))


# ---- the prompt


async def test_a_prompts_logprobs_come_in_parts_behind_started(
    stub: Any, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "_SCORED", 3)
    request = pb.GenerateRequest(text="abcdefgh", prompt_logprobs=2, return_prompt_token_ids=True)
    events = await events_of(stub, request)
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:5] == ["started", *["prompt_logprobs"] * 3, "delta"]
    assert list(events[0].started.prompt_token_ids) == [*b"abcdefgh"]
    parts = [event.prompt_logprobs for event in events[1:4]]
    assert [(part.position, len(part.token_ids), len(part.top_ids)) for part in parts] == [
        (1, 3, 6),
        (4, 3, 6),
        (7, 1, 2),
    ]
    whole = (await stub.Generate(request)).prompt_logprobs
    assert whole.position == 1 and [token for part in parts for token in part.token_ids] == [*b"bcdefgh"]
    assert list(whole.token_ids) == [*b"bcdefgh"] and list(whole.logprobs) == [-float(i) for i in range(1, 8)]
    assert list(whole.ranks) == list(range(7, 14)) and list(whole.top_logprobs) == [-0.25, -1.25] * 7
    assert not (await stub.Generate(ask())).HasField("prompt_logprobs")


async def test_a_prompt_of_one_token_has_no_logprob_and_says_so(stub: Any, core: Any) -> None:
    whole = await stub.Generate(ask(prompt_logprobs=0, stop=pb.StopOptions(max_tokens=0)))
    assert whole.HasField("prompt_logprobs") and not whole.prompt_logprobs.token_ids
    assert core.streams == [] and whole.finished.usage.completion_tokens == 0


async def test_chats_are_counted_as_they_are_computed(stub: Any, core: Any) -> None:
    own = chat(tools=[ADD], reasoning_effort="low", documents_json=['{"text": "d"}'])
    for special in (None, True):
        count = await stub.Tokenize(pb.TokenizeRequest(chat=own, add_special_tokens=special))
        await stub.Generate(asked(chat=own, add_special_tokens=special))
        assert list(count.token_ids) == list(core.streams[-1].choice.prompt)


# ---- errors


MESSAGES = [pb.ChatMessage(role="user", content="hi")]
REQUIRED, NONE = pb.TOOL_MODE_REQUIRED, pb.TOOL_MODE_NONE
OPEN = [*MESSAGES, pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="c", name="add")])]
WRONG: dict[str, tuple[pb.GenerateRequest, str]] = {
    "too many likeliest": (ask(prompt_logprobs=21), "prompt_logprobs"),
    "cut to nothing": (ask(truncate_prompt_tokens=0), "truncate_prompt_tokens"),
    "no such side": (ask(truncation_side=7), "truncation_side"),
    "special tokens around ids": (
        pb.GenerateRequest(token_ids={"ids": [1]}, add_special_tokens=True),
        "add_special_tokens",
    ),
    "white space without JSON": (
        ask(structured_output={"whitespace_pattern": " "}),
        "structured_output.whitespace_pattern",
    ),
    "white space in a regex": (
        ask(structured_output={"regex": "a", "disable_any_whitespace": True}),
        "structured_output",
    ),
    "a schema": (ask(structured_output={"json_schema": '{"type": 1}'}), "structured_output.json_schema.type"),
    "a form that nothing matches": (
        ask(structured_output={"json_schema": '{"enum": ["a"], "type": "integer"}'}),
        "structured_output.json_schema",
    ),
    "a form without end": (
        ask(structured_output={"json_object": True}, stop={"ignore_eos": True}),
        "stop.ignore_eos",
    ),
    "a choice without tools": (asked(chat=chat(tool_choice={"mode": REQUIRED})), "chat.tool_choice.mode"),
    "an unknown mode": (asked(chat=chat(tools=[ADD], tool_choice={"mode": 9})), "chat.tool_choice.mode"),
    "an unknown tool": (asked(chat=chat(tools=[ADD], tool_choice={"name": "sub"})), "chat.tool_choice.name"),
    "unknown allowed tools": (
        asked(chat=chat(tools=[ADD], tool_choice={"allowed_tools": {"names": ["add", "sub"]}})),
        "chat.tool_choice.allowed_tools.names[1]",
    ),
    "no allowed tools": (
        asked(chat=chat(tools=[ADD], tool_choice={"allowed_tools": {}})),
        "chat.tool_choice.allowed_tools.names",
    ),
    "allowed and none": (
        asked(chat=chat(tools=[ADD], tool_choice={"allowed_tools": {"mode": NONE, "names": ["add"]}})),
        "chat.tool_choice.allowed_tools.mode",
    ),
    "a strict schema": (
        asked(
            chat=chat(tools=[pb.Tool(name="add", strict=True, parameters_json='{"properties": {"a": {"moon": 1}}}')])
        ),
        "chat.tools[0].parameters_json.properties.a.moon",
    ),
    "an open message that ends": (
        asked(chat=pb.Chat(messages=MESSAGES, continue_final_message=True, add_generation_prompt=True)),
        "chat.continue_final_message",
    ),
    "an open message without text": (
        asked(chat=pb.Chat(messages=OPEN, continue_final_message=True, tools=[ADD])),
        "chat.messages[1].content",
    ),
    "a template of the client": (asked(chat=chat(template="{{ x")), "chat.template"),
    "a document": (asked(chat=chat(documents_json=["{}", "[]"])), "chat.documents_json[1]"),
    "reserved variables": (
        asked(chat=chat(template_arguments_json='{"tools": 1}')),
        "chat.template_arguments_json",
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_error_names_the_field_of_this_api(stub: Any, core: Any, name: str) -> None:
    request, field = WRONG[name]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
    (violation,) = details_of(refused.value)["BadRequest"].field_violations
    assert violation.field == field, violation
    assert violation.description.startswith(field) and core.streams == core.examinations == []


# ---- the client


async def test_the_client_continues_behind_the_prompts_logprobs(
    core: Any, assets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "_SCORED", 3)
    for fail_at, again in ((0, 1), (4, 0)):  # before the first token the prompt is scored again, behind it not
        other = type(core)(reply=core.reply, fail_at={fail_at: Unavailable("dying")})
        first, second = await serve(other, assets), await serve(core, assets)
        async with Client(first.address, second.address) as client:
            request = request_of("abcdefgh", prompt_logprobs=1, return_prompt_token_ids=True)
            events = [event async for event in client.stream(request, continuous_usage=True)]
        parts = [event.prompt_logprobs for event in events if event.HasField("prompt_logprobs")]
        assert [token for part in parts for token in part.token_ids] == [*b"bcdefgh"]
        assert bytes(token for delta in deltas(events) for token in delta.token_ids[:1] if token < 256) == core.reply
        assert len(core.examinations) == again and len(other.examinations) == 1
        core.examinations.clear()
        await first.close()
        await second.close()


async def test_the_client_tries_again_after_an_answer_that_broke_off_however_that_is_reported(
    core: Any, assets: Any
) -> None:
    core.fail_at = {5: Internal("a balancer lost its gateway")}
    server = await serve(core, assets)

    def repaired(choice: Any) -> Any:
        core.fail_at = {}
        return b"hello world"

    async with Client(server.address, patience_seconds=20) as client:
        parts = list[str]()
        async for text in client.stream_text("x", seed=1):
            parts.append(text)
            core.reply = repaired if len(parts) == 5 else core.reply
        assert "".join(parts) == "hello world"
        core.reply, core.fail_at = b"hello world", {0: Internal("a defect")}
        with pytest.raises(grpc.aio.AioRpcError, match="a defect"):
            await client.generate_text("x")
    await server.close()


async def test_the_options_of_a_request_find_their_place(core: Any) -> None:
    request = request_of(
        [1, 2],
        temperature=0.5,
        logit_bias={7: 1.5},
        bad_words=["no"],
        max_tokens=3,
        token_ids=[9],
        stop=["end"],
        cache_salt="s",
        prompt_logprobs=0,
        logprobs=pb.LogprobOptions(top=2),
    )
    assert request == pb.GenerateRequest(
        token_ids={"ids": [1, 2]},
        sampling={"temperature": 0.5, "logit_bias": {7: 1.5}, "bad_words": ["no"]},
        stop={"max_tokens": 3, "token_ids": [9], "strings": ["end"]},
        cache_salt="s",
        prompt_logprobs=0,
        logprobs={"top": 2},
    )
    assert request_of(chat()).chat == chat()
    with pytest.raises(TypeError, match="heat is no option"):
        request_of("x", heat=1)


async def test_a_prompt_is_cut_to_what_the_attached_workers_hold(stub: Any, core: Any) -> None:
    core.context_tokens = 100
    await stub.Generate(pb.GenerateRequest(text="x" * 300, truncate_prompt_tokens=-1, stop={"max_tokens": 12}))
    assert len(core.streams[-1].choice.prompt) == 88
