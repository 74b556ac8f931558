"""What all HTTP answers have in common: request ids, compression, CORS, slashes, HEAD and OPTIONS."""

import gzip
import json
from random import Random
from typing import Any

import httpx2 as httpx
import pytest

from gateway.dialects.api import HttpApi
from gateway.dialects.common.cors import Cors
from gateway.http.coding import reads_gzip
from gateway.prompts.assets import Assets
from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig
from mesh.errors import Unavailable
from tests.harness.socketless import SocketlessHttp

PAGE = "https://chat.example.com"
TEXT = {"prompt": "x", "max_tokens": 2}
HERE = "http://127.0.0.1"


def client(core: Any, assets: Assets, *also: Any) -> httpx.AsyncClient:
    api = HttpApi(core, assets, random=Random(7), clock=lambda: 1.0, also=also)
    return httpx.AsyncClient(
        transport=SocketlessHttp(api.app), base_url=HERE, headers={"accept-encoding": ""}, timeout=None
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/other"),
        ("GET", "/nothing"),
        ("PUT", "/v1/models"),
        ("GET", "/v1/completions"),
        ("HEAD", "/health"),
        ("OPTIONS", "/v1/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/"),
    ],
)
async def test_every_answer_carries_the_clients_request_id_or_a_drawn_one(
    core: Any, assets: Assets, method: str, path: str
) -> None:
    async with client(core, assets) as http:
        given = await http.request(method, path, headers={"x-request-id": "mine-1"})
        assert given.headers.get_list("x-request-id") == ["mine-1"]
        drawn = [(await http.request(method, path)).headers["x-request-id"] for _ in range(2)]
        odd = await http.request(method, path, headers={"x-request-id": "two words"})
    assert len({*drawn, odd.headers["x-request-id"]}) == 3 and all(len(each) == 32 for each in drawn)


async def test_a_defect_of_a_page_is_a_json_error_with_its_request_id(
    core: Any, assets: Assets, caplog: pytest.LogCaptureFixture
) -> None:
    core.tiers = lambda: 1 / 0
    async with client(core, assets) as http:
        answer = await http.get("/health", headers={"x-request-id": "r-9"})
    assert answer.status_code == 500 and answer.headers["x-request-id"] == "r-9"
    assert "r-9" in answer.json()["error"]["message"] and "division" in caplog.text


async def test_a_slash_at_the_end_and_the_small_pages(core: Any, assets: Assets) -> None:
    async with client(core, assets) as http:
        models = await http.get("/v1/models/")
        assert models.status_code == 200 and models.json()["object"] == "list"
        assert (await http.get("/v1/models/tiny/")).json()["id"] == "tiny"
        assert (await http.post("/v1/completions/", json=TEXT)).status_code == 200
        assert (await http.get("/v1/health")).json() == (await http.get("/health/")).json()
        assert (await http.get("/load")).json() == {"server_load": 1, "running": 1, "waiting": 0}
        assert (await http.get("/version")).json()["version"]
        assert (await http.get("/nothing/")).status_code == 404


async def test_head_has_no_body_and_options_name_what_a_path_allows(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=None) as http:
        head, whole = await http.head("/v1/models"), await http.get("/v1/models", headers={"accept-encoding": ""})
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.content))
        options = await http.options("/v1/completions")
        assert (options.status_code, options.headers["allow"]) == (204, "POST, OPTIONS")
        assert (await http.options("/nothing")).status_code == 404
        assert (await http.head("/v1/completions")).status_code == 405


# ---- compression


