"""Damaged GGUF files are refused within a second, by file and field."""

import re
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from engine.formats.errors import ModelError
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
        (24, "<Q", 1 << 62, "length of key"),
    ],
)
def test_a_count_that_the_file_cannot_hold_is_named(
    at: int, form: str, value: int, word: str, tmp_path: Path, whole: bytes
) -> None:
    changed = bytearray(whole)
    struct.pack_into(form, changed, at, value)
    assert re.search(word, refused(tmp_path, bytes(changed)))


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
