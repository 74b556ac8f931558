"""A mesh of real processes behind real Envoys: the named worker answers, strangers are refused, a death harms no
request.

The tests share one mesh of a prefill and two decode workers, and a collector for the spans of Envoys and services."""

import asyncio
import copy
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import pytest
import pytest_asyncio

from mesh.messages.jobs import Tier
from mesh.messages.reports import Hello, Register
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.interface import Channel, StreamClosed
from mesh.network.tls import TlsFiles
from tests.harness.client import MeshClient, TokenRequest
from tests.harness.collector import Collector
from tests.harness.envoy_process import EnvoyProcess, free_ports
from tests.harness.envoys import EnvoyMesh, envoy_mesh
from tests.unit.certificates import Authority, files_in

pytestmark = pytest.mark.envoy
in_one_loop = pytest.mark.asyncio(loop_scope="module")

WORKERS = ("prefill-1", "decode-1", "decode-2")
PATIENCE_SECONDS = 60.0  # a guard against hanging
ANSWER_TOKENS = 96  # long enough to kill a worker in the middle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector() -> AsyncIterator[Collector]:
    found = Collector()
    await found.start()
    yield found
    await found.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> AsyncIterator[EnvoyMesh]:
    settings = {"gateway.local": "never", "worker.threads": "1", "worker.page_tokens": "16"}
    folder = tmp_path_factory.mktemp("mesh")
    async with envoy_mesh(folder, prefills=1, decodes=2, otlp=collector.address, settings=settings) as found:
        yield found


async def hello_of(mesh: EnvoyMesh, address: str) -> Hello:
    """Attach to this address as the gateway does, through its sidecar; the answer names who is there."""
    stream = await GrpcNetwork(sidecar=mesh.ports["gateway"].outbound).dial(address, Channel.ATTACH)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            hello = await stream.receive()
    finally:
        stream.close()
    assert isinstance(hello, Hello)
    return hello


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():
            await asyncio.sleep(0.05)


def request(number: int, tokens: int = 8) -> TokenRequest:
    return TokenRequest(f"request-{number}", tuple(33 + (number * 7 + place) % 90 for place in range(64)), tokens)


# ---- the worker that was picked


@in_one_loop
async def test_a_dialled_worker_answers_by_itself_however_many_dial_at_once(mesh: EnvoyMesh) -> None:
    names = WORKERS * 6
    hellos = await asyncio.gather(*(hello_of(mesh, mesh.member(name).address) for name in names))
    for name, hello in zip(names, hellos, strict=True):
        service = mesh.services[name]
        assert (hello.incarnation, hello.address) == (service.incarnation, mesh.member(name).address)


@in_one_loop
async def test_an_unknown_address_is_refused_with_the_remedy(mesh: EnvoyMesh) -> None:
    for address in ("127.0.0.1:1", mesh.ports["decode-1"].grpc):  # no process; a process, but not through its sidecar
        with pytest.raises(StreamClosed, match=r"no peer has this address.* a --peer of exactly this address"):
            await hello_of(mesh, address)


# ---- clients at the edge


