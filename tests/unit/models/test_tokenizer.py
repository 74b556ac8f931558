"""Text to tokens and back, and conversations to text, the same for training and for serving."""

from itertools import islice
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from models.corpus import talks
from models.talk import Split
from models.template import BEGIN, END, SPECIAL, VISIBLE, Template
from models.tokenizer import save_tokenizer, token_id


def test_each_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("1234567890 37+45").tokens == [*"1234567890", "Ġ", *"37+45"]


@pytest.fixture(scope="module")
def encode_decode(tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer


def test_any_text_comes_back(encode_decode: Tokenizer) -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.text())
    def comes_back(text: str) -> None:
        ids = encode_decode.encode(text, add_special_tokens=False).ids
        assert encode_decode.decode(ids, skip_special_tokens=False) == text

    comes_back()


def test_marks_are_one_token_and_only_those_of_tools_are_shown(tokenizer: Tokenizer) -> None:
    for text in (*SPECIAL, *VISIBLE):
        assert tokenizer.encode(text, add_special_tokens=False).ids == [token_id(tokenizer, text)]
    shown = tokenizer.decode(tokenizer.encode(f"{BEGIN}<tool_call>{{}}</tool_call>{END}").ids, skip_special_tokens=True)
    assert shown == "<tool_call>{}</tool_call>"


def test_an_unknown_mark_is_an_error_that_names_it(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        token_id(tokenizer, "<|nonsense|>")


def test_transformers_renders_the_same_conversation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, 512)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = Template()
    with_tools = 0
    for talk in islice(talks(3, Split.TRAINED), 200):
        text = ours.render(talk.messages(), talk.tools)
        assert theirs.apply_chat_template(talk.messages(), tools=list(talk.tools) or None, tokenize=False) == text
        with_tools += bool(talk.tools)
    assert with_tools > 3


def test_a_question_is_what_its_answer_follows() -> None:
    template = Template()
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    answered = [*asked, {"role": "assistant", "content": "Hello!"}]
    prompt = template.render(asked, (), ask=True)
    assert prompt == "<|begin|><|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    assert template.render(answered, ()) == prompt + "Hello!<|end|>"


def test_arguments_given_as_text_are_rendered_like_an_object() -> None:
    def call(arguments: object) -> list[dict[str, object]]:
        function = {"name": "add", "arguments": arguments}
        return [{"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}]

    text = Template().render(call('{"a": 1}'), ())
    assert text == '<|begin|><|assistant|><tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|end|>'
    assert text == Template().render(call({"a": 1}), ())
