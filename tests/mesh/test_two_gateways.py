"""Two gateways of one mesh: a client that loses its gateway continues on the other, operators watch and drain."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from baton.admin.v1 import admin_pb2 as admin
from baton.admin.v1 import admin_pb2_grpc as admin_grpc
from baton.client import Client, request_of
from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from cli.connecting.health import health
from cli.local_mesh.ports import free_address
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder
from tests.harness.orders import Orders
from tests.harness.process import START_SECONDS, ServiceProcess

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")
TOKENS = 200


class TwoGateways:
    def __init__(self, folder: Path) -> None:
        self.ports = [{name: free_address() for name in ("http", "grpc", "worker")} for _ in range(2)]
        workers = ",".join(ports["worker"] for ports in self.ports)
        common = {"model": str(folder), "served_name": "random", "worker.gateways": workers, "gateway.local": "never"}
        self.gateways = [
            self._service("gateway", f"gateway-{number}", common | own)
            for number, ports in enumerate(self.ports)
            for own in [{f"gateway.{name}_address": address for name, address in ports.items()}]
        ]
        self.workers = [
            self._service(tier, name, common | {f"{tier}.name": name})
            for tier, name in (("prefill", "prefill-0"), ("decode", "decode-0"), ("decode", "decode-1"))
        ]

    def _service(self, tier: str, name: str, settings: dict[str, str]) -> ServiceProcess:
        return ServiceProcess(name, Orders(tier=tier, settings=settings, parent=os.getpid()))

    @property
    def addresses(self) -> list[str]:
        return [ports["grpc"] for ports in self.ports]

    async def attached(self, number: int, decodes: int) -> None:
        async with asyncio.timeout(START_SECONDS):
            while (seen := await health(self.ports[number]["http"])) is None or (
                (seen.get("prefill"), seen.get("decode")) != (1, decodes)
            ):
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[TwoGateways]:
    mesh = TwoGateways(await asyncio.to_thread(ensure_random, default_cache_folder()))
    try:
        for gateway in mesh.gateways:
            await gateway.start()
        await asyncio.gather(*(worker.start() for worker in mesh.workers))
        for number in range(2):
            await mesh.attached(number, 2)
        yield mesh
    finally:
        await asyncio.gather(*(service.stop() for service in (*mesh.gateways, *mesh.workers)))


@in_one_loop
async def test_a_model_is_listed_with_the_hash_of_its_weights(mesh: TwoGateways) -> None:
    async with grpc.aio.insecure_channel(mesh.addresses[0]) as channel:
        stub: Any = pb_grpc.ModelServiceStub(channel)
        (model,) = (await stub.ListModels(pb.ListModelsRequest())).models
    assert (model.name, model.root) == ("random", "random") and len(model.model_hash) == 64 and model.context_tokens > 0


@in_one_loop
async def test_operators_see_every_worker_and_drain_one(mesh: TwoGateways) -> None:
    async with grpc.aio.insecure_channel(mesh.ports[0]["worker"]) as channel:
        stub: Any = admin_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        load = stub.WatchLoad(admin.WatchLoadRequest(interval_seconds=0.1))
        first = await load.read()
        assert (first.prefill_workers, first.decode_workers) == (1, 2) and first.total_pages > 0
        topology = stub.WatchTopology(admin.WatchTopologyRequest())
        workers = {worker.name: worker for worker in (await topology.read()).snapshot.workers}
        assert set(workers) == {"prefill-0", "decode-0", "decode-1"}
        assert (workers["decode-1"].tier, workers["decode-1"].model) == ("decode", "random") and len(
            workers["decode-1"].model_hash
        ) == 64
        with pytest.raises(grpc.aio.AioRpcError, match=r"is no attached worker; attached: .*decode-0 at 127"):
            await stub.Drain(admin.DrainRequest(worker="decode-7"))
        with pytest.raises(grpc.aio.AioRpcError, match=r"interval_seconds must be from 0\.1 to 60"):
            await stub.WatchLoad(admin.WatchLoadRequest(interval_seconds=0.0)).read()
        pages = {each.worker: each for each in (await stub.Pages(admin.PagesRequest(count=9))).workers}
        assert set(pages) == set(workers) and all(each.answered for each in pages.values())
        assert all(
            sum(each.states.values()) == first.total_pages // 2 for each in pages.values() if each.tier == "decode"
        )
        assert sum(run.pages for run in pages["decode-0"].runs) == 9
        before = (await stub.Drain(admin.DrainRequest(worker="decode-1"))).worker
        assert before.name == "decode-1" and not before.draining
        event = await topology.read()
        assert event.WhichOneof("event") == "draining" and event.draining.name == "decode-1"
        async with asyncio.timeout(30):
            while (await load.read()).decode_workers != 1:
                pass
        topology.cancel()
        load.cancel()
    seen = await health(mesh.ports[1]["http"])  # the worker told the other gateway, too
    assert seen is not None and seen["decode"] == 1


@in_one_loop
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
async def test_answers_go_on_at_the_other_gateway_when_the_first_ends(mesh: TwoGateways, way: signal.Signals) -> None:
    options: dict[str, Any] = {"max_tokens": TOKENS, "min_tokens": TOKENS, "temperature": 0.9, "prompt_logprobs": 1}
    requests = [
        request_of("Once upon a time", seed=seed, n=1 + seed % 2, logprobs=pb.LogprobOptions(top=2), **options)
        for seed in range(4)
    ]
    async with Client(mesh.addresses[1]) as other:
        expected = await asyncio.gather(*(received(other, request) for request in requests))
    begun = asyncio.Semaphore(0)
    async with Client(*mesh.addresses) as client:
        answers = [asyncio.create_task(received(client, request, begun)) for request in requests]
        for _ in requests:
            await begun.acquire()
        mesh.gateways[0].send_signal(way)
        assert await asyncio.gather(*answers) == expected
    await mesh.gateways[0].stop()
    await mesh.gateways[0].start()
    seen = await health(mesh.ports[1]["http"])
    assert seen is not None
    await mesh.attached(0, seen["decode"])


async def received(client: Client, request: pb.GenerateRequest, begun: asyncio.Semaphore | None = None) -> Any:
    """Text, tokens, bits of the logprobs, and the end of each choice; and the logprobs of the prompt."""
    found = dict[int, list[Any]]()
    prompt = list[float]()
    async with aclosing(client.stream(request, timeout_seconds=120)) as events:
        async for event in events:
            prompt += event.prompt_logprobs.logprobs
            if event.HasField("choice_finished"):
                found[event.choice_finished.index].append(event.choice_finished)
            if event.HasField("delta"):
                if begun is not None and not found:
                    begun.release()
                parts = found.setdefault(event.delta.index, ["", [], []])
                parts[0] += event.delta.text
                parts[1] += event.delta.token_ids
                parts[2] += [(each.logprob, *each.top_logprobs) for each in event.delta.logprobs]
    assert all(len(parts[1]) == len(parts[2]) == TOKENS for parts in found.values())
    return found, prompt
