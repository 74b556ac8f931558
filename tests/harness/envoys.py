"""A mesh of real processes, each behind a real Envoy with mutual TLS, and an edge for clients; complete before the test
begins.

    async with envoy_mesh(folder, decodes=2) as mesh:
        mesh.url, mesh.tls          # https://127.0.0.1:PORT of the edge, for HTTP and gRPC; the client's TLS files
        mesh.services["decode-1"]   # a ServiceProcess
        await mesh.envoys["gateway"].stat("http.inbound.rbac.denied")

Members are called edge, gateway, prefill-1 ..., decode-1 ... . Configurations come from the code of `baton envoy
render`; `edit` may change one before its Envoy starts, for negative controls."""

import asyncio
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.connecting.health import health
from cli.envoy.certificates import make_authority, make_certificate
from cli.envoy.members import Member
from cli.envoy.proxy import Proxy
from cli.envoy.render import bootstrap, render_secrets
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder
from mesh.network.tls import TlsFiles
from tests.harness.envoy_process import EnvoyProcess, free_ports
from tests.harness.orders import Orders
from tests.harness.process import START_SECONDS, ServiceProcess

TRUST_DOMAIN = "baton"
DAYS = 2
CLIENT = Member("edge", "client", "127.0.0.1:1")  # a certificate for programs that must show one; no Envoy admits it

Edit = Callable[[str, dict[str, Any]], None]  # changes the configuration of the member with this name
Make = Callable[[str, str, Mapping[str, str]], ServiceProcess]  # tier, name, settings


@dataclass(slots=True)
class Ports:
    """Addresses of one member on loopback."""

    listen: str
    outbound: str
    grpc: str
    registry: str
    http: str
    admin: str
    probe: str


@dataclass(slots=True)
class EnvoyMesh:
    folder: Path
    members: tuple[Member, ...]
    ports: dict[str, Ports]  # by the member's name
    envoys: dict[str, EnvoyProcess] = field(default_factory=dict)
    services: dict[str, ServiceProcess] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Address of the edge, for clients of the gRPC API."""
        return self.ports["edge"].listen

    @property
    def url(self) -> str:
        return f"https://{self.address}"

    @property
    def ca(self) -> Path:
        return self.folder / "tls" / "ca.pem"

    @property
    def tls(self) -> TlsFiles:
        return self.identity("client")

    def identity(self, name: str) -> TlsFiles:
        own = self.folder / "tls" / name
        return TlsFiles(own / "certificate.pem", own / "key.pem", own / "ca.pem")

    def member(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    async def attached(self, prefills: int, decodes: int, seconds: float = START_SECONDS) -> None:
        """Wait until the gateway has attached exactly this many workers."""
        seen = None
        try:
            async with asyncio.timeout(seconds):
                while (seen := await health(self.ports["gateway"].http)) is None or (
                    (seen.get("prefill"), seen.get("decode")) != (prefills, decodes)
                ):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            wanted = f"{prefills} prefill and {decodes} decode workers"
            raise RuntimeError(f"the gateway sees {seen}, not {wanted}\n{self.last_lines()}") from None

    def last_lines(self) -> str:
        """The last log lines of every service and Envoy, for the message of a failed test."""
        lines = [f"[{p.name}] {line}" for p in self.services.values() for line in list(p.lines)[-8:]]
        return "\n".join(
            [*lines, *(f"[envoy {e.name}] {line}" for e in self.envoys.values() for line in e.lines()[-8:])]
        )

    def access_log(self, name: str) -> list[dict[str, Any]]:
        """The lines that this member's Envoy has written so far."""
        file = self.folder / f"{name}.access.json"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


@asynccontextmanager
async def envoy_mesh(
    folder: Path,
    *,
    prefills: int = 1,
    decodes: int = 2,
    otlp: str = "",  # host:port of a collector
    settings: Mapping[str, str] | None = None,
    routes: tuple[str, ...] = (),
    edit: Edit | None = None,
    make: Make | None = None,  # starts services in another way, for instance with faults
) -> AsyncIterator[EnvoyMesh]:
    given = await _with_model(dict(settings or {}))
    if otlp:
        given["otlp_endpoint"] = f"http://{otlp}"
    async with envoys_only(folder, prefills=prefills, decodes=decodes, otlp=otlp, routes=routes, edit=edit) as mesh:
        for member in mesh.members:
            if member.tier != "edge":
                own = given | _settings(mesh, member)
                mesh.services[member.name] = (make or _service)(member.tier, member.name, own)
        await mesh.services["gateway"].start()
        await asyncio.gather(*(service.start() for name, service in mesh.services.items() if name != "gateway"))
        await mesh.attached(prefills, decodes)
        yield mesh


