"""Requests from foreign hosts are refused, every answer carries safe headers, and redirects stay on the gateway."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.http.hosts import KnownHosts, accepts_any_host
from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig
from tests.unit.gateway.observability.test_metrics_page import serving

FOREIGN = {"host": "evil.example"}
TEXT = {"prompt": "x", "max_tokens": 1}


@pytest.mark.parametrize("path", ["/debug/requests", "/ui", "/ui/", "/ui/state", "/metrics", "/health", "/v1/models"])
async def test_a_gateway_on_loopback_does_not_answer_to_foreign_names(folder: Path, path: str) -> None:
    async with serving(folder) as client:
        answer = await client.get(path, headers=FOREIGN)
        error = answer.json()["error"]
        assert answer.status_code == 421 and "evil.example" not in str(answer.headers)
        assert set(error) == {"message", "type", "param", "code", "reason"}
        assert "gateway.http_hosts" in error["message"] and error["reason"] == "UNKNOWN_HOST"
        assert (answer.headers["x-error-reason"], answer.headers["x-should-retry"]) == ("UNKNOWN_HOST", "false")
        own = await client.get(path, follow_redirects=True)
        assert own.status_code in (200, 503), "negative control: its own address passes"


async def test_a_foreign_name_cannot_make_the_gateway_generate(folder: Path) -> None:
    async with serving(folder, http_hosts=("mesh.example",)) as client:
        foreign = await client.post("/v1/completions", json=TEXT | {"model": "no"}, headers=FOREIGN)
        named = await client.post("/v1/completions", json=TEXT | {"model": "no"}, headers={"host": "Mesh.Example.:80"})
        assert (foreign.status_code, named.status_code) == (421, 404)


LOCAL = ("localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1", "127.9.8.7:1", "[::1]", "[::1]:8000", "10.0.0.5:80")
ODD = ("", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example", "a@localhost", "[::1].x", "local:1:2")


@pytest.mark.parametrize("host", [*LOCAL, "mesh.example", *ODD])
async def test_names_that_are_local_listed_or_addresses_pass(host: str) -> None:
    sent = list[dict[str, Any]]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"host", host.encode())]}
    await KnownHosts(app, ("mesh.example",))(scope, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == (421 if host in ODD else 200)


def test_elsewhere_than_on_loopback_and_behind_a_sidecar_every_host_passes_unless_some_are_named() -> None:
    assert not accepts_any_host(GatewayConfig())
    assert accepts_any_host(GatewayConfig(http_address="0.0.0.0:8000"))
    assert accepts_any_host(GatewayConfig(sidecar="127.0.0.1:15001"))
    assert not accepts_any_host(GatewayConfig(http_address="0.0.0.0:8000", http_hosts=("mesh.example",)))


@pytest.mark.parametrize("name", ["http://mesh.example", "mesh.example:80", "*", "a b", ""])
def test_a_setting_that_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"http_hosts: .* is no host name"):
        GatewayConfig(http_hosts=(name,))


async def test_every_answer_says_what_a_browser_may_do_with_it(folder: Path) -> None:
    async with serving(folder) as client:
        for path in ("/debug/requests", "/debug/requests/x", "/metrics", "/health", "/ui/state", "/ui", "/nothing"):
            headers = (await client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers["cross-origin-resource-policy"] == "same-origin", path
            assert "default-src 'none'" in headers["content-security-policy"], path
            assert headers["cache-control"] == ("no-cache" if path.startswith("/ui") else "no-store"), path
        async with client.stream("GET", "/ui/events") as events:
            assert events.headers["x-content-type-options"] == "nosniff"
            assert events.headers["cross-origin-resource-policy"] == "same-origin"


async def test_redirects_name_a_path_and_no_host(folder: Path) -> None:
    async with serving(folder, http_hosts=("mesh.example",)) as client:
        answer = await client.get("/ui/?a=1", headers={"host": "mesh.example"})
        assert (answer.status_code, answer.headers["location"]) == (307, "/ui?a=1")


async def test_what_a_client_wrote_is_repeated_in_brief(folder: Path) -> None:
    long = "x" * 60_000
    async with serving(folder, strict_fields=True) as client:
        answers = [
            await client.get(f"/debug/requests/{long}"),
            await client.get(f"/{long}"),
            await client.get(f"/ui/{long}"),
            await client.get(f"/debug/requests?limit={long}"),
            await client.get(f"/v1/models/{long}"),
            await client.post("/v1/completions", json=TEXT | {"model": long * 2}),
            await client.post("/v1/completions", json=TEXT | {long: 1}),
            await client.post("/v1/completions", json=TEXT, headers={"content-type": long[:9000]}),
            await client.get("/health", headers={"host": long[:9000]}),
        ]
    assert [answer.status_code for answer in answers] == [404, 404, 404, 400, 404, 404, 400, 415, 421]
    assert all(len(answer.content) < 700 and "xxx" in answer.text for answer in answers)


async def test_a_name_of_ordinary_length_is_repeated_whole(folder: Path) -> None:
    async with serving(folder) as client:
        answer = await client.post("/v1/completions", json=TEXT | {"model": "m" * 100})
        assert "m" * 100 in answer.text and "…" not in answer.text


def test_the_client_of_these_tests_sends_the_host_that_it_is_told() -> None:
    assert httpx2.Request("GET", "http://127.0.0.1/", headers=FOREIGN).headers["host"] == "evil.example"
