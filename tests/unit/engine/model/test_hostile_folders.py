"""Folders that would hold a worker up or take its memory are refused within seconds, by file and field."""

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.builtin import tiny
from engine.formats import checkpoint
from engine.formats.errors import ModelError
from engine.model.drafts import check_draft
from engine.model.weights import open_weights
from engine.step.constraint import open_masker
from mesh.config.small_files import UnfitFile, read_small

SECONDS = 20.0  # a guard against hanging, not a measure: each refusal takes milliseconds
Edit = Callable[[Path], None]


def pipe(name: str) -> Edit:
    def act(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return act


def header(text: bytes, length: int | None = None) -> Edit:
    def act(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)

    return act


def million(folder: Path) -> None:
    entry = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header(b"{" + b",".join(entry % number for number in range(400_000)) + b"}")(folder)


def spelled_otherwise(folder: Path) -> None:
    """Tensors that a count of the usual spelling does not find."""
    entry = b'"t%d":{"dtype":"F32","shape":[0],"data\\u005foffsets":[0,0]}'
    header(b"{" + b",".join(entry % number for number in range(100_001)) + b"}")(folder)


def long_header(folder: Path) -> None:
    """Write a sparse file: it is as long as its header says and takes no room on the disk."""
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 90 << 20))
    os.truncate(path, 100 << 20)


def sharded(name: str) -> Edit:
    def act(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        os.mkfifo(folder / name)

    return act


def long_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.touch()
    os.truncate(index, 1 << 40)


def long_config(folder: Path) -> None:
    os.truncate(folder / "config.json", 1 << 40)


def brackets(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"[" * 1_000_000)


REFUSED: dict[str, tuple[Edit, str]] = {
    "a pipe as weights": (pipe("model.safetensors"), r"model\.safetensors: is no regular file"),
    "a pipe as configuration": (pipe("config.json"), r"config\.json: is no regular file"),
    "a pipe as a shard": (sharded("model-00001-of-00001.safetensors"), r"model-00001-of-00001\.safetensors: "),
    "a configuration of a terabyte": (long_config, r"config\.json: has \d+ bytes"),
    "an index of a terabyte": (long_index, r"index\.json: weight_map: .*has \d+ bytes"),
    "400,000 tensors": (million, r"model\.safetensors: header: names 400000 tensors, more than 100000"),
    "100,001 tensors in another spelling": (spelled_otherwise, r"header: names 100001 tensors"),
    "a header longer than the file": (header(b"{}", 1 << 62), r"header: says it is \d+ bytes long in a file of 10"),
    "a header of 90 MiB": (long_header, r"header: says it is \d+ bytes long .* at most \d+ are read"),
    "brackets in brackets": (header(b"[" * 1_000_000), r"header: is not JSON"),
    "a configuration of brackets": (brackets, r"config\.json: cannot be read as JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.timeout(60)
def test_a_folder_that_would_hold_its_reader_up_is_refused_in_words(name: str, tmp_path: Path) -> None:
    edit, message = REFUSED[name]
    folder = tiny(tmp_path / "model", "llama2")
    edit(folder)
    begun = time.monotonic()
    with pytest.raises(ModelError, match=message) as refused:
        open_weights(folder, tmp_path / "cache")
    assert time.monotonic() - begun < SECONDS
    assert refused.value.path.parent == folder and refused.value.field and refused.value.remedy


def test_many_tensors_are_refused_before_their_header_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny(tmp_path / "model", "llama2")
    million(folder)
    parsed: list[int] = []
    monkeypatch.setattr(checkpoint.json, "loads", lambda raw: parsed.append(len(raw)))
    with pytest.raises(ModelError, match="400000 tensors"):
        checkpoint.Checkpoint(folder)
    assert not parsed


def test_a_sound_folder_is_read_as_before(tmp_path: Path) -> None:
    """Negative control: nothing of the above is wrong with it."""
    folder = tiny(tmp_path / "model", "llama2", shards=2)
    weights = open_weights(folder, tmp_path / "cache")
    assert weights.config.layers == 2
    check_draft(folder, weights.config, folder)


@pytest.mark.timeout(60)
def test_a_pipe_under_the_tokenizers_name_holds_no_worker_up(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2")
    pipe("tokenizer.json")(folder)
    masker = open_masker(folder, 262)
    masker.open()
    masker.close()


def test_a_small_file_is_read_whole_and_a_large_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_small(path, 10) == b"0123456789"
    with pytest.raises(UnfitFile, match="has 10 bytes, and at most 9"):
        read_small(path, 9)
    with pytest.raises(UnfitFile, match="no regular file"):
        read_small(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none")
