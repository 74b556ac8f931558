"""A mesh of real processes for `bench.handoff`: one prefill worker, one decode worker, a gateway, and a client that
stays connected. The times of a run come from the request's own trace, whose spans share one clock on one host."""

import asyncio
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2, inference_pb2_grpc
from bench.handoff_figures import MeshRun
from bench.handoff_prefill import LINE_BYTES
from cli.connecting.health import get_json
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.supervisor import OnLine, Service
from mesh.telemetry import semconv

TRACE_SECONDS = 10.0
QUIET_SECONDS = 0.4  # after a run, so that the export of its spans slows no pair down
MAX_TOKENS = 2  # one by prefill, one by decode


@dataclass(frozen=True, slots=True)
class Sent:
    """A run whose spans may not have arrived yet."""

    request_id: str
    first_token_ms: float


class Mesh:
    def __init__(
        self,
        http_address: str,
        stub: inference_pb2_grpc.InferenceServiceStub,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._http_address, self._stub, self._reader, self._writer = http_address, stub, reader, writer
        self._loop = asyncio.get_running_loop()

    async def about(self, prompt_tokens: int) -> dict[str, int]:
        """Sizes that the prefill worker reports; `layer_group` is that of the prompt's last chunk."""
        return dict(json.loads(await self._control("about", prompt_tokens)))

    async def single_ms(self, tokens: Sequence[int]) -> float:
        """Milliseconds until the first token, in the prefill worker's process but without the mesh."""
        answer = await self._control("compute", list(tokens))
        await asyncio.sleep(QUIET_SECONDS)
        return float(answer) * 1000

    async def throttle(self, bytes_per_second: float) -> None:
        """Set the rate of pushes over TCP; something must have been pushed before."""
        await self._control("throttle", bytes_per_second)

    async def send(self, tokens: Sequence[int]) -> Sent:
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=tokens))
        request.sampling.temperature = 0
        request.stop.max_tokens = MAX_TOKENS
        request.stop.ignore_eos = True
        request_id = secrets.token_hex(16)
        metadata = (("x-request-id", request_id),)
        began, first = self._loop.time(), None
        call = self._stub.StreamGenerate(inference_pb2.StreamGenerateRequest(request=request), metadata=metadata)
        async for event in call:
            if first is None and event.WhichOneof("event") == "delta":
                first = self._loop.time()
        if first is None:
            raise RuntimeError("an answer ended without a token")
        await asyncio.sleep(QUIET_SECONDS)
        return Sent(request_id, (first - began) * 1000)

    async def result(self, sent: Sent) -> MeshRun:
        return measure(await needed_spans(self._http_address, sent.request_id), sent.first_token_ms)

    async def _control(self, verb: str, argument: float | list[int]) -> bytes:
        self._writer.write(json.dumps({verb: argument}).encode() + b"\n")
        line = await self._reader.readline()
        if not line:
            raise RuntimeError("the prefill worker is gone")
        return line


NEEDED = (semconv.COMPUTE, semconv.KV_SEND, semconv.KV_RECEIVE)

JsonSpan = dict[str, Any]


async def needed_spans(http_address: str, request_id: str) -> dict[str, JsonSpan]:
    """The spans of a request that say how its hand-off went, from the gateway's own record of it."""
    loop = asyncio.get_running_loop()
    deadline, spans = loop.time() + TRACE_SECONDS, dict[str, JsonSpan]()
    while loop.time() < deadline:
        answer = await get_json(http_address, f"/debug/requests/{request_id}")
        spans = {span["name"]: span for span in (answer or {}).get("spans", ()) if span["name"] in NEEDED}
        if len(spans) == len(NEEDED):
            return spans
        await asyncio.sleep(0.1)
    raise RuntimeError(f"of a request's trace only {sorted(spans)} arrived in {TRACE_SECONDS} s")


def measure(spans: dict[str, JsonSpan], first_token_ms: float) -> MeshRun:
    compute, send, receive = (spans[name] for name in NEEDED)
    sent = send["attributes"]
    computed_ms = compute["start_ms"] + compute["duration_ms"]
    return MeshRun(
        first_token_ms=first_token_ms,
        compute_ms=compute["duration_ms"],
        exposed_ms=receive["start_ms"] + receive["duration_ms"] - computed_ms,
        bytes=int(sent[semconv.KV_BYTES]),
        bytes_before_first=round(sent[semconv.KV_BYTES] * sent[semconv.KV_HIDDEN]),
    )


@asynccontextmanager
async def running(
    model: Path, cache: Path, *, threads: int, transport: str, bytes_per_second: float | None, on_line: OnLine
) -> AsyncIterator[Mesh]:
    settings = {
        "model": str(model),
        "cache_folder": str(cache),
        "gateway.local": "never",
        "worker.threads": str(threads),
        "worker.transports": transport,
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
    }
    with tempfile.TemporaryDirectory(prefix="baton-handoff-") as folder:
        control = Path(folder) / "control"
        changed = partial(with_control, control=control, bytes_per_second=bytes_per_second)
        async with own_mesh(settings, on_line=on_line, changed=changed) as gateway:
            reader, writer = await asyncio.open_unix_connection(control, limit=LINE_BYTES)
            async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
                yield Mesh(gateway.http_address, inference_pb2_grpc.InferenceServiceStub(channel), reader, writer)
            writer.close()


def with_control(service: Service, control: Path, bytes_per_second: float | None) -> Service:
    """Replace prefill's `python -m cli serve prefill OPTIONS` by `bench.handoff_prefill` with the same options."""
    if service.name != "prefill-0":
        return service
    options = ["--control", str(control)]
    if bytes_per_second is not None:
        options += ["--bytes-per-second", str(bytes_per_second)]
    return replace(service, arguments=("-m", "bench.handoff_prefill", *options, *service.arguments[4:]))