async def test_whole_answers_are_compressed_for_clients_that_read_gzip(url: str, core: Any) -> None:
    core.reply = b"word " * 60
    body = TEXT | {"max_tokens": 300, "logprobs": 1, "seed": 1}
    async with httpx.AsyncClient(base_url=url, timeout=None) as http:
        plain = await http.post("/v1/completions", json=body, headers={"accept-encoding": "identity"})
        coded = await http.post("/v1/completions", json=body, headers={"accept-encoding": "br, gzip;q=0.5"})
        small = await http.get("/health", headers={"accept-encoding": "gzip"})
        stream = await http.post("/v1/completions", json=body | {"stream": True}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers and coded.headers["content-encoding"] == "gzip"
    assert int(coded.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert coded.json()["choices"] == plain.json()["choices"] and "accept-encoding" in coded.headers["vary"]
    assert "content-encoding" not in small.headers and small.json()["status"] == "ok"
    assert "content-encoding" not in stream.headers and stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("accept", "reads"),
    [("gzip", True), ("GZIP", True), ("br, *", True), ("gzip; q=0", False), ("identity", False), ("", False)],
)
def test_accept_encoding_decides(accept: str, reads: bool) -> None:
    assert reads_gzip(accept.encode()) is reads


# ---- CORS


def allow(core: Any, *origins: str) -> None:
    object.__setattr__(core.limits, "cors_origins", origins)


async def test_pages_of_listed_origins_may_call_and_read_the_useful_headers(core: Any, assets: Assets) -> None:
    allow(core, PAGE)
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    async with client(core, assets) as http:
        asked = await http.options("/v1/completions", headers={"origin": PAGE} | asks)
        assert asked.status_code == 204 and asked.headers["access-control-allow-origin"] == PAGE
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization, content-type"
        for stream in (False, True):
            answer = await http.post("/v1/completions", json=TEXT | {"stream": stream}, headers={"origin": PAGE})
            assert answer.headers["access-control-allow-origin"] == PAGE and answer.headers["vary"] == "origin"
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        for path in ("/nothing", "/v1/models", "/v1/completions"):
            assert (await http.get(path, headers={"origin": PAGE})).headers["access-control-allow-origin"] == PAGE
        for origin, path in (("https://evil.example", "/v1/models"), (PAGE, "/ui"), (PAGE, "/debug/requests")):
            other = await http.get(path, headers={"origin": origin})
            assert "access-control-allow-origin" not in other.headers


async def test_without_the_setting_no_page_of_another_site_may_read_an_answer(core: Any, assets: Assets) -> None:
    async with client(core, assets) as http:
        asks = {"origin": PAGE, "access-control-request-method": "POST"}
        for answer in (await http.options("/v1/completions", headers=asks), await http.get("/health", headers=asks)):
            assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_star_allows_every_origin_and_a_header_cannot_be_injected() -> None:
    cors, headers = Cors(["*"]), {b"origin": b"null", b"access-control-request-method": b"POST"}
    assert dict(cors.headers("/v1/models", headers))[b"access-control-allow-origin"] == b"*"
    odd = cors.preflight("/v1/models", headers | {b"access-control-request-headers": b"a\r\nset-cookie: x"})
    assert odd is not None and b"access-control-allow-headers" not in dict(odd)


@pytest.mark.parametrize("origin", ["chat.example.com", "https://a.example/", "https://a b", ""])
def test_an_origin_that_browsers_never_send_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"cors_origins: .* is no origin"):
        GatewayConfig(cors_origins=(origin,))
    assert GatewayConfig(cors_origins=("http://localhost:3000", "*")).cors_origins


# ---- errors that another try may cure


async def test_such_an_error_says_when_to_try_again_and_what_the_try_has_cost(url: str, core: Any) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=None) as http:
        core.refuse = Unavailable("full", retry_after_seconds=2.25)
        answer = await http.post("/v1/completions", json=TEXT)
        assert answer.status_code == 503 and answer.json()["error"]["details"] == {"tokens_spent": "0"}
        wanted = {"retry-after": "3", "retry-after-ms": "2250", "x-should-retry": "true", "x-baton-tokens-spent": "0"}
        assert wanted.items() <= dict(answer.headers).items()
        core.refuse = None
        wrong = await http.post("/v1/completions", json=TEXT | {"n": 0})
        assert "x-baton-tokens-spent" not in wrong.headers and "details" not in wrong.json()["error"]


async def test_a_compressed_body_and_a_compressed_error(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=None) as http:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        content = gzip.compress(json.dumps(TEXT | {"temperature": -1, "user": "x" * 1000}).encode())
        answer = await http.post("/v1/completions", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")
