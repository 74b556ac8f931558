"""`baton generate`: completes one prompt on a running mesh, and prints the text or, with --json, one JSON object."""

import asyncio
import sys
from typing import Annotated, Any

import typer

from baton.inference.v1 import inference_pb2
from cli.clients.client import chat_request, finish_name, sampling, stream
from cli.connecting.tls_options import ConfigFile, TlsCa, TlsCertificate, TlsKey, TlsName, client_config
from cli.errors import readable_errors
from cli.output import emit_json, write, write_reasoning
from mesh.network.tls import TlsFiles, tls_files

Address = Annotated[str, typer.Option("--grpc", "--address", help="gRPC address of a gateway.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, help="Sampling temperature: 0 is greedy; the default is the model's own.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling: equal seeds give equal answers.")]
Model = Annotated[str | None, typer.Option(help="Name of the model; needed where the gateway serves several.")]


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    address: Address = "127.0.0.1:50051",
    max_tokens: MaxTokens = 64,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    config: ConfigFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_name: TlsName = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt as a user's message of a chat.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with text, tokens, seed and usage.")
    ] = False,
) -> None:
    """Complete one prompt on a running mesh.

    Example: baton generate "Once upon a time" --max-tokens 32 --temperature 0
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    request = chat_request([("user", text)]) if chat else inference_pb2.GenerateRequest(text=text)
    sampling(request, max_tokens=max_tokens, temperature=temperature, seed=seed)
    if model is not None:
        request.model = model
    with readable_errors():
        tls = tls_files(client_config(config, tls_certificate, tls_key, tls_ca, tls_name))
        answer = asyncio.run(_collect(address, request, tls, show=not json))
    if json:
        emit_json(answer)


async def _collect(
    address: str, request: inference_pb2.GenerateRequest, tls: TlsFiles | None, *, show: bool
) -> dict[str, Any]:
    answer: dict[str, Any] = {"text": "", "token_ids": [], "finish_reason": None}
    async for event in stream(address, request, tls):
        match event.WhichOneof("event"):
            case "started":
                answer["seed"] = event.started.seed
                answer["class"] = event.started.numerics_class.name
                answer["fingerprint"] = event.started.numerics_class.fingerprint
                answer["request_id"] = event.started.request_id
            case "delta":
                answer["text"] += event.delta.text
                answer["token_ids"] += event.delta.token_ids
                if event.delta.reasoning:
                    answer["reasoning"] = answer.get("reasoning", "") + event.delta.reasoning
                if show:
                    if event.delta.reasoning:
                        write_reasoning(event.delta.reasoning)
                    write(event.delta.text)
            case "choice_finished":
                answer["finish_reason"] = finish_name(event.choice_finished.reason)
            case "finished":
                usage = event.finished.usage
                answer["usage"] = {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "cached_tokens": usage.cached_tokens,
                    "drafted_tokens": usage.drafted_tokens,
                    "accepted_tokens": usage.accepted_tokens,
                }
    if show:
        write("\n")
    return answer
