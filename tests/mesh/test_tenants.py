"""Two tenants of one mesh: equal prompts, equal cache salts, and neither finds a page of the other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from baton.client import Client, request_of
from tests.harness.mesh import ProcessMesh, process_mesh
from tests.unit.gateway.tenants.keys_files import bearer, key_of, write_keys

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")
TOKENS = 192  # six pages
ATTEMPTS = 3  # a worker that a busy machine stops for long is lost, and with it what it cached
LIMITED = "tokens_per_minute=60 burst_tokens=200"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProcessMesh]:
    keys = write_keys(
        tmp_path_factory.mktemp("keys") / "keys", alice="", bob="", carol=LIMITED, dora="", ops="operator"
    )
    keys.write_text(keys.read_text() + second_key("alice"))
    async with process_mesh(prefills=1, settings={"gateway.keys_file": str(keys), "gateway.local": "never"}) as mesh:
        yield mesh


def second_key(name: str) -> str:
    from gateway.tenants.rows import hash_of

    return f"{name} {hash_of(key_of(f'{name}-2'))}\n"


def prompt(seed: int) -> list[int]:
    return [(seed + 7 * number) % 200 for number in range(TOKENS)]


async def cached(mesh: ProcessMesh, name: str, ids: list[int], **fields: Any) -> int:
    """Prompt tokens that a prefix cache held, as the answer's usage tells it."""
    body = {"prompt": ids, "max_tokens": 2, "temperature": 0} | fields
    async with httpx2.AsyncClient(base_url=f"http://{mesh.http}", timeout=60) as http:
        answer = await http.post("/v1/completions", json=body, headers=bearer(name))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def warmed(mesh: ProcessMesh, name: str, ids: list[int], **fields: Any) -> int:
    """Ask until the tenant finds its own prompt: the gateway learns of cached pages a moment later."""
    async with asyncio.timeout(30):
        while not (found := await cached(mesh, name, ids, **fields)):
            await asyncio.sleep(0.05)
    return found


async def finds(mesh: ProcessMesh, name: str, ids: list[int], **fields: Any) -> bool:
    """Whether the first time that a tenant asks for this prompt finds it."""
    return await cached(mesh, name, ids, **fields) >= TOKENS - 32


@in_one_loop
async def test_a_tenant_finds_its_own_prompts_only(mesh: ProcessMesh) -> None:
    for attempt in range(ATTEMPTS):
        ids = prompt(10 + attempt)
        assert await cached(mesh, "alice", ids) == 0
        assert await warmed(mesh, "alice", ids) >= TOKENS - 32
        assert await cached(mesh, "bob", ids) == 0
        assert await warmed(mesh, "bob", ids) >= TOKENS - 32, "its own by now"
        if await finds(mesh, "alice-2", ids):
            return
    pytest.fail("negative control: the same tenant's other key finds the prompt")


@in_one_loop
async def test_equal_salts_of_clients_join_no_tenants(mesh: ProcessMesh) -> None:
    for attempt in range(ATTEMPTS):
        ids = prompt(20 + attempt)
        await warmed(mesh, "alice", ids, cache_salt="common")
        assert await cached(mesh, "bob", ids, cache_salt="common") == 0
        assert await cached(mesh, "alice", ids) == 0, "a salt divides its tenant's cache further"
        if await finds(mesh, "alice-2", ids, cache_salt="common"):
            return
    pytest.fail("negative control: the same tenant's other key finds the prompt with the same salt")


@in_one_loop
async def test_both_front_doors_make_one_salt_of_a_key(mesh: ProcessMesh) -> None:
    for attempt in range(ATTEMPTS):
        ids, found = prompt(30 + attempt), dict[str, int]()
        await warmed(mesh, "alice", ids)
        for name in ("alice", "bob"):
            async with Client(mesh.address, api_key=key_of(name)) as client:
                events = [event async for event in client.stream(request_of(ids, max_tokens=2))]
            found[name] = events[-1].finished.usage.cached_tokens
        assert found["bob"] == 0
        if found["alice"] >= TOKENS - 32:
            return
    pytest.fail("gRPC finds what the same key warmed over HTTP")


async def shown(http: httpx2.AsyncClient, line: str) -> None:
    """Wait for a line of the metrics: a page may be a second old."""
    async with asyncio.timeout(30):
        while f"{line}\n" not in (await http.get("/metrics", headers=bearer("ops"))).text:
            await asyncio.sleep(0.1)


@in_one_loop
async def test_tokens_of_a_running_mesh_are_counted_and_limited(mesh: ProcessMesh) -> None:
    async with httpx2.AsyncClient(base_url=f"http://{mesh.http}", timeout=60) as http:
        body = {"prompt": prompt(4), "max_tokens": 40, "n": 3, "temperature": 1.0, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=body, headers=bearer("carol"))
        usage = answer.json()["usage"]
        assert answer.status_code == 200 and usage["total_tokens"] == TOKENS + 3 * 40
        refused = await http.post("/v1/completions", json=body, headers=bearer("carol"))
        assert refused.status_code == 429
        assert 0 < int(refused.headers["retry-after-ms"]) <= 113_000, "a debt of 112 at one token a second"
        await shown(http, f'baton_tenant_tokens_total{{tenant="carol",kind="prompt"}} {TOKENS}')
        await shown(http, 'baton_tenant_tokens_total{tenant="carol",kind="generated"} 120')
        await shown(http, 'baton_tenant_choices{tenant="carol"} 0')


@in_one_loop
async def test_prompts_that_are_only_scored_are_counted(mesh: ProcessMesh) -> None:
    body = {"prompt": [prompt(5), prompt(6)], "echo": True, "logprobs": 1, "max_tokens": 0}
    async with httpx2.AsyncClient(base_url=f"http://{mesh.http}", timeout=60) as http:
        assert (await http.post("/v1/completions", json=body, headers=bearer("dora"))).status_code == 200
        await shown(http, f'baton_tenant_tokens_total{{tenant="dora",kind="prompt"}} {2 * TOKENS}')
        await shown(http, 'baton_tenant_tokens_total{tenant="dora",kind="generated"} 0')
