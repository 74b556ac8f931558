"""A limit of reasoning on its way from a client to the core, through every door, and what it cannot stand beside."""

import json
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from tokenizers import AddedToken, Tokenizer

from baton.inference.v1 import inference_pb2 as pb
from gateway.prompts.assets import Assets
from gateway.text.mark_tokens import mark_places, space_tokens, stands_open
from gateway.text.tokenizer import ModelTokenizer
from mesh.messages.jobs import ReasoningBudget, TokenSequence
from tests.unit.gateway.byte_model import assets_of, byte_tokenizer
from tests.unit.gateway.public_grpc import RICH_TEMPLATE, ask

HI: Any = [{"role": "user", "content": "hi"}]
BEGIN, END = 261, 262  # <think> and </think>
OPENED = RICH_TEMPLATE.replace("<|assistant|>{%", "<|assistant|><think>\n{%")  # the template opens the reasoning
HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|return|>", "<|call|>", "<|constrain|>")


def marked(*names: str) -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in names])
    return tokenizer


@pytest.fixture
def template() -> str:
    return RICH_TEMPLATE


@pytest.fixture
def folder(folder: Path, template: str) -> Path:
    (folder / "chat_template.jinja").write_text(template)
    marked("<think>", "</think>").save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 263}))
    return folder


def budget(tokens: int, *, begun: bool = False) -> ReasoningBudget:
    return ReasoningBudget(
        tokens, (TokenSequence((BEGIN,)),), (TokenSequence((END,)),), begun=begun, spaces=tuple(b"\t\n\r ")
    )


async def post(url: str, path: str, **body: Any) -> Any:
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refusal(url: str, path: str, **body: Any) -> tuple[str, str]:
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error.get("param"), error["message"]


def reached(core: Any) -> ReasoningBudget | None:
    adjusted = core.streams[-1].choice.sampling.adjustments
    return None if adjusted is None else adjusted.reasoning


DOORS: dict[str, tuple[str, Any]] = {
    "chat": ("/v1/chat/completions", {"messages": HI, "thinking_token_budget": 7}),
    "completion": ("/v1/completions", {"prompt": "x", "thinking_token_budget": 7}),
    "responses": ("/v1/responses", {"input": "hi", "thinking_token_budget": 7}),
    "vllm": ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"thinking_token_budget": 7}}),
    "sglang": ("/generate", {"text": "x", "max_thinking_tokens": 7}),
    "messages": (
        "/v1/messages",
        {"messages": HI, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 7}},
    ),
}


@pytest.mark.parametrize("door", DOORS)
async def test_it_reaches_the_core_through_every_door(url: str, core: Any, door: str) -> None:
    path, body = DOORS[door]
    await post(url, path, **body)
    assert reached(core) == budget(7)


async def test_it_reaches_the_core_over_grpc_and_zero_is_a_number(stub: Any, core: Any) -> None:
    await stub.Generate(ask(sampling=pb.SamplingOptions(thinking_token_budget=0)))
    assert reached(core) == budget(0)
    await stub.Generate(ask())
    assert reached(core) is None


@pytest.mark.parametrize("more", [{}, {"thinking_token_budget": None}, {"thinking_token_budget": -1}])
async def test_without_a_limit_logits_stay_as_they_are(url: str, core: Any, more: Any) -> None:
    await post(url, "/v1/chat/completions", messages=HI, **more)
    assert core.streams[-1].choice.sampling.adjustments is None


@pytest.mark.parametrize("template", [OPENED])
async def test_reasoning_that_the_template_has_opened_counts_as_begun(url: str, core: Any) -> None:
    await post(url, "/v1/chat/completions", messages=HI, thinking_token_budget=7)
    assert reached(core) == budget(7, begun=True)


async def test_a_prompt_of_a_completion_shows_whether_it_stands_inside_reasoning(url: str, core: Any) -> None:
    for prompt, begun in (("<think>a</think>b", False), ("a</think><think>\nb", True), ("a", False)):
        await post(url, "/v1/completions", prompt=prompt, thinking_token_budget=7)
        assert reached(core) == budget(7, begun=begun), prompt


