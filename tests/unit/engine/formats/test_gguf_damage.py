"""Damaged GGUF files are refused within a second, by file and field."""

import re
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import tiny
from engine.formats.errors import ModelError
from engine.formats.gguf_file import read_gguf
from engine.formats.gguf_folder import folder_of_gguf
from tests.unit.engine.gguf_files import gguf_bytes, mixed, of_folder, wide

SECONDS = 1.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = wide(tmp_path_factory.mktemp("gguf") / "model")
    return gguf_bytes(*of_folder(folder, kinds=mixed, arch="llama", heads=4, kv_heads=2))


def refused(tmp_path: Path, data: bytes) -> str:
    file, began = tmp_path / "damaged.gguf", time.monotonic()
    file.write_bytes(data)
    with pytest.raises(ModelError) as error:
        folder_of_gguf(file, tmp_path / "cache")
    assert time.monotonic() - began < SECONDS and "damaged.gguf" in str(error.value)
    return str(error.value)


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path, whole: bytes) -> None:
    for share in range(1, 40):
        refused(tmp_path, whole[: len(whole) * share // 40])
    refused(tmp_path, b"")
    refused(tmp_path, whole[:-33])


@pytest.mark.parametrize(
    ("at", "form", "value", "word"),
    [
        (0, "<I", 0, "magic"),
        (4, "<I", 99, "version.*99"),
        (8, "<Q", 1 << 40, "tensor_count"),
        (8, "<Q", 100_000, "tensor_count.*100000 is more than"),
        (16, "<Q", 1 << 60, "metadata_kv_count"),
        (16, "<Q", 100_000, "metadata_kv_count.*100000 is more than"),
        (24, "<Q", 1 << 62, "length of key"),
    ],
)
def test_a_count_that_the_file_cannot_hold_is_named(
    at: int, form: str, value: int, word: str, tmp_path: Path, whole: bytes
) -> None:
    changed = bytearray(whole)
    struct.pack_into(form, changed, at, value)
    assert re.search(word, refused(tmp_path, bytes(changed)))


def header(*values: tuple[str, bytes]) -> bytes:
    """The beginning of a file with these values of the metadata, each with its type."""
    keys = [struct.pack("<Q", len(key)) + key.encode() + value for key, value in values]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(keys)


def listed(kind: int, count: int, contents: bytes = b"") -> bytes:
    return struct.pack("<IIQ", 9, kind, count) + contents


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([("a", listed(8, 1 << 22))], "length of a: 4194304 is more than"),
        ([("a", listed(4, 1 << 24))], "length of a: 16777216 is more than"),
        ([("a", listed(0, 1 << 20, bytes(1 << 20))), ("b", listed(0, 1500000))], "length of b: 1500000 is more than"),
        ([("a", struct.pack("<IQ", 8, 1 << 40))], "length of a: 1099511627776 is more than"),
        ([("a", listed(8, 2, struct.pack("<Q", 1 << 40)))], "length of a: 1099511627776 is more than"),
        ([("a", listed(9, 1))], "a: is a list of the unknown type 9"),
    ],
)
def test_lists_and_texts_without_bound_are_named(values: list[tuple[str, bytes]], word: str, tmp_path: Path) -> None:
    file = tmp_path / "damaged.gguf"
    file.write_bytes(header(*values))
    with file.open("r+b") as grown:
        grown.truncate(1 << 27)  # zeros that no disk holds: the file is long enough for its counts
    began = time.monotonic()
    with pytest.raises(ModelError, match=word):
        read_gguf(file)
    assert time.monotonic() - began < SECONDS


def test_a_header_has_a_length_that_it_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.formats.gguf_file._MOST_HEADER", 4096)
    texts = struct.pack("<Q", 3000) + bytes(3000)
    for values in (
        [("a", struct.pack("<I", 8) + texts), ("b", struct.pack("<I", 8) + texts)],
        [("a", struct.pack("<I", 0) + b"1"), ("b", listed(8, 2, texts + texts))],
    ):
        assert re.search("b: ends behind the 4096 bytes", refused(tmp_path, header(*values)))


def test_a_shape_whose_product_is_too_large_for_64_bits_is_refused(tmp_path: Path, whole: bytes) -> None:
    name, changed = b"blk.1.ffn_down.weight", bytearray(whole)
    at = whole.index(name) + len(name)
    sides = struct.pack("<I4Q", 4, 256, 1 << 22, 1 << 21, 1 << 21)
    changed[at : at + 4 + 2 * 8] = sides
    assert "blk.1.ffn_down.weight" in refused(tmp_path, bytes(changed))


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("llama.block_count", 1 << 31, r"llama\.block_count: 2147483648 is not one to 4096"),
        ("llama.block_count", 0, r"llama\.block_count: 0 is not one to 4096"),
        ("tokenizer.ggml.scores", ["a"] * 262, r"tokenizer\.ggml\.scores: are not numbers"),
        ("tokenizer.ggml.tokens", [*map(str, range(261)), "a" * 513], r"tokenizer\.ggml\.tokens: have \d+ letters"),
    ],
)
def test_values_that_would_take_all_time_or_memory_are_named(key: str, value: Any, word: str, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2")
    metadata, tensors = of_folder(folder, kinds=lambda name: "F32", arch="llama", heads=4, kv_heads=4)
    scored = metadata | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5] * 262}
    assert re.search(word, refused(tmp_path, gguf_bytes(scored | {key: value}, tensors)))


def test_tensors_that_overlap_or_lie_beyond_the_end_are_named(tmp_path: Path, whole: bytes) -> None:
    name = b"blk.1.ffn_down.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8 + 4
    for offset, word in ((0, "begins at byte 0, inside"), (1 << 50, "ends at byte"), (7, "begins at byte 7")):
        changed = bytearray(whole)
        struct.pack_into("<Q", changed, at, offset)
        said = refused(tmp_path, bytes(changed))
        assert word in said or "inside blk.1.ffn_down.weight" in said
    changed = bytearray(whole)
    struct.pack_into("<I", changed, at - 4, 10)
    assert "blk.1.ffn_down.weight" in (said := refused(tmp_path, bytes(changed))) and "Q2_K" in said


def test_random_damage_never_hangs_and_never_crashes(tmp_path: Path, whole: bytes) -> None:
    rng, header = np.random.default_rng(5), whole.index(b"blk.1.ffn_down.weight") + 60
    caught = 0
    for _ in range(150):
        changed = bytearray(whole)
        for at in rng.integers(0, header, 3):
            changed[at] = int(rng.integers(256))
        file, began = tmp_path / "damaged.gguf", time.monotonic()
        file.write_bytes(changed)
        try:
            folder_of_gguf(file, tmp_path / "cache")
        except ModelError as error:
            caught += "damaged.gguf" in str(error)
        assert time.monotonic() - began < SECONDS
    assert caught > 50
