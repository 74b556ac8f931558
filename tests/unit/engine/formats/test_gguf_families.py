"""GGUF files of every family, written with llama.cpp's own package from random folders: the same numbers, the same
logits, and what Baton would compute otherwise is refused by key."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.gguf_folder import folder_of_gguf
from engine.formats.stored import StoredMatrix
from engine.integers.numbers import dequantized
from engine.model.config import read_config
from engine.model.layout import read_tensors
from tests.families.folders import saved
from tests.unit.engine.gguf_families import KINDS, numbers_of, write_family
from tests.unit.engine.gguf_files import write_gguf

EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")


@pytest.mark.parametrize("family", KINDS)
def test_a_file_of_fp32_gives_the_bits_of_the_folder_it_was_made_of(
    family: str, tmp_path: Path, engine: Any, words: Any
) -> None:
    folder = saved(tmp_path / "model", family, KINDS[family].options)
    opened = folder_of_gguf(write_family(folder, tmp_path / "tiny.gguf", family), tmp_path / "cache")
    prompt = words(90)
    theirs, ours = (engine(each, product_path="fp32").logits(prompt) for each in (folder, opened))
    assert ours.tobytes() == theirs.tobytes()
    assert np.isfinite(ours).all() and ours.std() > 0.01


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("family", [*EXPERTS, "phi3", "gemma2", "granite"])
def test_quantized_matrices_stand_for_the_numbers_of_the_package(
    family: str, kind: str, tmp_path: Path, engine: Any, words: Any
) -> None:
    wide = {"moe_intermediate_size": 64} if family in EXPERTS and family not in ("mixtral", "olmoe") else {}
    wide |= {"shared_expert_intermediate_size": 96} if family == "qwen2_moe" else {}
    folder = saved(tmp_path / "model", family, KINDS[family].options | wide)
    opened = folder_of_gguf(write_family(folder, tmp_path / "tiny.gguf", family, kind), tmp_path / "cache")
    tensors, number = read_tensors(read_config(opened), Checkpoint(opened)), gguf.GGMLQuantizationType[kind]
    matrices = {name: each for name, each in tensors.items() if isinstance(each, StoredMatrix)}
    given = numbers_of(folder)
    assert matrices.keys() == {name for name, each in given.items() if each.ndim == 2 and "gate.weight" not in name}
    for name, stored in matrices.items():
        theirs = dequantize(quantize(given[name], number), number)
        assert np.array_equal(dequantized(stored.read()), theirs), name
    computed, prompt = engine(opened), words(50)
    assert (computed.logits(prompt, chunk=7) == computed.logits(prompt)).all()


def test_experts_in_tensors_of_their_own_are_read_too(tmp_path: Path, engine: Any, words: Any) -> None:
    """Files of 2023 hold Mixtral so."""
    folder = saved(tmp_path / "model", "mixtral", {})
    stacked = gguf.GGUFReader(write_family(folder, tmp_path / "stacked.gguf", "mixtral"))
    metadata = {key: each.contents() for key, each in stacked.fields.items() if not key.startswith("GGUF.")}
    tensors: dict[str, Any] = {}
    for tensor in stacked.tensors:
        values = np.array(tensor.data)
        if "_exps" not in tensor.name:
            tensors[tensor.name] = ("F32", values.shape, values.tobytes())
            continue
        for expert, one in enumerate(values):
            tensors[tensor.name.replace("_exps", f".{expert}")] = ("F32", one.shape, one.tobytes())
    opened = folder_of_gguf(write_gguf(tmp_path / "apart.gguf", metadata, tensors), tmp_path / "cache")
    prompt = words(40)
    assert (engine(opened).logits(prompt) == engine(folder).logits(prompt)).all()


REFUSED = [
    ("glm4", {"glm4.rope.dimension_sections": [1, 2]}, r"glm4\.rope\.dimension_sections"),
    ("llama", {"llama.rope.scaling.type": "dynamic"}, r"llama\.rope\.scaling\.type: 'dynamic'"),
    ("stablelm", {"stablelm.use_parallel_residual": True}, "use_parallel_residual"),
    ("llama", {"llama.attention.head_count": 0}, r"llama\.attention\.head_count"),
    ("bloom", {}, r"general\.architecture.*'bloom'.*qwen3moe"),
]


@pytest.mark.parametrize(("arch", "more", "words_of_it"), REFUSED)
def test_what_baton_would_compute_otherwise_is_refused_by_its_key(
    arch: str, more: dict[str, Any], words_of_it: str, tmp_path: Path
) -> None:
    family = arch if arch in KINDS else "llama"
    folder = saved(tmp_path / "model", family, KINDS[family].options)
    read = gguf.GGUFReader(write_family(folder, tmp_path / "tiny.gguf", family))
    metadata = {key: each.contents() for key, each in read.fields.items() if not key.startswith("GGUF.")}
    tensors = {each.name: ("F32", np.array(each.data).shape, np.array(each.data).tobytes()) for each in read.tensors}
    changed = metadata | {"general.architecture": arch} | more
    with pytest.raises(ModelError, match=words_of_it):
        read_config(folder_of_gguf(write_gguf(tmp_path / "other.gguf", changed, tensors), tmp_path / "cache"))


def test_a_tensor_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "olmo2", {})
    read = gguf.GGUFReader(write_family(folder, tmp_path / "tiny.gguf", "olmo2"))
    metadata = {key: each.contents() for key, each in read.fields.items() if not key.startswith("GGUF.")}
    tensors = {each.name: ("F32", np.array(each.data).shape, np.array(each.data).tobytes()) for each in read.tensors}
    tensors["blk.0.attn_norm.weight"] = ("F32", (64,), bytes(256))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_norm\.weight.*no tensor of this architecture"):
        folder_of_gguf(write_gguf(tmp_path / "other.gguf", metadata, tensors), tmp_path / "cache")
