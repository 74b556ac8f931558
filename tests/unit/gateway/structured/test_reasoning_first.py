"""A model may reason before an answer that is free but for its calls or tags; the form binds what follows."""

from typing import Any

import pytest
from tokenizers import AddedToken

from gateway.structured.calls import call_form
from gateway.structured.forms import Form, parse_response_format
from gateway.text.formats import HERMES, LLAMA3, MISTRAL_THINK, THINK, ReasoningFormat, ToolFormat
from gateway.text.tool_choice import OfferedTools, ToolMode
from mesh.messages.grammar import Grammars
from tests.unit.gateway.byte_model import byte_tokenizer

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
STRICT = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": STRICT}}]
TAG = {"structures": [{"begin": "<f>", "schema": STRICT, "end": "</f>"}], "triggers": ["<f>"]}


class MarkedTokens:
    """Tokens are bytes; `added` stand for nothing else."""

    def __init__(self, *added: str) -> None:
        tokenizer = byte_tokenizer()
        tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in added])
        self.added = {name: tokenizer.token_to_id(name) for name in added}
        self._tokenizer, self._grammars = tokenizer, Grammars(tokenizer.to_str)

    def follows(self, form: Form | None, text: str) -> bool:
        assert form is not None and form.free
        matcher, ids = self._grammars.matcher(form.whole), self._tokenizer.encode(text).ids
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def calls(self, written: ToolFormat = HERMES, reasoning: ReasoningFormat | None = THINK) -> Form | None:
        offered = OfferedTools(tuple(TOOLS), ToolMode.AUTO)
        return call_form(TOOLS, offered, self.added, written, reasoning=reasoning)


@pytest.mark.parametrize("added", [MARKS, MARKS[:2], MARKS[1:2], MARKS[2:], ()], ids=str)
def test_a_strict_call_may_follow_reasoning_that_the_prompt_or_the_model_has_opened(added: tuple[str, ...]) -> None:
    model, call = MarkedTokens(*added), '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    form = model.calls()
    for before in ("", "Hm.", "Hm.</think>", "<think>Hm.</think>", "<think>\nHm.\n</think>\n\nSo: "):
        assert model.follows(form, before) and model.follows(form, before + call), before
        assert not model.follows(form, before + call.replace("{}", '{"x": 1}')), before
    other = model.calls(reasoning=MISTRAL_THINK)
    assert model.follows(other, "a</think>b") is not bool({*MARKS[:2]} & {*added})  # negative control


def test_a_bare_strict_call_may_follow_it_too_also_behind_white_space() -> None:
    model, call = MarkedTokens(*MARKS), '{"name": "f", "parameters": {}}'
    form = model.calls(LLAMA3)
    for before in ("", "\n", "Hm.</think>", "<think>Hm. {</think>\n\n"):
        assert model.follows(form, before + call), before
        assert not model.follows(form, before + call.replace("{}", '{"x": 1}')), before
        assert model.follows(form, f"{before}Hi {{there}}."), before


def test_tags_may_follow_it() -> None:
    model = MarkedTokens(*MARKS)
    form = parse_response_format({"type": "structural_tag"} | TAG, model.added, reasoning=THINK)
    assert model.follows(form, "<think>a</think>b <f>{}</f> c") and model.follows(form, "a</think>")
    assert not model.follows(form, "a</think>b <f>{1}</f>")
    assert not model.follows(form, "a</think>b</think>"), "reasoning stands at the beginning"