async def test_ranges_and_workers_without_it_are_refused_by_name(url: str, core: Any) -> None:
    for path, body in ((path, body) for path, body in DOORS.values() if "thinking_token_budget" in body):
        assert (await refusal(url, path, **body | {"thinking_token_budget": -2}))[0] == "thinking_token_budget"
    assert (await refusal(url, "/generate", text="x", max_thinking_tokens=-2))[0] == "max_thinking_tokens"
    wrong = {"type": "enabled", "budget_tokens": "many"}
    _, message = await refusal(url, "/v1/messages", messages=HI, max_tokens=9, thinking=wrong)
    assert "thinking.budget_tokens" in message
    core.adjusts_logits = False
    for door, name in (("chat", "thinking_token_budget"), ("sglang", "max_thinking_tokens")):
        path, body = DOORS[door]
        field, message = await refusal(url, path, **body)
        assert field == name and "GPU" in message


async def test_forms_that_leave_no_reasoning_keep_any_budget(url: str, core: Any) -> None:
    await post(url, "/v1/chat/completions", messages=HI, thinking_token_budget=7, structured_outputs={"choice": ["a"]})
    assert reached(core) == budget(7) and core.streams[-1].choice.sampling.grammar


async def test_other_wishes_must_let_the_end_come(url: str, core: Any) -> None:
    completion = {"prompt": "x", "thinking_token_budget": 7}
    field, message = await refusal(url, "/v1/completions", **completion, allowed_token_ids=[5, BEGIN])
    assert field == "allowed_token_ids" and "thinking_token_budget" in message
    await post(url, "/v1/completions", **completion, allowed_token_ids=[5, BEGIN, END])
    assert (await refusal(url, "/v1/completions", **completion, use_beam_search=True))[0] == "thinking_token_budget"


class TestModelWithoutReasoning:
    @pytest.fixture
    def template(self) -> str:
        return RICH_TEMPLATE.replace("think>", "thought>")

    async def test_a_model_without_reasoning_refuses_it_and_a_message_keeps_any(self, url: str, core: Any) -> None:
        for door in ("chat", "completion", "responses", "vllm", "sglang"):
            path, body = DOORS[door]
            field, message = await refusal(url, path, **body)
            assert field.rpartition(".")[2] in ("thinking_token_budget", "max_thinking_tokens")
            assert "reasoning_format" in message and "leave it out" in message
        path, body = DOORS["messages"]
        await post(url, path, **body)
        assert core.streams[-1].choice.sampling.adjustments is None

    async def test_over_grpc_too(self, stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(ask(sampling=pb.SamplingOptions(thinking_token_budget=3)))
        assert "sampling.thinking_token_budget" in str(refused.value.details())


def test_a_mark_that_is_text_may_be_joined_with_its_neighbours() -> None:
    tokenizer = ModelTokenizer(_merged())
    names = [{tokenizer.name_of(token) for token in place.tokens} for place in mark_places(tokenizer, "</t>")]
    assert names == [{"<", ".<"}, {"/"}, {"t"}, {">", ">;"}]
    assert mark_places(tokenizer, "</t>")[0].tokens[0] == ord("<"), "what is forced comes first"
    begin, end = mark_places(tokenizer, "<t>"), mark_places(tokenizer, "</t>")
    assert not stands_open(tokenizer.encode("<t>a.</t>;", special=False), begin, end)
    assert stands_open(tokenizer.encode("</t><t>;a</t", special=False), begin, end)


def test_channels_bar_the_name_of_the_one_for_reasoning(folder: Path, assets: Assets) -> None:
    source = "{# <|channel|>analysis<|message|> #}" + RICH_TEMPLATE.replace("think>", "t>")
    (folder / "chat_template.jinja").write_text(source)
    marked(*HARMONY).save(str(folder / "tokenizer.json"))
    files = [(each.name, each.read_bytes()) for each in sorted(folder.iterdir()) if each.is_file()]
    marks = assets_of(*files).reasoning_marks
    assert marks is not None and marks.barred == 1
    assert [place.tokens[0] for place in marks.begin] == [261, *b"analysis", 262]
    assert [place.tokens for place in marks.end] == [(257,)]
    assert marks.ends == (264, 265, 263, 261) and not marks.spaces, "every mark that stands behind a message ends it"


def test_tokens_of_white_space_are_found_however_a_vocabulary_spells_them() -> None:
    content = json.loads(_merged().to_str())
    content["model"]["vocab"] |= {"ĊĠ": 302, "Ġ" * 17: 303, "Ġa": 304}
    assert space_tokens(ModelTokenizer(Tokenizer.from_str(json.dumps(content)))) == (*b"\t\n\r ", 302)


def _merged() -> Tokenizer:
    content = json.loads(byte_tokenizer().to_str())
    content["model"]["vocab"] |= {".<": 300, ">;": 301}
    content["model"]["merges"] = [[".", "<"], [">", ";"]]
    return Tokenizer.from_str(json.dumps(content))
