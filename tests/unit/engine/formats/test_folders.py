"""Folders as people have them, read as transformers reads them: its logits are the oracle. What cannot be computed is
refused by file and field."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.writing import write_safetensors
from engine.model.config import read_config
from engine.model.rope import inverse_frequencies
from engine.model.weights import open_weights
from tests.unit.engine.test_transformers import logits_of, oracle

Edit = Callable[[Path], object]
Words = Callable[..., list[int]]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def forget(folder: Path, *fields: str) -> None:
    path = folder / "config.json"
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name not in fields})
    )


def store(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Writes model.safetensors anew, in fp32, after `edit` has changed its tensors."""
    tensors = {name: np.array(tensor.values) for name, tensor in Checkpoint(folder).tensors.items()}
    edit(tensors)
    flat = {name: values.reshape(-1) for name, values in tensors.items()}

    def fill(name: str, shape: tuple[int, ...], first: int, count: int) -> Any:
        return flat[name][first : first + count]

    aside = folder / "aside"
    write_safetensors(aside, "fp32", {name: values.shape for name, values in tensors.items()}, fill)
    aside.rename(folder / "model.safetensors")


def mistral(folder: Path, **fields: Any) -> None:
    change(folder, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None, **fields)


def own_head(folder: Path) -> None:
    """The config says that head and embedding are one, the file has two."""
    store(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING][::-1].copy()}))


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHAPES: dict[str, tuple[str, dict[str, Any], Edit]] = {
    "swish": ("llama2", {}, lambda folder: change(folder, hidden_act="swish")),
    "mistral without a window": ("llama3", {}, lambda folder: mistral(folder, rope_scaling=None)),
    "mistral with a window as long as the context": (
        "llama2",
        {},
        lambda folder: (mistral(folder), change(folder, sliding_window=512))[0],
    ),
    "mistral without head_dim": ("llama2", {}, lambda folder: (mistral(folder), forget(folder, "head_dim"))[0]),
    "windows that no layer uses": (
        "qwen2",
        {},
        lambda folder: change(folder, use_sliding_window=True, sliding_window=16, max_window_layers=2),
    ),
    "windows that layer_types switch off": (
        "qwen3",
        {},
        lambda folder: change(
            folder,
            use_sliding_window=True,
            sliding_window=16,
            max_window_layers=0,
            layer_types=["full_attention", "full_attention"],
        ),
    ),
    "a tied head that differs": ("qwen2", {"tied": True}, own_head),
    "a tied head that is the same": (
        "qwen2",
        {"tied": True},
        lambda folder: store(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING]})),
    ),
    "an embedding that stands there as the head": (
        "llama3",
        {"tied": True},
        lambda folder: store(folder, lambda tensors: tensors.update({HEAD: tensors.pop(EMBEDDING)})),
    ),
    "a stale index": (
        "llama2",
        {},
        lambda folder: (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "gone.safetensors"}}'
        ),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_transformers(shape: str, tmp_path: Path, engine: Any, words: Words) -> None:
    family, options, edit = SHAPES[shape]
    folder = tiny(tmp_path / "model", family, **options)
    edit(folder)
    prompt = words(60)
    assert np.abs(engine(folder, product_path="fp32").logits(prompt) - logits_of(oracle(folder), prompt)).max() <= 1e-4


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": None, "rope_theta": 5e5},
        {
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "default", "rope_theta": 7e4},
        },
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}, "rope_theta": 5e5},
        {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 7e4}},
        {"rope_scaling": LLAMA3, "rope_theta": 5e5},
        {"rope_scaling": LLAMA3, "original_max_position_embeddings": 64},
        {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 128}, "rope_parameters": None},
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": None, "rope_theta": None},
    ],
)
def test_rope_is_that_of_transformers(fields: dict[str, Any], tmp_path: Path) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    folder = tiny(tmp_path / "model", "llama2")
    change(folder, **{name: value for name, value in fields.items() if value is not None})
    forget(folder, *(name for name, value in fields.items() if value is None))
    theirs = LlamaRotaryEmbedding(transformers.AutoConfig.from_pretrained(folder)).inv_freq.numpy()
    config = read_config(folder)
    assert np.allclose(inverse_frequencies(config.rope, config.head_dim), theirs, rtol=2e-7, atol=0)


