"""Structured output over HTTP, with the built-in pair in real processes: schemas, forms, and calls that are forced."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio

from tests.schemas.__main__ import FEWEST, built_in_mesh, coverage
from tests.schemas.cases import WHOLE, cases
from tests.schemas.run import ask_all, judge

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "mesh_status",
            "description": "Look at the workers of a tier",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"tier": {"type": "string", "enum": ["prefill", "decode"]}},
                "required": ["tier"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "paint",
            "parameters": {
                "type": "object",
                "properties": {"colours": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}},
            },
        },
    },
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with built_in_mesh(str(tmp_path_factory.mktemp("cache"))) as url:
        yield url


async def chat(url: str, **fields: Any) -> tuple[int, Any]:
    body = {"messages": [{"role": "user", "content": "How many decode workers run?"}], "max_tokens": 300} | fields
    async with httpx2.AsyncClient(timeout=120) as client:
        reply = await client.post(f"{url}/v1/chat/completions", json=body)
    return reply.status_code, reply.json()


async def text(url: str, **fields: Any) -> str:
    status, answer = await chat(url, **fields)
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


async def calls(url: str, **fields: Any) -> list[tuple[str, Any]]:
    status, answer = await chat(url, **{"tools": TOOLS, **fields})
    assert status == 200, answer
    choice = answer["choices"][0]
    found = choice["message"].get("tool_calls") or []
    assert (choice["finish_reason"] == "tool_calls") == bool(found)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found]


@in_one_loop
async def test_every_finished_answer_validates(url: str) -> None:
    """A slice of `make schemas`."""
    chosen = [case for at, case in enumerate(cases()) if at % 16 == 0 or case[0] in list(WHOLE)[::3]]
    answers = await ask_all(url, chosen)
    assert [answered for answered in answers if answered.problem] == []
    assert sum(answered.finished for answered in answers) > 0.8 * len(answers)


def test_every_supported_keyword_stands_in_several_schemas() -> None:
    assert min(coverage().values()) >= FEWEST
    assert len(list(cases())) >= 300


def test_an_answer_that_breaks_its_schema_is_noticed() -> None:
    assert judge('{"a": 1}', {"type": "object", "required": ["b"]})
    assert judge('{"a": 1', {"type": "object"})


@in_one_loop
async def test_a_regular_expression_a_choice_and_a_grammar_are_followed(url: str) -> None:
    assert re.fullmatch(r"[A-F]{3}-\d+", await text(url, structured_outputs={"regex": r"[A-F]{3}-\d{2,4}"}))
    choice = ["one/1", 'two "2"', "three"]
    assert await text(url, structured_outputs={"choice": choice}) in choice
    tokens_by_name = ["<tool_call>x", "<|end|>", "</tools>"]
    assert await text(url, structured_outputs={"choice": tokens_by_name}) in tokens_by_name
    calculation = 'start: n (("+" | "-") n){2}\nn: /[1-9][0-9]?/'
    assert re.fullmatch(r"\d+([+-]\d+){2}", await text(url, structured_outputs={"grammar": calculation}))
    assert isinstance(json.loads(await text(url, response_format={"type": "json_object"})), dict)
    compact = await text(url, structured_outputs={"json": WHOLE["matrix"], "disable_any_whitespace": True})
    assert re.fullmatch(r"[\[\]0-9,]+", compact)


@in_one_loop
async def test_completions_follow_forms_too_and_streams_add_up(url: str) -> None:
    form = {"structured_outputs": {"regex": "[a-z]{5} [0-9]{7}"}}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        await whole_and_streamed_are_equal(client, form)


async def whole_and_streamed_are_equal(client: openai.AsyncOpenAI, form: Any) -> None:
    whole = await client.completions.create(model="", prompt="Once", max_tokens=60, extra_body=form)
    parts = [
        chunk.choices[0].text
        async for chunk in await client.completions.create(
            model="", prompt="Once", max_tokens=60, stream=True, extra_body=form
        )
    ]
    assert "".join(parts) == whole.choices[0].text and re.fullmatch("[a-z]{5} [0-9]{7}", whole.choices[0].text)


@in_one_loop
async def test_logprobs_stay_those_of_the_model(url: str) -> None:
    _, answer = await chat(url, structured_outputs={"choice": ["zzzz"]}, logprobs=True, top_logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]["content"]
    assert "".join(each["token"] for each in logprobs).startswith("zzzz")
    assert any(each["logprob"] < -1 for each in logprobs) and all(len(each["top_logprobs"]) == 2 for each in logprobs)


@in_one_loop
async def test_at_max_tokens_the_answer_ends_with_length(url: str) -> None:
    _, answer = await chat(url, structured_outputs={"regex": "[a-z]{100}"}, max_tokens=10)
    assert answer["choices"][0]["finish_reason"] == "length"


@in_one_loop
async def test_required_and_named_tools_are_called_with_valid_arguments(url: str) -> None:
    for temperature in (0.0, 1.0):
        more: Any = {"temperature": temperature, "seed": 5}
        found = await calls(url, tool_choice="required", parallel_tool_calls=False, **more)
        assert len(found) == 1 and found[0][0] in ("mesh_status", "paint")
        named = {"type": "function", "function": {"name": "mesh_status"}}
        ((name, arguments),) = await calls(url, tool_choice=named, **more)
        assert name == "mesh_status" and not judge(json.dumps(arguments), TOOLS[0]["function"]["parameters"])
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "mesh_status"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        assert {name for name, _ in await calls(url, tool_choice=choice, parallel_tool_calls=False, **more)} == {
            "mesh_status"
        }


@in_one_loop
async def test_strict_tools_leave_the_model_free_to_answer_or_to_call(url: str) -> None:
    assert await calls(url) == [("mesh_status", {"tier": "decode"})]
    hello = [{"role": "user", "content": "Count from 3 to 9."}]
    assert await calls(url, messages=hello) == []


@in_one_loop
async def test_with_tools_an_answer_is_a_call_or_follows_its_schema(url: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": WHOLE["unit"]}}
    _, answer = await chat(url, tools=TOOLS, response_format=schema, parallel_tool_calls=False)
    message = answer["choices"][0]["message"]
    assert message.get("tool_calls") or not judge(message["content"], WHOLE["unit"])


@in_one_loop
async def test_a_structural_tag_holds_json_of_its_schema(url: str) -> None:
    tag = {"begin": "How", "schema": {"type": "integer"}, "end": "!"}
    form = {"type": "structural_tag", "structures": [tag], "triggers": ["How"]}
    _, answer = await chat(url, response_format=form, max_tokens=60)
    content = answer["choices"][0]["message"]["content"]
    assert all(re.match(r"-?\d+!", rest) for rest in content.split("How")[1:-1])


@in_one_loop
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "regex"),
        ({"structured_outputs": {"grammar": "start: a"}}, "structured_outputs.grammar", "unknown name"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "list of texts"),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json.not", "'not' is not supported"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "is no field"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "one of"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "cannot be combined"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens", "cannot be combined"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "must be"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}},
            "tool_choice",
            "'fly'",
        ),
    ],
)
async def test_what_cannot_be_followed_is_refused_before_a_token(url: str, fields: Any, param: str, words: str) -> None:
    status, answer = await chat(url, **fields)
    assert status == 400, answer
    assert answer["error"]["param"] == param and words in answer["error"]["message"]


@in_one_loop
async def test_a_forced_call_has_equal_arguments_through_every_api(url: str) -> None:
    text, declared = "How many decode workers run?", TOOLS[0]["function"]
    own = {"name": declared["name"], "description": declared["description"], "strict": True}
    message = {"messages": [{"role": "user", "content": text}], "max_tokens": 300, "temperature": 0}
    bodies: dict[str, Any] = {
        "chat/completions": message | {"tools": TOOLS[:1], "tool_choice": "required"},
        "responses": {
            "input": text,
            "temperature": 0,
            "tools": [{"type": "function", "parameters": declared["parameters"], **own}],
            "tool_choice": {"type": "function", "name": declared["name"]},
        },
        "messages": message
        | {"tools": [own | {"input_schema": declared["parameters"]}], "tool_choice": {"type": "any"}},
    }
    async with httpx2.AsyncClient(timeout=120) as client:
        answers = [(await client.post(f"{url}/v1/{path}", json=body)).json() for path, body in bodies.items()]
    assert not any("error" in answer and answer["error"] for answer in answers), answers
    called = answers[0]["choices"][0]["message"]["tool_calls"][0]["function"]
    item, block = answers[1]["output"][0], answers[2]["content"][0]
    assert called["name"] == item["name"] == block["name"] == "mesh_status"
    assert json.loads(called["arguments"]) == json.loads(item["arguments"]) == block["input"] != {}
    usages = [answer["usage"] for answer in answers]
    assert usages[0]["prompt_tokens"] == usages[1]["input_tokens"]
    assert usages[2]["input_tokens"] + usages[2]["cache_read_input_tokens"] == usages[1]["input_tokens"]
