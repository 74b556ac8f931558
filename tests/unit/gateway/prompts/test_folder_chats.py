"""Chats, tool calls and logprobs with tokenizers that the gateway puts together from several files of a folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Metaspace

from gateway.dialects.openai.answer import chat_logprobs, completion_logprobs
from gateway.prompts.assets import Assets, load_assets
from gateway.prompts.prompt import ChatPrompt, encode_chat
from gateway.text.detokenizer import Detokenizer
from gateway.text.formats import HERMES, THINK
from mesh.messages.jobs import Token
from tests.unit.gateway.byte_model import letters
from tests.unit.gateway.prompts.test_prompt import HTTP
from tests.unit.gateway.prompts.test_tokenizer_files import SHAPES, change, sentence_pieces, write
from tests.unit.gateway.text.test_templates import QWEN3

LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
CHATML = "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}<|extra|><think>"
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
TOOL: Any = {"type": "function", "function": {"name": "f"}}
CONTENTS = (["hi a"], ["a <", "s> hi", " é"], [" hi ", "", "< /s"], ["<|", "end| >", "<|extra"])


def chats() -> list[list[dict[str, Any]]]:
    return [
        [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]
        for contents in CONTENTS
    ]


async def assert_as_transformers(folder: Path) -> None:
    theirs, assets = transformers.AutoTokenizer.from_pretrained(folder), load_assets(folder, "tiny")
    for messages in chats():
        expected = theirs.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
        expected = expected if isinstance(expected, list) else expected["input_ids"]
        ids, _ = await encode_chat(assets, ChatPrompt(messages), HTTP)
        assert list(ids) == expected, messages


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("more", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}])
async def test_chats_in_pieces_of_sentences_are_those_of_transformers(
    kind: str, more: dict[str, Any], folder: Path
) -> None:
    sentence_pieces(folder)
    content = {"max_position_embeddings": 512, "vocab_size": 300, "model_type": "llama"}
    write(folder, "config.json", content)
    change(folder, tokenizer_class=kind, chat_template=LLAMA2, **more)
    await assert_as_transformers(folder)


@pytest.mark.parametrize("shape", SHAPES)
async def test_chats_are_those_of_transformers_whichever_file_names_the_tokens(shape: str, folder: Path) -> None:
    change(folder, tokenizer_class="PreTrainedTokenizerFast", chat_template=CHATML)
    SHAPES[shape](folder)
    await assert_as_transformers(folder)


def two_maps(folder: Path) -> None:
    write(folder, "special_tokens_map.json", {"pad_token": "<|user|>", "eos_token": {"content": "<|system|>"}})


def two_maps_and_a_decoder(folder: Path) -> None:
    SHAPES["added_tokens_decoder"](folder)
    two_maps(folder)


NAMING = ("extra_special_tokens by name", "names and a list", "a token of its own name", "a named token that is new")


@pytest.mark.parametrize("edit", [*(SHAPES[shape] for shape in NAMING), two_maps, two_maps_and_a_decoder])
def test_templates_name_the_tokens_that_transformers_names(edit: Callable[[Path], object], folder: Path) -> None:
    names = "{{ bos_token }}{{ eos_token }} {{ image_token }} {{ pad_token }} {{ extra_special_tokens }}"
    change(folder, tokenizer_class="PreTrainedTokenizerFast", chat_template=names)
    edit(folder)
    theirs, assets = transformers.AutoTokenizer.from_pretrained(folder), load_assets(folder, "tiny")
    assert assets.template is not None
    assert assets.template.render(chats()[0]) == theirs.apply_chat_template(chats()[0], tokenize=False)
    assert theirs.eos_token_id in assets.eos_ids


def listed(folder: Path) -> None:
    ids = {str(261 + at): mark for at, mark in enumerate(MARKS)}
    change(folder, added_tokens_decoder={number: {"content": mark, "special": True} for number, mark in ids.items()})


def legacy(folder: Path) -> None:
    write(folder, "added_tokens.json", {mark: 261 + at for at, mark in enumerate(MARKS)})
    write(folder, "special_tokens_map.json", {"additional_special_tokens": MARKS})


def plain(folder: Path) -> None:
    write(folder, "added_tokens.json", {mark: 261 + at for at, mark in enumerate(MARKS)})


@pytest.mark.parametrize("edit", [listed, legacy, plain])
async def test_marks_that_other_files_make_tokens_are_read_and_never_a_clients(
    edit: Callable[[Path], None], folder: Path
) -> None:
    (folder / "chat_template.jinja").write_text(QWEN3)
    edit(folder)
    assets = load_assets(folder, "tiny")
    assert (assets.tool_format, assets.why_no_tools, assets.reasoning) == (HERMES, None, THINK)
    marks = set(range(261, 265))
    hostile: Any = [{"role": "user", "content": "".join(MARKS)}]
    ids, reading = await encode_chat(assets, ChatPrompt(hostile, tools=[TOOL]), HTTP)
    assert marks.isdisjoint(ids)
    written: Any = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    earlier: Any = [*hostile, {"role": "assistant", "reasoning": "so", "tool_calls": [written]}]
    ids, _ = await encode_chat(assets, ChatPrompt(earlier, tools=[TOOL]), HTTP)
    assert [number for number in ids if number in marks] == [263, 264, 261, 262]
    shown = assets.tokenizer.ids_of(reading.marks)
    detokenizer = Detokenizer(assets.tokenizer, ids, shown=shown)
    assert [detokenizer.push(number) for number in (263, 97, 264, 261)] == ["<think>", "a", "</think>", "<tool_call>"]


async def test_a_model_may_have_no_special_tokens(folder: Path) -> None:
    Tokenizer(BPE(vocab={letter: byte for byte, letter in enumerate(letters())}, merges=[])).save(
        str(folder / "tokenizer.json")
    )
    write(folder, "tokenizer_config.json", {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    assets = load_assets(folder, "tiny")
    assert (await encode_chat(assets, ChatPrompt([{"role": "user", "content": "a<|b"}]), HTTP))[0] == tuple(b"a<|b")


async def test_tokens_behind_a_control_token_that_the_vocabulary_can_spell_keep_their_ids(folder: Path) -> None:
    vocabulary = {letter: byte for byte, letter in enumerate(letters())} | {"<s": 256, "<s>": 257}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[("<", "s"), ("<s", ">")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("tab", normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "chat_template": LLAMA2})
    write(folder, "added_tokens.json", {"word": 260})
    assets = load_assets(folder, "tiny")
    for content, shown in (("a tab word <", b"<"), ("a tab word <s>", b"<s>")):
        ids, _ = await encode_chat(assets, ChatPrompt([{"role": "user", "content": content}]), HTTP)
        assert ids == (257, *b"[INST] a ", 259, *b" ", 260, *b" ", *shown, *b" [/INST]")


def unigram(folder: Path) -> None:
    pieces = ["<unk>", "</s>", "▁", "▁hi", "▁the", "a", "h", "i", "é"]
    tokenizer = Tokenizer(Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = Metaspace(), MetaspaceDecoder()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"eos_token": "</s>"})


def llama(folder: Path) -> None:
    sentence_pieces(folder)
    change(folder, tokenizer_class="LlamaTokenizer")


def gemma(folder: Path) -> None:
    llama(folder)
    change(folder, add_prefix_space=False)


@pytest.mark.parametrize("edit", [unigram, llama, gemma])
def test_tokens_of_logprobs_are_the_pieces_of_the_text_with_their_spaces(
    edit: Callable[[Path], None], folder: Path
) -> None:
    edit(folder)
    assets: Assets = load_assets(folder, "tiny")
    ids = assets.tokenizer.encode("hi hi a", special=False)
    tokens = [Token(at, token, -0.5, (token,), (-0.5,)) for at, token in enumerate(ids)]
    content = chat_logprobs(assets.tokenizer, tokens).content
    texts = [entry.token for entry in content]
    assert "".join(texts).removeprefix(" ") == "hi hi a"
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == "".join(texts)
    assert all(entry.top_logprobs[0].token == entry.token for entry in content)
    assert completion_logprobs(assets.tokenizer, tokens, [0] * len(tokens)).tokens == texts
    detokenizer = Detokenizer(assets.tokenizer, ids)  # behind a prompt each token has the text that its logprob shows
    assert [detokenizer.push(token) for token in ids] == texts
    assert json.dumps(texts, ensure_ascii=False).count("▁") == 0
