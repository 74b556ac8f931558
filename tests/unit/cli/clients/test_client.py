"""`generate` and the parts under it against a small real gRPC server that stands in for the gateway."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status
from typer.testing import CliRunner

from baton.inference.v1 import inference_pb2, inference_pb2_grpc
from cli.clients.chat import LAST_WORDS, Conversation
from cli.clients.client import chat_request, sampling, stream
from cli.errors import MeshError
from cli.main import build
from gateway.grpc.errors import status_of
from mesh.errors import ContextTooLong, InvalidRequest
from tests.harness.small_http import small_server


class Echo(inference_pb2_grpc.InferenceServiceServicer):
    """Answers with the prompt's words, or refuses an empty prompt. "call TOOL TIER" calls a tool if it is offered."""

    def __init__(self) -> None:
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.takes_tools = True
        self.context = 0  # most messages of a chat; 0: any number

    async def StreamGenerate(self, wrapped: Any, context: Any) -> AsyncIterator[inference_pb2.StreamGenerateResponse]:
        request = wrapped.request
        self.requests.append(request)
        if request.chat.tools and not self.takes_tools:
            status = status_of(InvalidRequest("chat.tools", "tools: no"), "r1")
            await context.abort_with_status(rpc_status.to_status(status))
        text = request.text if request.WhichOneof("prompt") == "text" else request.chat.messages[-1].content
        if self.context and len(request.chat.messages) > self.context:
            status = status_of(ContextTooLong("chat.messages", "chat.messages has too many"), "r1")
            await context.abort_with_status(rpc_status.to_status(status))
        if not text:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt: is empty")
        if text.startswith("call ") and request.chat.tools:
            _, name, tier = text.split(" ")
            call = inference_pb2.ToolCall(id="c1", name=name, arguments_json=json.dumps({"tier": tier}))
            yield inference_pb2.StreamGenerateResponse(delta=inference_pb2.Delta(tool_calls=[call]))
            return
        numerics = inference_pb2.NumericsClass(name="echo", fingerprint="f00d")
        started = inference_pb2.Started(seed=request.sampling.seed, numerics_class=numerics, request_id="r1")
        yield inference_pb2.StreamGenerateResponse(started=started)
        words = text.split(" ")
        for position, word in enumerate(words):
            delta = inference_pb2.Delta(index=0, token_ids=[position], text=word + " ", position=position)
            yield inference_pb2.StreamGenerateResponse(delta=delta)
        stopped = inference_pb2.ChoiceFinished(index=0, reason=inference_pb2.FINISH_REASON_LENGTH)
        yield inference_pb2.StreamGenerateResponse(choice_finished=stopped)
        usage = inference_pb2.Usage(prompt_tokens=3, completion_tokens=len(words), cached_tokens=0)
        usage.drafted_tokens, usage.accepted_tokens = 4, 1
        yield inference_pb2.StreamGenerateResponse(finished=inference_pb2.Finished(usage=usage))


@pytest.fixture
def health_address() -> Iterator[str]:
    """Answers every GET as a gateway with three decode workers does."""

    with small_server(lambda target: (200, {"status": "ok", "prefill": 1, "decode": 3})) as address:
        yield address


@pytest.fixture
def echo() -> Iterator[tuple[str, Echo]]:
    """In a thread with a loop of its own: the command line runs its own loop in this one."""
    service, loop, address = Echo(), asyncio.new_event_loop(), ""

    async def start() -> tuple[str, grpc.aio.Server]:
        server = grpc.aio.server()
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return f"127.0.0.1:{port}", server

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    address, server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield address, service
    asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_generate_prints_the_answer_as_it_comes(echo: tuple[str, Echo]) -> None:
    result = CliRunner().invoke(build("generate"), ["generate", "once upon a time", "--grpc", echo[0]])
    assert (result.exit_code, result.stdout) == (0, "once upon a time \n")


def test_generate_answers_a_program_with_one_json_object(echo: tuple[str, Echo]) -> None:
    arguments = ["generate", "a b", "--grpc", echo[0], "--json", "--seed", "9", "--temperature", "0"]
    result = CliRunner().invoke(build("generate"), arguments)
    assert json.loads(result.stdout) == {
        "text": "a b ",
        "token_ids": [0, 1],
        "finish_reason": "length",
        "seed": 9,
        "class": "echo",
        "fingerprint": "f00d",
        "request_id": "r1",
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "cached_tokens": 0,
            "drafted_tokens": 4,
            "accepted_tokens": 1,
        },
    }


def test_an_http_address_is_told_from_an_address_without_a_mesh(health_address: str, refusing_address: str) -> None:
    """The port of the HTTP API and a port on which no process listens."""
    wrong = CliRunner().invoke(build("generate"), ["generate", "a", "--address", health_address])
    assert wrong.exit_code == 1 and f"{health_address} speaks HTTP, not gRPC" in wrong.output
    closed = CliRunner().invoke(build("generate"), ["generate", "a", "--address", refusing_address])
    assert closed.exit_code == 1 and "start one with `baton up`" in closed.output and "HTTP" not in closed.output


def test_options_that_were_not_given_keep_the_servers_defaults(echo: tuple[str, Echo]) -> None:
    CliRunner().invoke(build("generate"), ["generate", "a", "--grpc", echo[0]])
    (request,) = echo[1].requests
    assert request.stop.max_tokens == 64
    assert not request.sampling.HasField("temperature") and not request.sampling.HasField("seed")


