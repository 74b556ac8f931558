"""Ways around keys and limits that a hostile client may try, over raw connections."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx2
import pytest

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.dialects.api import HttpApi
from gateway.prompts.assets import Assets
from gateway.tenants.admission import UNKNOWN
from gateway.tenants.keys import KeyFile
from gateway.tenants.rows import hash_of
from gateway.tenants.tenants import Tenants
from gateway.tracing.traces import RecentTraces
from mesh.config.door_config import DoorConfig
from mesh.telemetry.spans import KeptHere
from tests.harness.longest_pass import LongestPass, best_of
from tests.harness.socketless import SocketlessHttp
from tests.harness.waiting import within
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.emitting_core import EmittingCore
from tests.unit.gateway.fake_mesh import mesh
from tests.unit.gateway.public_grpc import ask
from tests.unit.gateway.tenants.keys_files import (
    GuardedDoor,
    SetClock,
    bearer,
    begun,
    guarded_grpc,
    guarded_http,
    key_of,
    write_keys,
)

KEY = key_of("alice")
BODY = b'{"prompt": "x", "max_tokens": 2}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(BODY)


@pytest.fixture
async def door(core: Any, assets: Assets, tmp_path: Path) -> AsyncIterator[GuardedDoor]:
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", alice="", bob="")) as door:
        yield door


async def statuses(address: str, sent: bytes) -> list[int]:
    """Send the bytes, whose last request closes the connection; the statuses of all answers."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    async with asyncio.timeout(10):
        raw = await reader.read()
    writer.close()
    return [int(part[:3]) for part in raw.split(b"HTTP/1.1 ")[1:]]


PATHS = (
    b"/health/../v1/models",
    b"/health/%2e%2e/v1/models",
    b"/health%2f..%2fv1%2fmodels",
    b"/health/..%2fv1/models",
    b"/health;/../v1/models",
    b"//health/../v1/models",
    b"/./v1/models",
    b"/v1/health/../models",
    b"http://x/health/../v1/models",
    b"/version/../debug/requests",
    b"/%76%31/models",
    b"/v1/models/",
    b"/v1/models?x=/health",
    b"/v1/models#/health",
)


