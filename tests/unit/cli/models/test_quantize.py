"""`baton quantize`: what it prints and writes, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import build
from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.stored import StoredMatrix


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "llama2", hidden=128, head_dim=32, ffn=256, dtype="bf16")


def quantize(*arguments: object) -> Any:
    return CliRunner().invoke(build("quantize"), ["quantize", *map(str, arguments)])


def test_it_says_what_the_rounding_costs(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("All happy families are alike; each unhappy family is unhappy in its own way. " * 20)
    done = quantize(model, tmp_path / "out", "--to", "int8", "--text", text, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["bytes_after"] < 0.8 * report["bytes_before"] and report["tokens"] == 1540
    assert abs(report["perplexity_after"] / report["perplexity_before"] - 1) < 0.02
    assert [each["layer"] for each in report["layers"]] == [0, 1]
    assert f"baton up --model {tmp_path / 'out'}" in done.stderr


def test_four_bits_follow_the_text_that_is_named(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("A short text, again and again, until it is long enough for a window. " * 200)
    for name, options in (("named", ["--calibrate", text]), ("own", [])):
        done = quantize(model, tmp_path / name, "--to", "int4", *options)
        assert done.exit_code == 0, done.output
        assert ("the model writes the text" in done.stderr) is (name == "own")
    weights = [Checkpoint(tmp_path / name).tensors["model.layers.1.mlp.up_proj.weight"] for name in ("named", "own")]
    assert all(isinstance(each, StoredMatrix) and each.form.scheme == "int4" for each in weights)
    values = [each.read().values.tolist() for each in weights if isinstance(each, StoredMatrix)]
    assert values[0] != values[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["MODEL", "out", "--to", "int2"], "--to: 'int2' is not"),
        (["MODEL", "MODEL", "--to", "int8"], "exists already"),
        (["nowhere", "out", "--to", "int8"], "MODEL: nowhere is not a Hugging Face model folder"),
        (["MODEL", "out", "--to", "int8", "--text", "nowhere.txt"], "--text: nowhere.txt cannot be read as text"),
        (["MODEL", "out", "--to", "int8", "--text", "SHORT"], "--text: has 5 tokens, and 64 are the least"),
        (["MODEL", "out", "--to", "int4", "--calibrate", "SHORT"], "--calibrate: short.txt has 5 tokens, and 512 are"),
        (["MODEL", "out", "--to", "int4", "--calibrate", "EMPTY"], "--calibrate: empty.txt has 0 tokens, and 512 are"),
        (["MODEL", "out", "--to", "int4", "--calibrate", "BINARY"], "--calibrate: binary cannot be read as text"),
        (
            ["MODEL", "out", "--to", "int8", "--calibrate", "SHORT"],
            "--calibrate: eight bits are rounded without a text",
        ),
        (["MODEL", "out", "--to", "int8", "--kv", "auto"], "--kv: 'auto' is not"),
        (["MODEL", "out", "--to", "int8", "--kv", "int4"], "--kv: 'int4' is not"),
        (["MODEL", "out", "--to", "int8", "--threads", "-1"], "--threads: -1 is less than 0"),
        (["MODEL", "short.txt/out", "--to", "int8"], "short.txt is no folder"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_option(
    arguments: list[str], words: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    places = {"MODEL": str(model), "SHORT": "short.txt", "EMPTY": "empty.txt", "BINARY": "binary"}
    done = quantize(*(places.get(each, each) for each in arguments))
    assert done.exit_code == 2 and words in done.stderr, done.output
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("*.partial"))


def test_a_model_that_is_quantized_already_is_refused(model: Path, tmp_path: Path) -> None:
    assert quantize(model, tmp_path / "once", "--to", "int8").exit_code == 0
    again = quantize(tmp_path / "once", tmp_path / "twice", "--to", "int4")
    assert again.exit_code == 2 and "has its weights quantized already. Serve it as it is" in again.stderr
    assert not list(tmp_path.glob("twice*"))