@asynccontextmanager
async def envoys_only(
    folder: Path,
    *,
    prefills: int = 0,
    decodes: int = 0,
    otlp: str = "",
    routes: tuple[str, ...] = (),
    edit: Edit | None = None,
    watch: bool = False,  # take renewed certificates
) -> AsyncIterator[EnvoyMesh]:
    """The Envoys of a mesh without its services: the test serves their ports by itself."""
    mesh = _lay_out(folder, prefills, decodes)
    for member in mesh.members:
        proxy = _proxy(mesh, member, otlp, routes)
        if watch:
            proxy = _watching(proxy, folder / f"{member.name}.secrets")
        config = deepcopy(bootstrap(proxy))  # it shares parts with others
        if edit is not None:
            edit(member.name, config)
        mesh.envoys[member.name] = EnvoyProcess(member.name, config, mesh.ports[member.name].admin, folder)
    try:
        await asyncio.gather(*(envoy.start() for envoy in mesh.envoys.values()))
        yield mesh
    finally:
        await asyncio.gather(*(service.stop() for service in mesh.services.values()))
        await asyncio.gather(*(envoy.stop() for envoy in mesh.envoys.values()))


def _lay_out(folder: Path, prefills: int, decodes: int) -> EnvoyMesh:
    """Ports and certificates of every member."""
    names = {"edge": ["edge"], "gateway": ["gateway"]}
    names |= {tier: [f"{tier}-{number + 1}" for number in range(count)] for tier, count in _tiers(prefills, decodes)}
    count = sum(map(len, names.values()))
    free = iter(free_ports(7 * count))
    ports = {name: Ports(*(f"127.0.0.1:{next(free)}" for _ in range(7))) for each in names.values() for name in each}
    members = tuple(Member(tier, name, ports[name].listen) for tier, each in names.items() for name in each)
    tls = folder / "tls"
    make_authority(tls, DAYS)
    for member in (*members, CLIENT):
        make_certificate(tls, member, trust_domain=TRUST_DOMAIN, days=DAYS)
    return EnvoyMesh(folder, members, ports)


def _tiers(prefills: int, decodes: int) -> tuple[tuple[str, int], ...]:
    return ("prefill", prefills), ("decode", decodes)


def _proxy(mesh: EnvoyMesh, member: Member, otlp: str, routes: tuple[str, ...]) -> Proxy:
    ports, own = mesh.ports[member.name], mesh.folder / "tls" / member.name
    has_service = member.tier != "edge"
    return Proxy(
        own=member,
        members=mesh.members,
        trust_domain=TRUST_DOMAIN,
        listen=ports.listen,
        certificate=str(own / "certificate.pem"),
        key=str(own / "key.pem"),
        ca=str(own / "ca.pem"),
        public_certificate=str(own / "certificate.pem"),
        public_key=str(own / "key.pem"),
        routes=routes if member.tier in ("edge", "gateway") else (),
        admin=ports.admin,
        probe=ports.probe,
        collector=otlp,
        access_log=str(mesh.folder / f"{member.name}.access.json"),
        outbound=ports.outbound if has_service else "",
        local_grpc=ports.grpc if has_service else "",
        local_registry=ports.registry if member.tier == "gateway" else "",
        local_http=ports.http if member.tier == "gateway" else "",
    )


def _watching(proxy: Proxy, folder: Path) -> Proxy:
    folder.mkdir()
    for name, text in render_secrets(proxy.certificate, proxy.key, proxy.ca).items():
        (folder / name).write_text(text)
    return dataclasses.replace(proxy, secrets=str(folder))


def _settings(mesh: EnvoyMesh, member: Member) -> dict[str, str]:
    """Settings of the service beside this member's Envoy."""
    ports, tier = mesh.ports[member.name], member.tier
    common = {f"{tier}.name": member.name, f"{tier}.sidecar": ports.outbound}
    if tier == "gateway":
        own = {"grpc": ports.grpc, "worker": ports.registry, "http": ports.http}
        return common | {f"gateway.{port}_address": address for port, address in own.items()}
    return common | {
        f"{tier}.address": ports.grpc,
        f"{tier}.advertise_port": member.address.rpartition(":")[2],
        f"{tier}.gateways": mesh.ports["gateway"].listen,
    }


def _service(tier: str, name: str, settings: Mapping[str, str]) -> ServiceProcess:
    return ServiceProcess(name, Orders(tier=tier, settings=settings, parent=os.getpid()))


async def _with_model(settings: dict[str, str]) -> dict[str, str]:
    if "model" in settings:
        return settings
    folder = await asyncio.to_thread(ensure_random, default_cache_folder())
    return settings | {"model": str(folder), "served_name": "random"}
