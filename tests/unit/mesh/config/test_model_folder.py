"""A place that is no model folder is named for what it is, with what to do."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig

FORMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda folder: None, r"\(it has no config\.json\)$"),
    "adapter": (
        lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}'),
        "adapter of a/b, no whole model; merge both with peft",
    ),
    "a broken adapter": (lambda folder: (folder / "adapter_config.json").write_text("["), "adapter, no whole model"),
    "a model and an adapter": (
        lambda folder: [(folder / name).write_text("{}") for name in ("config.json", "adapter_config.json")],
        "holds a model and an adapter .*; to serve the model alone remove the adapter's files",
    ),
    "gguf": (lambda folder: (folder / "q4.gguf").touch(), "its weights are GGUF: name the file itself"),
    "meta": (lambda folder: (folder / "consolidated.00.pth").touch(), "not in the form of transformers"),
    "a cache of the hub": (
        lambda folder: ((folder / "snapshots/1").mkdir(parents=True), (folder / "snapshots/1/config.json").touch()),
        r"did you mean .*snapshots/1\?",
    ),
    "a pipe": (lambda folder: os.mkfifo(folder / "config.json"), "config.json is no regular file"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_place_that_is_no_model_is_named_for_what_it_is(form: str, tmp_path: Path) -> None:
    make, message = FORMS[form]
    make(tmp_path)
    with pytest.raises(ConfigError, match=rf"model: .*{message}"):
        GatewayConfig(model=tmp_path)


def test_a_file_is_no_model_folder(tmp_path: Path) -> None:
    for name, message in (
        ("q4.gguf", "GGUF: name the file itself"),
        ("model.safetensors", "is no folder; name the folder"),
    ):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=message):
            GatewayConfig(model=tmp_path / name)
