"""`generate` and the parts under it against a small real gRPC server that stands in for the gateway."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from baton.inference.v1 import inference_pb2, inference_pb2_grpc
from cli.client import chat_request, sampling, stream
from cli.errors import MeshError
from cli.main import build


class Echo(inference_pb2_grpc.InferenceServiceServicer):
    """Answers with the prompt's words, or refuses an empty prompt."""

    def __init__(self) -> None:
        self.requests: list[inference_pb2.GenerateRequest] = []

    async def StreamGenerate(self, wrapped: Any, context: Any) -> AsyncIterator[inference_pb2.StreamGenerateResponse]:
        request = wrapped.request
        self.requests.append(request)
        text = request.text if request.WhichOneof("prompt") == "text" else request.chat.messages[-1].content
        if not text:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt: is empty")
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
        yield inference_pb2.StreamGenerateResponse(finished=inference_pb2.Finished(usage=usage))


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
    result = CliRunner().invoke(build("generate"), ["generate", "once upon a time", "--address", echo[0]])
    assert (result.exit_code, result.stdout) == (0, "once upon a time \n")


def test_generate_answers_a_program_with_one_json_object(echo: tuple[str, Echo]) -> None:
    arguments = ["generate", "a b", "--address", echo[0], "--json", "--seed", "9", "--temperature", "0"]
    result = CliRunner().invoke(build("generate"), arguments)
    assert json.loads(result.stdout) == {
        "text": "a b ",
        "token_ids": [0, 1],
        "finish_reason": "length",
        "seed": 9,
        "class": "echo",
        "fingerprint": "f00d",
        "request_id": "r1",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0},
    }


def test_what_was_not_asked_for_stays_the_servers_default(echo: tuple[str, Echo]) -> None:
    CliRunner().invoke(build("generate"), ["generate", "a", "--address", echo[0]])
    (request,) = echo[1].requests
    assert request.stop.max_tokens == 64
    assert not request.sampling.HasField("temperature") and not request.sampling.HasField("seed")


def test_a_chat_sends_every_turn_so_far(echo: tuple[str, Echo]) -> None:
    arguments = ["chat", "--address", echo[0], "--system", "be brief"]
    result = CliRunner().invoke(build("chat"), arguments, input="hello there\n\nand now\n")
    assert result.exit_code == 0 and "hello there" in result.stdout
    roles = [(message.role, message.content) for message in echo[1].requests[-1].chat.messages]
    assert roles == [
        ("system", "be brief"),
        ("user", "hello there"),
        ("assistant", "hello there "),
        ("user", "and now"),
    ]


async def test_a_refusal_keeps_its_code_and_words(echo: tuple[str, Echo]) -> None:
    request = sampling(chat_request([("user", "")]), max_tokens=1, temperature=None, seed=None)
    with pytest.raises(MeshError, match="INVALID_ARGUMENT: prompt: is empty"):
        async for _ in stream(echo[0], request):
            pass