@pytest.mark.parametrize("family", ["llama2", "qwen2", "qwen3"])
def test_fields_that_are_left_out_mean_what_transformers_means(family: str, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", family, heads=32, kv_heads=32, head_dim=16, hidden=512)
    edits: list[Edit] = [lambda folder: None]
    if family == "llama2":
        edits.append(lambda folder: mistral(folder))
    for edit in edits:
        edit(folder)
        forget(folder, "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "attention_bias", "hidden_act")
        ours, theirs = read_config(folder), transformers.AutoConfig.from_pretrained(folder)
        assert (ours.kv_heads, ours.eps) == (theirs.num_key_value_heads, theirs.rms_norm_eps)
        assert (ours.tied, ours.head_dim) == (theirs.tie_word_embeddings, theirs.head_dim if family != "qwen2" else 16)


def test_a_window_hides_nothing_within_a_shorter_context(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2")
    mistral(folder)
    for fields in ({"sliding_window": 100}, {}):
        change(folder, **fields)
        if not fields:
            forget(folder, "sliding_window")
            change(folder, max_position_embeddings=8192)
        window = fields.get("sliding_window", 4096)
        whole, within, beyond = (
            open_weights(folder, tmp_path / "cache", context_tokens=count) for count in (0, window, window + 1)
        )
        assert (within.config.windows, within.config.context) == ((), window)
        assert whole.config.windows == beyond.config.windows == (window,) * whole.config.layers
        change(folder, sliding_window=None)
        without = open_weights(folder, tmp_path / "cache")
        assert within.model_hash == without.model_hash, "a window that hides nothing changes the model"
        assert whole.model_hash != without.model_hash, "the class does not tell the two apart"


def test_a_shorter_context_is_the_same_model(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2")
    whole = open_weights(folder, tmp_path / "cache")
    limited = open_weights(folder, tmp_path / "cache", context_tokens=100)
    assert (limited.config.context, whole.config.context) == (100, 512)
    assert limited.model_hash == whole.model_hash and len(list((tmp_path / "cache").glob("*.weights"))) == 1
    with pytest.raises(ModelError, match="context_tokens: 513 is more than the 512 tokens"):
        open_weights(folder, tmp_path / "cache", context_tokens=513)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_no_number_is_refused_with_its_place(dtype: str, value: float, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", dtype=dtype)
    file, place = folder / "model.safetensors", (1, 5)
    raw = bytearray(file.read_bytes())
    length = struct.unpack("<Q", raw[:8])[0]
    entry = json.loads(raw[8 : 8 + length])[HEAD]
    size = 4 if dtype == "fp32" else 2
    at = 8 + length + entry["data_offsets"][0] + (place[0] * entry["shape"][1] + place[1]) * size
    bits = {
        "fp32": np.float32(value).tobytes(),
        "fp16": np.float16(value).tobytes(),
        "bf16": np.float32(value).tobytes()[2:],
    }
    raw[at : at + size] = bits[dtype]
    file.write_bytes(raw)
    for _ in range(2):  # the second start looks again: nothing was kept of the first
        with pytest.raises(ModelError, match=rf"model\.safetensors: {HEAD}: is -?(nan|inf) at \[1, 5\]"):
            open_weights(folder, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.weights"))


def test_the_largest_finite_weight_is_served(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2")
    store(folder, lambda tensors: tensors[HEAD].__setitem__((1, 5), np.finfo(np.float32).max))
    open_weights(folder, tmp_path / "cache")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def bins(folder: Path) -> None:
    without_weights(folder)
    (folder / "pytorch_model-00001-of-00002.bin").write_bytes(b"PK")


def adapter(folder: Path) -> None:
    without_weights(folder)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "meta-llama/Llama-3.1-8B"}')


def gguf(folder: Path) -> None:
    without_weights(folder)
    (folder / "model-Q4.gguf").write_bytes(b"GGUF")


def pipe(name: str) -> Edit:
    def act(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return act


def many(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({f"tensor.{number}": entry for number in range(100_001)}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


REFUSED: list[tuple[Edit, str]] = [
    (bins, r"model\.safetensors: .*\.bin files.*python -c .*AutoModelForCausalLM.*save_pretrained"),
    (adapter, r"adapter of meta-llama/Llama-3\.1-8B.*merge"),
    (gguf, r"ts weights are GGUF: name the file itself"),
    (without_weights, r"model\.safetensors: .*save_pretrained"),
    (pipe("model.safetensors"), r"model\.safetensors: is no regular file"),
    (pipe("config.json"), r"config\.json: is no regular file"),
    (many, r"header: names 100001 tensors"),
    (lambda folder: change(folder, num_hidden_layers=10**6), r"num_hidden_layers: 1000000 is more than 4096"),
    (lambda folder: change(folder, max_position_embeddings=10**9), r"max_position_embeddings"),
    (lambda folder: mistral(folder, layer_types=["sliding_attention"]), r"layer_types"),
    (
        lambda folder: change(folder, sliding_window=64),
        r"sliding_window: .*\(64 of 512 tokens\).*context_tokens to at most 64",
    ),
    (lambda folder: change(folder, rope_scaling=LLAMA3 | {"partial_rotary_factor": 0.5}), r"rope_scaling\.partial"),
    (
        lambda folder: change(
            folder,
            architectures=["Qwen2ForCausalLM"],
            model_type="qwen2",
            use_sliding_window=True,
            max_window_layers="1",
        ),
        r"max_window_layers: '1' is not a whole number of layers",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
@pytest.mark.timeout(60)
def test_what_cannot_be_served_is_refused_in_words(number: int, tmp_path: Path) -> None:
    edit, message = REFUSED[number]
    folder = tiny(tmp_path / "model", "llama2", context=512)
    edit(folder)
    with pytest.raises(ModelError, match=message):
        open_weights(folder, tmp_path / "cache")
