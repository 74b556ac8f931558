"""The packed file is written once per host, shared, checked, and rebuilt when it is damaged."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import baton_kernels
from engine.builtin import tiny
from engine.families.rope import Rope
from engine.formats.errors import ModelError
from engine.model.rope import inverse_frequencies, rotary_tables
from engine.model.weights import open_weights

OPEN = """
import sys, os
from pathlib import Path
from engine.model.weights import open_weights
sys.stdin.readline()
weights = open_weights(Path(sys.argv[1]), Path(sys.argv[2]))
inodes = [path.stat().st_ino for path in Path(sys.argv[2]).glob("*.weights")]
print(weights.model_hash, inodes, float(weights.norm.sum()))
"""


def packed_file(cache: Path) -> Path:
    (path,) = cache.glob("*.weights")
    return path


def test_processes_that_pack_at_once_share_one_good_file(tmp_path: Path) -> None:
    folder, cache = tiny(tmp_path / "model", "qwen2", dtype="bf16", layers=4, hidden=192, ffn=512), tmp_path / "cache"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, str(folder), str(cache)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(3)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = [worker.communicate(timeout=240)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    assert len(set(said)) == 1 and said[0].strip()
    assert not list(cache.glob("*.tmp")) and not os.access(packed_file(cache), os.X_OK)
    assert packed_file(cache).stat().st_mode & 0o222 == 0


def test_a_second_start_neither_packs_nor_reads_the_checkpoint_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = tiny(tmp_path / "model", "llama2"), tmp_path / "cache"
    first = open_weights(folder, cache)
    inode = packed_file(cache).stat().st_ino
    before = {path.name for path in cache.iterdir()}

    def never(*_: object, **__: object) -> None:
        raise AssertionError("read or packed again")

    monkeypatch.setattr("engine.model.model_hash.blake3", never)
    monkeypatch.setattr("engine.model.packed._digest", never)
    monkeypatch.setattr("baton_kernels.pack", never)
    again = open_weights(folder, cache)
    assert again.model_hash == first.model_hash and (again.norm == first.norm).all()
    assert packed_file(cache).stat().st_ino == inode and {path.name for path in cache.iterdir()} == before


def test_a_note_that_a_crash_left_empty_is_not_believed(tmp_path: Path) -> None:
    folder, cache = tiny(tmp_path / "model", "llama2"), tmp_path / "cache"
    first = open_weights(folder, cache)
    notes = [path for path in cache.iterdir() if path.suffix not in (".weights", ".lock")]
    assert len(notes) == 2
    for note in notes:
        note.write_text("")
    assert open_weights(folder, cache).model_hash == first.model_hash
    assert all(len(note.read_text()) == 64 for note in notes)


@pytest.mark.parametrize("where", ["header", "body", "end", "empty"])
def test_a_damaged_packed_file_is_built_anew(where: str, tmp_path: Path) -> None:
    folder, cache = tiny(tmp_path / "model", "llama2"), tmp_path / "cache"
    open_weights(folder, cache)
    path = packed_file(cache)
    good = path.read_bytes()
    path.chmod(0o644)
    if where in ("end", "empty"):
        os.truncate(path, len(good) - 4096 if where == "end" else 0)
    else:
        with path.open("r+b") as file:
            file.seek(60 if where == "header" else len(good) // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x10]))
    assert path.read_bytes() != good
    open_weights(folder, cache)
    assert packed_file(cache).read_bytes() == good


def test_sharding_and_spelling_do_not_change_the_model_hash_but_a_weight_does(tmp_path: Path) -> None:
    single, cache = tiny(tmp_path / "single", "qwen3"), tmp_path / "cache"
    sharded = tiny(tmp_path / "sharded", "qwen3", shards=4)
    text = (sharded / "config.json").read_text()
    (sharded / "config.json").write_text(text.replace('"dtype"', '"torch_dtype"').replace("  ", " "))
    model_hash = open_weights(single, cache).model_hash
    assert open_weights(sharded, cache).model_hash == model_hash
    path = single / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert open_weights(single, cache).model_hash != model_hash


def test_all_product_paths_of_one_model_live_side_by_side(tmp_path: Path) -> None:
    folder, cache = tiny(tmp_path / "model", "llama2", dtype="bf16"), tmp_path / "cache"
    assert open_weights(folder, cache).path == "pairs"
    for path in baton_kernels.PATHS:
        assert open_weights(folder, cache, product_path=path).path == path
    assert len(list(cache.glob("*.weights"))) == 3


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    tied = open_weights(tiny(tmp_path / "tied", "qwen2", tied=True), tmp_path / "cache")
    loose = open_weights(tiny(tmp_path / "loose", "qwen2"), tmp_path / "cache")
    assert tied.head is tied.embed and not (loose.head == loose.embed).all()


def test_weights_cannot_be_written(tmp_path: Path) -> None:
    weights = open_weights(tiny(tmp_path / "model", "qwen3"), tmp_path / "cache")
    arrays = [weights.embed, weights.head, weights.norm, weights.cos, weights.layers[0].qkv, weights.layers[0].down]
    assert not any(array.flags.writeable for array in arrays)


def test_a_cache_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelError) as caught:
        open_weights(tiny(tmp_path / "model", "llama2"), tmp_path / "cache")
    assert caught.value.field == "cache folder"


def test_rotary_tables_are_right_to_the_last_place() -> None:
    cos, sin = np.empty((9000, 32), np.float32), np.empty((9000, 32), np.float32)
    rotary_tables(Rope(500000.0), 64, cos, sin)
    frequencies = inverse_frequencies(Rope(500000.0), 64)
    assert frequencies[0] == 1.0 and np.allclose(frequencies, 500000.0 ** -(np.arange(32) / 32), rtol=4e-7)
    angles = (np.arange(9000, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    for table, exact in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        assert (np.abs(table - exact) <= np.spacing(np.abs(exact).astype(np.float32)) * 0.500001).all()