def chat(echo: tuple[str, Echo], *arguments: str, said: str) -> tuple[str, list[tuple[str, str]]]:
    """The output of a chat, and the last conversation that it sent."""
    result = CliRunner().invoke(build("chat"), ["chat", "--grpc", echo[0], *arguments], input=said)
    assert result.exit_code == 0, result.output
    return result.output, [(message.role, message.content) for message in echo[1].requests[-1].chat.messages]


def test_a_chat_sends_every_turn_so_far(echo: tuple[str, Echo]) -> None:
    shown, sent = chat(echo, "--system", "be brief", said="hello there\n\nand now\n")
    assert "hello there" in shown
    assert sent == [
        ("system", "be brief"),
        ("user", "hello there"),
        ("assistant", "hello there "),
        ("user", "and now"),
    ]


def test_a_call_runs_in_the_client_and_its_result_goes_to_the_model(
    echo: tuple[str, Echo], health_address: str
) -> None:
    shown, sent = chat(echo, "--http", health_address, said="call mesh_status decode\n")
    result = '{"tier": "decode", "workers": 3, "status": "ready"}'
    assert sent == [("user", "call mesh_status decode"), ("assistant", ""), ("tool", result)]
    assert result in shown and result.replace(" ", "") in shown.replace(" ", "")
    (call,) = echo[1].requests[-1].chat.messages[1].tool_calls
    assert echo[1].requests[-1].chat.messages[2].tool_call_id == call.id == "c1"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("call mesh_status decode", "no gateway that can serve answers"),
        ("call mesh_status moon", "takes a tier"),
        ("call other decode", "takes a tier"),
    ],
)
def test_the_error_of_a_failed_call_goes_to_the_model(
    echo: tuple[str, Echo], refusing_address: str, said: str, error: str
) -> None:
    _, sent = chat(echo, "--http", refusing_address, said=f"{said}\n")
    assert sent[-1][0] == "tool" and error in json.loads(sent[-1][1])["error"]


def test_the_conversation_with_a_model_that_takes_no_tools_continues_without_them(echo: tuple[str, Echo]) -> None:
    echo[1].takes_tools = False
    shown, sent = chat(echo, said="hello there\nagain\n")
    assert "takes no tools" in shown and "hello there" in shown
    assert sent == [("user", "hello there"), ("assistant", "hello there "), ("user", "again")]
    assert [bool(request.chat.tools) for request in echo[1].requests] == [True, False, False]


def test_a_chat_without_the_tool_offers_none(echo: tuple[str, Echo]) -> None:
    chat(echo, "--no-tool", said="call mesh_status decode\n")
    assert not echo[1].requests[-1].chat.tools


def test_a_full_context_forgets_the_oldest_turns_and_keeps_the_system_message(echo: tuple[str, Echo]) -> None:
    echo[1].context = 4
    shown, sent = chat(echo, "--no-tool", "--system", "be brief", said="one\ntwo\nthree\n")
    assert shown.count("the oldest turn is forgotten") == 1
    assert sent == [("system", "be brief"), ("user", "two"), ("assistant", "two "), ("user", "three")]


def test_a_question_that_is_refused_is_withdrawn_and_the_chat_goes_on(echo: tuple[str, Echo]) -> None:
    echo[1].context = 2
    _, sent = chat(echo, "--no-tool", "--system", "be brief", said="one\ntwo\n")
    assert sent == [("system", "be brief"), ("user", "two")]
    echo[1].context = 1
    result = CliRunner().invoke(build("chat"), ["chat", "--grpc", echo[0], "--system", "x"], input="one\n")
    assert result.exit_code == 1 and "shorten it" in result.output


@pytest.mark.parametrize("word", LAST_WORDS)
def test_a_person_is_told_how_to_leave_and_a_last_word_is_no_question(echo: tuple[str, Echo], word: str) -> None:
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "cli", "chat", "--grpc", echo[0]]
    with subprocess.Popen(command, stdin=end, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        os.write(terminal, f"{word}\n".encode())
        _, said = running.communicate(timeout=30)
    os.close(terminal)
    os.close(end)
    assert running.returncode == 0 and "Ctrl-D or /exit ends it" in said and not echo[1].requests


@pytest.mark.parametrize(("words", "kept"), [(["half ", "an"], [("user", "one"), ("assistant", "half an")]), ([], [])])
def test_an_interrupted_answer_is_kept_as_far_as_it_came(
    monkeypatch: pytest.MonkeyPatch, words: list[str], kept: list[tuple[str, str]]
) -> None:
    async def interrupted(*_: Any) -> AsyncIterator[inference_pb2.StreamGenerateResponse]:
        for word in words:
            yield inference_pb2.StreamGenerateResponse(delta=inference_pb2.Delta(text=word))
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.clients.chat.stream", interrupted)
    conversation = Conversation("", "", None, 8, None, None, tools=[])
    conversation.ask("one")
    assert [(message.role, message.content) for message in conversation.messages] == kept


async def test_a_refusal_keeps_its_code_and_words(echo: tuple[str, Echo]) -> None:
    request = sampling(chat_request([("user", "")]), max_tokens=1, temperature=None, seed=None)
    with pytest.raises(MeshError, match="INVALID_ARGUMENT: prompt: is empty"):
        async for _ in stream(echo[0], request):
            pass
