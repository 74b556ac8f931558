"""Ollama's API, in the shapes that its clients read."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mesh.errors import Unavailable
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.reference.test_responses import CALL, TEMPLATE, prompt_of

CHAT, GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"
HI: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


async def post(url: str, path: str, body: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=None) as client:
        return await client.post(f"{url}{path}", json=body, headers={"x-request-id": "same"})


async def get(url: str, path: str) -> Any:
    async with httpx2.AsyncClient(timeout=None) as client:
        answer = await client.get(f"{url}{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def lines(url: str, path: str, body: Any) -> list[Any]:
    answer = await post(url, path, body)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/x-ndjson", answer.text
    assert answer.text.endswith("}\n")
    return [json.loads(each) for each in answer.text.splitlines()]


async def whole(url: str, path: str, body: Any) -> Any:
    answer = await post(url, path, body | {"stream": False})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def refused(url: str, path: str, body: Any) -> str:
    answer = await post(url, path, body)
    assert answer.status_code == 400 and list(answer.json()) == ["error"], answer.text
    return str(answer.json()["error"])


async def test_a_chat_streams_lines_unless_it_says_otherwise(url: str) -> None:
    found = await lines(url, CHAT, HI)
    assert [each["done"] for each in found] == [False] * (len(found) - 1) + [True]
    assert "".join(each["message"]["content"] for each in found) == "hello world"
    assert all(each["model"] == "tiny" and each["message"]["role"] == "assistant" for each in found)
    last = found[-1]
    assert last["done_reason"] == "stop" and last["message"]["content"] == ""
    assert last["total_duration"] == 500_000_000 and last["eval_duration"] == 250_000_000
    assert last["prompt_eval_count"] > 0 and last["eval_count"] == len("hello world") + 1
    assert found[0]["created_at"].endswith("Z")
    answer = await whole(url, CHAT, HI)
    assert answer["message"] == {"role": "assistant", "content": "hello world"} and answer["done"]


async def test_a_prompt_is_a_users_message_or_goes_as_it_is(url: str, core: FakeCore) -> None:
    answer = await whole(url, GENERATE, {"model": "tiny:latest", "prompt": "hi", "system": "be brief"})
    assert (answer["response"], answer["done_reason"], answer["model"]) == ("hello world", "stop", "tiny:latest")
    assert "be brief" in prompt_of(core) and "hi" in prompt_of(core)
    await whole(url, GENERATE, {"prompt": "hi", "raw": True})
    assert bytes(core.streams[-1].choice.prompt) == b"hi"
    found = await lines(url, GENERATE, {"prompt": "hi"})
    assert "".join(each["response"] for each in found) == "hello world" and found[-1]["done"]


async def test_options_keep_their_meaning(url: str, core: FakeCore) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "min_p": 0.125,
        "seed": 3,
        "num_predict": 5,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "stop": ["xyz"],
        "num_ctx": 64,
    }
    answer = await post(url, CHAT, HI | {"options": options, "keep_alive": "5m", "stream": False})
    sampling = core.streams[0].choice.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed) == (
        0.5,
        7,
        0.25,
        0.125,
        3,
    )
    assert sampling.max_tokens == 5 and sampling.adjustments is not None
    assert sampling.adjustments.repetition_penalty == 1.5
    assert answer.json()["done_reason"] == "length" and answer.json()["message"]["content"] == "hello"
    assert answer.headers["x-baton-ignored"] == "keep_alive, options.num_ctx"
    for limit in (-1, -2, None, 10**6):
        await whole(url, CHAT, HI | {"options": {"num_predict": limit}})
        choice = core.streams[-1].choice
        assert choice.sampling.max_tokens == 512 - len(choice.prompt)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"options": {"temperature": "hot"}}, "options.temperature must be a number"),
        ({"options": {"top_k": 1.5}}, "options.top_k must be a whole number"),
        ({"options": {"top_p": 7.0}}, "options.top_p must be"),
        ({"options": {"stop": [1]}}, "options.stop must be text"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty must be from 0.01"),
        ({"options": {"mirostat": 1}}, "options.mirostat is not supported"),
        ({"format": "yaml"}, "format is 'yaml'; it must be"),
        ({"format": {"type": "no"}}, "format.schema"),
        ({"think": "hard"}, "think is 'hard'; it must be"),
        ({"logprobs": True}, "logprobs is not supported here"),
        ({"messages": [{"content": "a"}]}, "messages[0].role is missing"),
        ({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "messages[0].images is not supported"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0] is the result of a tool"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]},
            "arguments",
        ),
        ({"messages": "hi"}, "messages"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_its_name(url: str, body: Any, words: str) -> None:
    assert words in await refused(url, CHAT, HI | body)


async def test_a_suffix_needs_a_model_that_fills_in_a_middle(url: str, core: FakeCore) -> None:
    assert "no tokens to fill in a middle" in await refused(url, GENERATE, {"prompt": "a", "suffix": "b"})
    await whole(url, GENERATE, {"prompt": "a", "suffix": ""})


@pytest.mark.parametrize("field", ["template", "context", "images"])
async def test_fields_of_a_prompt_that_would_change_it_are_refused(url: str, field: str) -> None:
    value: Any = {"context": [1], "images": ["x"]}.get(field, "x")
    assert f"{field} is not supported" in await refused(url, GENERATE, {"prompt": "a", field: value})
    await whole(url, GENERATE, {"prompt": "a", field: type(value)()})


async def test_an_answer_has_the_form_that_the_format_demands(url: str, core: FakeCore) -> None:
    core.reply = b'{"a":1}'
    for form in ("json", {"type": "object", "properties": {"a": {"type": "integer"}}}):
        await whole(url, CHAT, HI | {"format": form})
        assert core.streams[-1].choice.sampling.grammar


async def test_calls_come_whole_and_their_results_find_them_by_name(url: str, core: FakeCore) -> None:
    core.reply = CALL
    answer = await whole(url, CHAT, HI | {"tools": [TOOL]})
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "add" and isinstance(call["function"]["arguments"], dict)
    found = [each for each in await lines(url, CHAT, HI | {"tools": [TOOL]}) if "tool_calls" in each["message"]]
    assert [each["message"]["tool_calls"] for each in found] == [[call]]
    core.reply = b"3"
    said = [*HI["messages"], answer["message"], {"role": "tool", "tool_name": "add", "content": "the sum is 3"}]
    assert (await whole(url, CHAT, HI | {"messages": said, "tools": [TOOL]}))["message"]["content"] == "3"
    assert "the sum is 3" in prompt_of(core)
    twice = [*said, {"role": "tool", "tool_name": "add", "content": "again"}]
    assert "no open call" in await refused(url, CHAT, HI | {"messages": twice})


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": []}), (CHAT, {}), (GENERATE, {}), (GENERATE, {"prompt": ""})]
)
async def test_a_request_that_asks_nothing_says_that_the_model_is_loaded(url: str, path: str, body: Any) -> None:
    answer = await whole(url, path, {"model": "tiny", **body})
    assert answer["done"] and answer["done_reason"] == "load" and "eval_count" not in answer
    assert (await lines(url, path, {"model": "tiny", **body}))[0]["done_reason"] == "load"


@pytest.mark.parametrize(
    ("path", "wrong", "field"),
    [
        *((path, {"cache_salt": "x" * 129}, "cache_salt") for path in (CHAT, GENERATE)),
        *((path, {"priority": 1 << 40}, "priority") for path in (CHAT, GENERATE)),
        *((path, {"request_id": ""}, "request_id") for path in (CHAT, GENERATE, EMBED)),
        *((path, {"options": {"top_k": "many"}}, "options.top_k") for path in (CHAT, GENERATE)),
        *((path, {"think": "a lot"}, "think") for path in (CHAT, GENERATE)),
        *((path, {"format": "xml"}, "format") for path in (CHAT, GENERATE)),
        *((path, {"options": {"stop": [""]}}, "options.stop") for path in (CHAT, GENERATE)),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "description": {}}}]}, "description"),
        (EMBED, {"dimensions": -1}, "dimensions"),
    ],
)
async def test_a_request_that_asks_nothing_has_right_fields_too(url: str, path: str, wrong: Any, field: str) -> None:
    assert (await post(url, path, {"model": "tiny"})).status_code == 200
    assert field in await refused(url, path, {"model": "tiny", **wrong})


async def test_errors_before_and_within_a_stream(url: str, core: FakeCore) -> None:
    unknown = await post(url, CHAT, HI | {"model": "other:latest"})
    assert unknown.status_code == 404 and "other" in unknown.json()["error"]
    for path in ("/api/pull", "/api/tags"):  # a path that is not there, and a method
        assert isinstance((await post(url, path, {})).json()["error"], str)
    async with httpx2.AsyncClient() as client:
        assert (await client.head(url)).status_code == 200, "the command of Ollama looks so whether a server is there"
    core.fail_at = {3: Unavailable("the mesh is busy")}
    found = await lines(url, CHAT, HI)
    assert found[-1] == {"error": "the mesh is busy"} and not any(each.get("done") for each in found)


async def test_the_pages_say_what_is_served(url: str) -> None:
    assert [each["name"] for each in (await get(url, "/api/tags"))["models"]] == ["tiny"]
    assert (await get(url, "/api/ps"))["models"][0]["context_length"] == 512
    assert tuple(map(int, (await get(url, "/api/version"))["version"].split("."))) >= (0, 6, 4)
    shown = (await post(url, "/api/show", {"model": "tiny:latest"})).json()
    about = shown["model_info"]
    assert about[f"{about['general.architecture']}.context_length"] == 512 and shown["template"] == TEMPLATE
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert (await post(url, "/api/show", {"model": "x"})).status_code == 404


async def test_texts_become_vectors(url: str) -> None:
    answer = (await post(url, "/api/embed", {"model": "tiny", "input": ["a", "bc"]})).json()
    assert [len(each) for each in answer["embeddings"]] == [2, 2] and answer["prompt_eval_count"] > 0
    assert (await post(url, "/api/embed", {"model": "tiny", "input": []})).json()["embeddings"] == []


async def test_a_long_text_to_embed_keeps_its_beginning_unless_the_client_refuses_that(
    url: str, core: FakeCore
) -> None:
    body = {"model": "tiny", "input": "ab" + "x" * 6000, "keep_alive": "5m", "options": {"num_ctx": 8}}
    answer = await post(url, "/api/embed", body)
    assert answer.status_code == 200 and answer.json()["prompt_eval_count"] == 512
    assert answer.headers["x-baton-ignored"] == "options, keep_alive"
    assert bytes(core.examinations[-1].choice.prompt[:3]) == b"abx"
    assert "512" in await refused(url, "/api/embed", body | {"truncate": False})


async def test_pages_of_other_servers(url: str) -> None:
    assert (await get(url, "/ping"))["status"] == (await get(url, "/healthz"))["status"] == "ok"
    props = await get(url, "/props")
    assert props["default_generation_settings"]["n_ctx"] == 512 and props["chat_template"] == TEMPLATE
    assert await get(url, "/props?model=tiny") == props
    async with httpx2.AsyncClient() as client:
        assert (await client.get(f"{url}/props?model=x")).status_code == 404
    assert len(await get(url, "/slots")) == props["total_slots"] == 1
    info = await get(url, "/server_info")
    assert info["models"][0]["id"] == "tiny" and info["workers"] == {"prefill": 1, "decode": 1}
