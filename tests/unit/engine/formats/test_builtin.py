"""The models that Baton makes: complete folders with the same bytes on every machine."""

import json
from pathlib import Path

import pytest
import transformers
from blake3 import blake3
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from engine.builtin import DRAFT, MODEL, PAIR, ensure_random, make_model, tiny
from engine.formats.checkpoint import Checkpoint
from engine.model.config import read_config

BYTES = 16e6  # what both models may weigh


@pytest.mark.parametrize("folder", [MODEL, DRAFT], ids=["model", "draft"])
def test_the_shipped_pair_is_complete(folder: Path) -> None:
    config = read_config(folder)
    assert Checkpoint(folder).tensors
    assert (config.family, config.vocab, config.context) == ("llama", 2048, 2048)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("Hällo 漢字 🙂")["input_ids"]) == "Hällo 漢字 🙂"
    assert len(tokenizer("1234567", add_special_tokens=False)["input_ids"]) == 7
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|begin|><|user|>Hi<|end|><|assistant|>"


def test_the_shipped_pair_has_one_tokenizer_a_card_and_little_weight() -> None:
    names = ("tokenizer.json", "tokenizer_config.json")
    assert all((MODEL / name).read_bytes() == (DRAFT / name).read_bytes() for name in names)
    assert sum(file.stat().st_size for file in PAIR.rglob("*") if file.is_file()) <= BYTES
    assert {"README.md", "loss.svg", "evaluation.json"} <= {file.name for file in PAIR.iterdir()}


def test_the_shipped_pair_reaches_its_goals_in_its_own_evaluation() -> None:
    found = json.loads((PAIR / "evaluation.json").read_text())
    assert found["additions_exact"] >= 0.95 and found["json_valid"] >= 0.95 and found["wordings_named"] == 1.0
    assert found["draft_acceptance"] >= 0.6 and min(found["draft_acceptance_by_kind"].values()) >= 0.4
    assert found["draft_acceptance_sampled_ratio"] >= 0.8


def content(folder: Path) -> dict[str, str]:
    return {path.name: blake3(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_random_model_is_made_once_and_always_the_same(tmp_path: Path) -> None:
    folder = ensure_random(tmp_path)
    inode = folder.stat().st_ino
    assert ensure_random(tmp_path) == folder and folder.stat().st_ino == inode
    assert content(make_model(tmp_path / "again")) == content(folder)
    other = content(make_model(tmp_path / "other", seed=1))
    assert other["config.json"] == content(folder)["config.json"]
    assert other["model.safetensors"] != content(folder)["model.safetensors"]


def test_the_random_model_has_a_long_context_and_byte_tokens(tmp_path: Path) -> None:
    config = read_config(ensure_random(tmp_path))
    assert (config.family, config.layers, config.hidden, config.heads, config.kv_heads) == ("llama", 4, 256, 4, 2)
    assert (config.head_dim, config.ffn, config.context, config.vocab) == (64, 704, 8192, 262)


def test_every_id_can_be_decoded_and_every_text_encoded(tmp_path: Path) -> None:
    folder = ensure_random(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "Hällo, wörld!\n\t 你好 🙂 \x00\x7f  two  spaces"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.get_vocab_size() == 262
    assert all(isinstance(tokenizer.decode([token]), str) for token in range(262))
    assert tokenizer.decode([72, 257, 105]) == "Hi"
    assert tokenizer.encode("a<|end|>b").ids == [97, 257, 98]


def test_the_chat_template_renders_roles(tmp_path: Path) -> None:
    folder = ensure_random(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|begin|><|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids[0] == 256 and ids[1] == 260 and ids[-1] == 259 and ids.count(257) == 2
    assert tokenizer.eos_token_id == 257
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 257


def test_shards_hold_the_same_weights(tmp_path: Path) -> None:
    single = Checkpoint(tiny(tmp_path / "single", "llama2")).tensors
    sharded = Checkpoint(tiny(tmp_path / "sharded", "llama2", shards=3)).tensors
    assert len({tensor.path for tensor in sharded.values()}) == 3 and single.keys() == sharded.keys()
    assert all((single[name].values == sharded[name].values).all() for name in single)


def test_our_safetensors_are_read_by_the_reference_reader(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "qwen3", dtype="fp16")
    ours = Checkpoint(folder).tensors
    theirs = load_file(folder / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all((ours[name].values == theirs[name]).all() for name in ours)