@in_one_loop
async def test_clients_are_answered_over_http_and_grpc(mesh: EnvoyMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MeshClient(mesh.address, mesh.tls)
    seen = await asyncio.gather(*(client.ask(request(number)) for number in range(4)))
    await client.aclose()
    assert [(len(each.tokens), each.error) for each in seen] == [(8, "")] * 4
    monkeypatch.setenv("SSL_CERT_FILE", str(mesh.ca))
    body = {"model": "random", "prompt": "once", "max_tokens": 4, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=None) as http:
        answer = await http.post(f"{mesh.url}/v1/completions", json=body)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
        for path in ("/metrics", "/debug/requests", "/ui", "/v1/../metrics"):
            refused = await http.get(f"{mesh.url}{path}")
            assert refused.status_code == 404
            assert refused.json()["error"]["message"] == "no such path; the API begins with /v1/"


@in_one_loop
async def test_a_client_cannot_register_a_worker(mesh: EnvoyMesh) -> None:
    with pytest.raises(StreamClosed, match="UNIMPLEMENTED"):
        await GrpcNetwork(tls=mesh.tls).register(mesh.address, Register("127.0.0.1:1", Tier.DECODE, 1))


# ---- identities


def inbound(mesh: EnvoyMesh, name: str) -> str:
    return mesh.member(name).address


@in_one_loop
@pytest.mark.parametrize(
    ("identity", "at", "channel"),
    [
        ("decode-2", "decode-1", Channel.ATTACH),  # a worker is no gateway
        ("edge", "decode-1", Channel.ATTACH),
        ("gateway", "decode-1", Channel.KV),  # only prefill hands over
        ("decode-2", "decode-1", Channel.KV),
        ("prefill-1", "prefill-1", Channel.ATTACH),
    ],
)
async def test_a_member_that_may_not_call_is_refused_and_counted(
    mesh: EnvoyMesh, identity: str, at: str, channel: Channel
) -> None:
    envoy = mesh.envoys[at]
    before = await envoy.stat("http.inbound.rbac.denied")
    with pytest.raises(StreamClosed, match="PERMISSION_DENIED: RBAC: access denied"):
        await GrpcNetwork(tls=mesh.identity(identity)).dial(inbound(mesh, at), channel)
    assert await envoy.stat("http.inbound.rbac.denied") == before + 1


@in_one_loop
@pytest.mark.parametrize(("identity", "channel"), [("gateway", Channel.ATTACH), ("prefill-1", Channel.KV)])
async def test_the_member_that_may_call_gets_in_the_same_way(mesh: EnvoyMesh, identity: str, channel: Channel) -> None:
    stream = await GrpcNetwork(tls=mesh.identity(identity)).dial(inbound(mesh, "decode-1"), channel)
    stream.close()


@in_one_loop
async def test_only_workers_register(mesh: EnvoyMesh) -> None:
    message = Register("127.0.0.1:1", Tier.DECODE, 77)
    with pytest.raises(StreamClosed, match="PERMISSION_DENIED"):
        await GrpcNetwork(tls=mesh.identity("edge")).register(inbound(mesh, "gateway"), message)
    await GrpcNetwork(tls=mesh.identity("decode-2")).register(inbound(mesh, "gateway"), message)


@in_one_loop
async def test_negative_control_without_rbac_the_same_member_gets_in(mesh: EnvoyMesh) -> None:
    """Another Envoy before the same worker, whose listener lacks the filter."""
    name = "decode-1"
    listen, outbound, admin, probe = (f"127.0.0.1:{port}" for port in free_ports(4))
    config = copy.deepcopy(mesh.envoys[name].config)
    new = {"inbound": listen, "outbound": outbound, "probe": probe}
    for listener in config["static_resources"]["listeners"]:
        listener["address"]["socket_address"]["port_value"] = int(new[listener["name"]].rpartition(":")[2])
    config["admin"]["address"]["socket_address"]["port_value"] = int(admin.rpartition(":")[2])
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [each for each in manager["http_filters"] if not each["name"].endswith("rbac")]
    envoy = EnvoyProcess("without-rbac", config, admin, mesh.folder)
    await envoy.start()
    try:
        stream = await GrpcNetwork(tls=mesh.identity("decode-2")).dial(listen, Channel.ATTACH)
        hello = await stream.receive()
        stream.close()
    finally:
        await envoy.stop()
    assert isinstance(hello, Hello) and hello.incarnation == mesh.services[name].incarnation


@in_one_loop
async def test_a_foreign_authority_and_no_certificate_fail_the_handshake(mesh: EnvoyMesh, tmp_path: Path) -> None:
    uri = mesh.member("gateway").identity("baton")
    foreign = Authority(tmp_path / "foreign").sign(tmp_path / "stranger", names=f"URI:{uri},IP:127.0.0.1")
    (foreign / "ca.pem").write_bytes(mesh.ca.read_bytes())  # it trusts the mesh; the mesh does not trust it
    envoy, address = mesh.envoys["decode-1"], inbound(mesh, "decode-1")
    denied = await envoy.stat("http.inbound.rbac.denied")
    await _cannot_attach(address, files_in(foreign))
    bare = grpc.ssl_channel_credentials(mesh.ca.read_bytes())
    async with grpc.aio.secure_channel(address, bare) as channel:
        call: Any = channel.stream_stream("/baton.worker.v1.WorkerService/Attach")
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await call().read()
    failures = await envoy.stats("ssl.fail_verify")
    assert sum(value for name, value in failures.items() if name.startswith("listener.") and "error" in name) >= 1
    assert sum(value for name, value in failures.items() if name.startswith("listener.") and "no_cert" in name) >= 1
    assert await envoy.stat("http.inbound.rbac.denied") == denied


async def _cannot_attach(address: str, tls: TlsFiles) -> None:
    with pytest.raises(StreamClosed, match="UNAVAILABLE"):
        await GrpcNetwork(tls=tls).dial(address, Channel.ATTACH)


@in_one_loop
async def test_admin_ports_listen_on_loopback_only(mesh: EnvoyMesh) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    for ports in mesh.ports.values():
        port = f"{int(ports.admin.rpartition(':')[2]):04X}"
        hosts = {
            fields[1].split(":")[0] for fields in listening if fields[1].endswith(f":{port}") and fields[3] == "0A"
        }
        assert hosts == {"0100007F"}  # 127.0.0.1


# ---- spans


@in_one_loop
async def test_spans_of_envoys_and_services_are_one_tree(
    mesh: EnvoyMesh, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, parent = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
    monkeypatch.setenv("SSL_CERT_FILE", str(mesh.ca))
    body = {"model": "random", "prompt": "a tree", "max_tokens": 4}
    async with httpx.AsyncClient(timeout=None) as http:
        headers = {"traceparent": f"00-{trace:032x}-{parent:016x}-01", "x-request-id": "tree-1"}
        answer = await http.post(f"{mesh.url}/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200 and answer.headers["x-request-id"] == "tree-1"

    async def complete() -> bool:
        spans = {span.span_id: span for span in collector.traces.get(trace, ())}
        outside = {span.parent_id for span in spans.values()} - spans.keys()
        return outside == {parent} and {"edge", "gateway-sidecar", "gateway"} <= {s.service for s in spans.values()}

    await eventually(complete)  # Envoys send their spans every few seconds
    spans = {span.span_id: span for span in collector.traces[trace]}
    (root,) = [span for span in spans.values() if span.parent_id not in spans]
    assert (root.service, root.parent_id) == ("edge", parent)
    above = {(span.service, spans[span.parent_id].service) for span in spans.values() if span is not root}
    assert above >= {
        ("edge", "edge"),  # an attempt below its request
        ("gateway-sidecar", "edge"),
        ("gateway-sidecar", "gateway-sidecar"),
        ("gateway", "gateway-sidecar"),
    }
    for name in ("edge", "gateway"):
        (line,) = [each for each in mesh.access_log(name) if each.get("request_id") == "tree-1"]
        assert line["trace_id"] == f"{trace:032x}" and line["status"] == 200


# ---- a worker dies


@in_one_loop
async def test_a_dead_worker_is_out_and_no_request_fails(mesh: EnvoyMesh) -> None:
    victim, other = mesh.services["decode-1"], mesh.services["decode-2"]
    gateway, cluster = mesh.envoys["gateway"], "cluster.decode/decode-1"
    client = MeshClient(mesh.address, mesh.tls)
    asked = [asyncio.create_task(client.ask(request(number, ANSWER_TOKENS))) for number in range(8)]

    async def busy() -> bool:
        return bool((await victim.ask("pages"))["states"].get("in_use"))

    await eventually(busy)
    victim.send_signal(signal.SIGKILL)
    await victim.ended()

    async def out() -> bool:
        return await gateway.stat(f"{cluster}.membership_healthy") == 0

    await eventually(out)
    seen = await asyncio.gather(*asked)
    assert [(len(each.tokens), each.error) for each in seen] == [(ANSWER_TOKENS, "")] * 8
    refused = await gateway.stat(f"{cluster}.upstream_cx_none_healthy")
    with pytest.raises(StreamClosed, match=r"no healthy upstream \(its health checks or its last calls failed"):
        await hello_of(mesh, mesh.member("decode-1").address)
    assert await gateway.stat(f"{cluster}.upstream_cx_none_healthy") == refused + 1
    assert (await hello_of(mesh, mesh.member("decode-2").address)).incarnation == other.incarnation
    assert [len((await client.ask(request(number))).tokens) for number in range(20, 24)] == [8] * 4
    await client.aclose()

    await victim.start()
    await mesh.attached(1, 2)
    assert (await hello_of(mesh, mesh.member("decode-1").address)).incarnation == victim.incarnation