async def test_no_spelling_of_a_path_reaches_what_is_guarded(door: GuardedDoor) -> None:
    for path in PATHS:
        (status,) = await statuses(door.address, b"GET " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert status in (400, 401, 404), (path, status)
    close = b"host: x\r\nconnection: close\r\n\r\n"
    assert await statuses(door.address, b"GET /%68ealth HTTP/1.1\r\n" + close) == [200], (
        "negative control: the same path"
    )


async def test_a_key_counts_for_its_own_request_of_a_connection_only(door: GuardedDoor, core: FakeCore) -> None:
    with_key = POST + b"x-api-key: " + KEY.encode() + b"\r\n\r\n" + BODY
    without = POST + b"\r\n" + BODY
    last = POST + b"connection: close\r\nx-api-key: " + KEY.encode() + b"\r\n\r\n" + BODY
    assert await statuses(door.address, with_key + without + last) == [200, 401, 200]
    assert len(core.streams) == 2


@pytest.mark.parametrize(
    "head",
    [
        b"Authorization: Bearer nobody\r\nAuthorization: Bearer %b\r\n",
        b"Authorization: Bearer %b\r\nAuthorization: Bearer nobody\r\n",
        b"Authorization : Bearer %b\r\n",
        b"X-Other: a\r\n Authorization: Bearer %b\r\n",
        b"X-Other: a\rAuthorization: Bearer %b\r\n",
        b"X-Other: a\nX-Api-Key: nobody\nX-Api-Key: %b\r\n",
        b"x_api_key: %b\r\n",
        b"Authorization: Bearer\x00 %b\r\n",
        b"Cookie: authorization=Bearer %b\r\n",
        b"Authorization: Bearer nobody, Bearer %b\r\n",
    ],
)
async def test_no_spelling_of_headers_smuggles_a_second_key(door: GuardedDoor, core: FakeCore, head: bytes) -> None:
    sent = POST + b"connection: close\r\n" + head % KEY.encode() + b"\r\n" + BODY
    (status, *more) = await statuses(door.address, sent)
    assert status in (400, 401) and not more and not core.streams


async def test_a_key_in_a_trailer_comes_too_late(door: GuardedDoor, core: FakeCore) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
    chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
    key = b"x-api-key: " + KEY.encode() + b"\r\n"
    assert await statuses(door.address, head + b"trailer: x-api-key\r\n\r\n" + chunk + b"0\r\n" + key + b"\r\n") == [
        401
    ]
    assert await statuses(door.address, head + key + b"\r\n" + chunk + b"0\r\n\r\n") == [200], "negative control"
    assert len(core.streams) == 1


async def test_an_open_path_is_open_for_reading_only(assets: Assets, tmp_path: Path) -> None:
    core = FakeCore(limits=DoorConfig(keys_open_paths=("/v1",)))
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", alice="")) as door:
        assert (await door.http.get("/v1/models")).status_code == 200
        assert (await door.http.post("/v1/completions", json={"prompt": "x"})).status_code == 401
    assert not core.streams


async def test_a_door_that_forgets_to_ask_whose_a_request_is_runs_nothing(core: FakeCore, assets: Assets) -> None:
    traces = RecentTraces(KeptHere(), random=Random(1), admission=UNKNOWN)
    api = HttpApi(core, assets, random=Random(1), clock=lambda: 1.0, traces=traces)
    async with httpx2.AsyncClient(transport=SocketlessHttp(api.app), base_url="http://x", timeout=None) as http:
        for path, body in (("completions", {"prompt": "x"}), ("embeddings", {"input": "x"})):
            answer = await http.post(f"/v1/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["reason"]) == (500, "INTERNAL")
    assert not core.streams and not core.examinations
    await api.aclose()


async def test_many_small_requests_at_once_stay_below_every_limit(assets: Assets, tmp_path: Path) -> None:
    core = EmittingCore(mesh=mesh(model="tiny"))
    rows = {"alice": "tokens_per_minute=600 burst_tokens=600 concurrent=5"}
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", **rows)) as door:
        calls = [asyncio.ensure_future(door.complete("alice", max_tokens=9)) for _ in range(40)]
        use_of = door.tenants._uses
        await within(20, lambda: "alice" in use_of and use_of["alice"].refused.total() == 35)
        await begun(core, 5)
        assert use_of["alice"].choices == 5
        for call in calls:
            call.cancel()
        await within(20, lambda: use_of["alice"].choices == use_of["alice"].aside == 0)


async def test_cancelled_requests_are_paid_and_leave_no_place_taken(assets: Assets, tmp_path: Path) -> None:
    core = EmittingCore(mesh=mesh(model="tiny"))
    rows = {"alice": "tokens_per_minute=600 burst_tokens=100 concurrent=3"}
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", **rows)) as door:
        for number in range(1, 6):
            call = asyncio.ensure_future(door.complete("alice", prompt="x" * 24, max_tokens=9))
            if number == 5:
                assert (await call).status_code == 429, "four prompts of 24 tokens, and a token each"
                break
            await begun(core, number)
            core.emit(1)
            call.cancel()
            await within(20, lambda: not core.running and not door.tenants._uses["alice"].choices)
        use = door.tenants._uses["alice"]
        assert (use.prompt_tokens, use.generated_tokens, use.aside) == (96, 4, 0)


async def test_a_grpc_client_that_never_reads_and_vanishes_leaves_no_place_taken(
    assets: Assets, tmp_path: Path
) -> None:
    core = EmittingCore(mesh=mesh(model="tiny"))
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", alice="concurrent=2")), SetClock())
    async with guarded_grpc(core, assets, tenants) as server:
        for _ in range(3):
            before = len(core.requests)
            channel = grpc.aio.insecure_channel(server.address)
            stub: Any = pb_grpc.InferenceServiceStub(channel)
            request = pb.StreamGenerateRequest(request=ask(sampling=pb.SamplingOptions(n=2)))
            calls = [stub.StreamGenerate(request, metadata=tuple(bearer("alice").items()))]
            await begun(core, before + 2)
            assert tenants._uses["alice"].choices == 2 and calls
            for _ in range(20):
                core.emit(20, top=20)
                await asyncio.sleep(0)
            await channel.close()
            await within(20, lambda: tenants._uses["alice"].choices == 0 and not core.running)


async def test_a_grpc_client_without_a_key_is_refused_before_its_message_comes(
    core: FakeCore, assets: Assets, tmp_path: Path
) -> None:
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", alice="")), SetClock())
    async with guarded_grpc(core, assets, tenants) as server, grpc.aio.insecure_channel(server.address) as channel:
        for method in ("Generate", "StreamGenerate"):
            call: Any = channel.stream_stream(f"/baton.inference.v1.InferenceService/{method}")
            unsent = call(metadata=(("x-api-key", "nobody"),))  # it sends no message
            async with asyncio.timeout(10):
                assert await unsent.code() is grpc.StatusCode.UNAUTHENTICATED
            known = call(metadata=tuple(bearer("alice").items()))
            with pytest.raises(TimeoutError):  # negative control: with a key the gateway waits for it
                async with asyncio.timeout(0.3):
                    await known.code()
            known.cancel()
    assert core.errors == ["UNAUTHENTICATED"] * 2


async def test_a_large_keys_file_does_not_stop_the_event_loop(assets: Assets, tmp_path: Path) -> None:
    core, file = FakeCore(), tmp_path / "keys"
    async with guarded_http(core, assets, write_keys(file, alice="")) as door:
        limits = itertools.count(3)

        async def attempt() -> tuple[None, float]:
            limit = next(limits)
            rows = [f"tenant-{number} {hash_of(str(number))} concurrent={limit}" for number in range(20_000)]
            file.write_text("\n".join([f"alice {hash_of(KEY)}", *rows]) + "\n")
            with LongestPass() as longest:
                await door.keys.look()
                await door.keys.look()
                for _ in range(20):
                    assert (await door.complete("alice")).status_code == 200
                list(door.tenants.uses())
            assert len(door.keys.table.tenants) == 20_001
            return None, longest.seconds

        await best_of(attempt, 0.05)
