"""A mesh of real processes with the token that `baton up` draws: a stranger at any port gets nothing and harms nobody.

The stranger knows all that is no secret: addresses, incarnations, the protocol. A member with the token that says
nonsense of itself is refused by the name of the field."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import grpc
import pytest
import pytest_asyncio

from baton.admin.v1 import admin_pb2, admin_pb2_grpc
from cli.connecting.health import health
from cli.local_mesh.drawn_token import drawn_token
from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from mesh.config.services import MeshConfig
from mesh.config.settings import read_settings
from mesh.messages.jobs import Tier
from mesh.messages.message import Message
from mesh.messages.orders import Open
from mesh.messages.reports import Hello, Load, PrefixChange, Register
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.grpc_stats import read_stats
from mesh.network.interface import Channel, Listening, Stream, StreamClosed
from mesh.network.mesh_token import MeshToken
from mesh.rules import RULES
from mesh.sessions.session import Session
from tests.harness.client import MeshClient, Seen, TokenRequest

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")

START_SECONDS = 120.0
LOAD = Load(free_pages=1 << 20, total_pages=1 << 20, tokens_per_second=1e6, local_tokens_per_second=1e6)


@dataclass
class RunningMesh:
    config: MeshConfig
    token: MeshToken | None
    lines: list[str] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=dict)  # addresses by tier

    def read(self, name: str, line: str) -> None:
        self.lines.append(f"{name} {line}")
        if found := re.search(r"(prefill|decode) ready at (\S+) class", line):
            self.workers[found[1]] = found[2]

    @property
    def registry(self) -> str:
        return self.config.gateway.worker_address

    async def known(self) -> dict[str, admin_pb2.Worker]:
        """The workers by tier, as an operator sees them."""
        return {worker.tier: worker for worker in await self.workers_once(2)}

    async def workers_once(self, count: int) -> list[admin_pb2.Worker]:
        """All workers, once the gateway knows at least so many."""
        async with grpc.aio.insecure_channel(self.registry) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            shown = self.token.metadata if self.token else ()
            while True:
                call = stub.WatchTopology(admin_pb2.WatchTopologyRequest(), metadata=shown)
                async for event in call:
                    if len(seen := list(event.snapshot.workers)) >= count:
                        return seen
                    call.cancel()
                    break
                await asyncio.sleep(0.05)

    async def tokens(self, count: int) -> list[int]:
        """Number of tokens of each of so many answers."""
        client = MeshClient(self.config.gateway.grpc_address)
        prompts = [tuple(range(33 + number, 97 + number)) for number in range(count)]
        try:
            seen = await asyncio.gather(*(client.ask(TokenRequest(f"r{i}", p, 4)) for i, p in enumerate(prompts)))
        finally:
            await client.aclose()
        assert [each.error for each in seen] == [""] * count
        return [len(each.tokens) for each in seen]


@asynccontextmanager
async def mesh_of(folder: Path, *, token: bool) -> AsyncIterator[RunningMesh]:
    overrides = {
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
        "worker.transports": "tcp",
    }
    config = read_settings(overrides=overrides | {"cache_folder": str(folder)}).mesh()
    with drawn_token(config) as drawn:
        given = overrides | (drawn if token else {})
        running = RunningMesh(config, MeshToken(Path(drawn["mesh_token_file"])) if token else None)
        services = services_of(config, file=None, overrides=given, otlp_endpoint="")
        async with running_mesh(config, services, running.read, START_SECONDS):
            yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningMesh]:
    async with mesh_of(tmp_path_factory.mktemp("mesh"), token=True) as running:
        yield running


class Stranger:
    """A process that would like to be a decode worker; keeps the requests that it gets. It listens in a `with`."""

    def __init__(self, real: admin_pb2.Worker, token: MeshToken | None, **changed: object) -> None:
        self.opened, self.dialled = list[Open](), 0
        self.network = GrpcNetwork(token=token)
        identity = (real.numerics_class, real.fingerprint, real.model, real.model_hash)
        hello = Hello(Tier.DECODE, real.incarnation, "", *identity, 32, 1 << 20, LOAD, PrefixChange(0), name="stranger")
        self.hello = replace(hello, **changed)  # type: ignore[arg-type]
        self._listening: Listening | None = None

    async def __aenter__(self) -> Self:
        self._listening = await GrpcNetwork().listen("127.0.0.1:0", {Channel.ATTACH: self._accept})
        self.hello = replace(self.hello, address=self._listening.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listening is not None:
            await self._listening.close()

    async def register(self, gateway: str, incarnation: int) -> None:
        await self.network.register(gateway, Register(self.hello.address, Tier.DECODE, incarnation))

    async def _accept(self, stream: Stream) -> None:
        self.dialled += 1
        session = Session(stream, rules=RULES, name="gateway")
        session.send(self.hello)

        def take(message: Message) -> None:
            if isinstance(message, Open):
                self.opened.append(message)

        await session.run(take)


async def refused(mesh: RunningMesh, count: int) -> list[str]:
    """The refused workers, once there are so many."""
    async with asyncio.timeout(60):
        while True:
            seen = await health(mesh.config.gateway.http_address) or {}
            if len(found := seen.get("refused_workers", [])) >= count:
                return list(found)
            await asyncio.sleep(0.05)


@in_one_loop
async def test_a_stranger_gets_nothing_at_any_port_and_harms_nobody(mesh: RunningMesh, tmp_path: Path) -> None:
    real = (await mesh.known())["decode"]
    (tmp_path / "guess").write_text("g" * 64)
    for token in (None, MeshToken(tmp_path / "guess")):
        async with Stranger(real, token) as stranger:
            for incarnation in (real.incarnation, 1234):
                with pytest.raises(StreamClosed, match="UNAUTHENTICATED"):
                    await stranger.register(mesh.registry, incarnation)
            for tier, channel in (("prefill", Channel.ATTACH), ("decode", Channel.ATTACH), ("decode", Channel.KV)):
                with pytest.raises(StreamClosed, match="UNAUTHENTICATED"):
                    await stranger.network.dial(mesh.workers[tier], channel)
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await read_stats(mesh.workers["decode"], token=token)
            async with grpc.aio.insecure_channel(mesh.registry) as port:
                with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                    await admin_pb2_grpc.AdminServiceStub(port).Drain(
                        admin_pb2.DrainRequest(worker=real.name), metadata=token.metadata if token else ()
                    )
            assert await mesh.tokens(4) == [4] * 4
            assert stranger.dialled == 0 and stranger.opened == []
    counts = await read_stats(mesh.workers["decode"], token=mesh.token)
    assert counts["admitted_remote"] + counts["admitted_patched"] + counts["admitted_local"] == 8
    told = [line.split()[0] for line in mesh.lines if "without the token of this mesh" in line]
    assert set(told) == {"gateway", "prefill-0", "decode-0"} and len(told) < 10
    secret = mesh.token.metadata[0][1] if mesh.token else ""
    assert not any(secret in line for line in mesh.lines)


@in_one_loop
async def test_a_member_that_says_nonsense_or_takes_an_incarnation_is_refused_by_name(mesh: RunningMesh) -> None:
    real = (await mesh.known())["decode"]
    copies = Stranger(real, mesh.token)  # registers under the incarnation of a living worker
    lies = Stranger(real, mesh.token)  # registers as itself, says Hello as the living worker
    odd = Stranger(real, mesh.token, incarnation=3, page_tokens=0)
    small = Stranger(real, mesh.token, incarnation=4, context_tokens=1)
    hanging = Stranger(real, mesh.token, incarnation=5, load=replace(LOAD, tokens_per_second=-1.0))
    everyone = (copies, lies, odd, small, hanging)
    async with AsyncExitStack() as listening:
        for member in everyone:
            await listening.enter_async_context(member)
        await copies.register(mesh.registry, real.incarnation)
        await lies.register(mesh.registry, 2)
        for member in (odd, small, hanging):
            await member.register(mesh.registry, member.hello.incarnation)
        texts = sorted(text.partition(": ")[2] for text in await refused(mesh, 5))
        fields = [text.partition(":")[0] for text in texts]
        assert fields == ["context_tokens", "incarnation", "incarnation", "load.tokens_per_second", "page_tokens"], (
            texts
        )
        assert await mesh.tokens(8) == [4] * 8
        assert copies.dialled == 0 and all(member.opened == [] for member in everyone)
        assert (await mesh.known())["decode"].incarnation == real.incarnation


async def test_negative_control_without_a_token_a_stranger_gets_prompts(tmp_path: Path) -> None:
    async with mesh_of(tmp_path, token=False) as running:
        real = (await running.known())["decode"]
        client = MeshClient(running.config.gateway.grpc_address)
        asked = list[asyncio.Task[Seen]]()
        async with asyncio.timeout(60):
            async with Stranger(real, None, incarnation=1234) as stranger:
                await stranger.register(running.registry, 1234)
                await running.workers_once(3)
                while not stranger.opened:  # the real worker may take a prompt first
                    first = 33 + len(asked) % 128
                    request = TokenRequest(f"r{len(asked)}", tuple(range(first, first + 64)), 4)
                    asked.append(asyncio.create_task(client.ask(request)))
                    await asyncio.sleep(0.05)
            # The stranger has left: the real worker resumes its requests.
            assert {len(seen.tokens) for seen in await asyncio.gather(*asked)} == {4}
        await client.aclose()
