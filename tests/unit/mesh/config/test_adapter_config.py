"""Adapters in the configuration: a table or a list of NAME=FOLDER, checked before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from mesh.config.adapter_config import AdapterFolder
from mesh.config.config_checks import ConfigError
from mesh.config.settings import read_settings
from mesh.config.worker_config import DecodeConfig


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("sql", "poet"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    return tmp_path


def test_a_table_a_list_a_variable_and_an_option_say_the_same(folders: Path) -> None:
    file = folders / "baton.toml"
    expected = tuple(AdapterFolder(name, folders / name) for name in ("sql", "poet"))
    listed = f"sql={folders / 'sql'},poet={folders / 'poet'}"
    file.write_text('[adapters]\nsql = "sql"\npoet = "poet"\n')
    settings = [read_settings(file)]
    file.write_text('adapters = ["sql=sql", "poet = poet"]\n')
    settings += [read_settings(file), read_settings(None, {"BATON_ADAPTERS": listed})]
    settings.append(read_settings(None, {}, {"adapters": listed}))
    for each in settings:
        assert each.decode().adapters == each.prefill().adapters == each.gateway().adapters == expected
        assert each.gateway().served[0].adapters == expected


def test_each_model_has_its_own_and_its_own_bounds(folders: Path) -> None:
    file = folders / "baton.toml"
    file.write_text(
        f'[[models]]\nmodel = "one"\nadapters = {{ sql = "{folders}/sql" }}\nmax_loras = 3\n'
        '[[models]]\nmodel = "two"\nmax_lora_rank = 8\n'
    )
    gateway = read_settings(file).gateway()
    assert [[adapter.name for adapter in each.adapters] for each in gateway.served] == [["sql"], []]
    one, two = (read_settings(file, {}, {"model": name}).decode() for name in ("one", "two"))
    assert [each.name for each in one.adapters] == ["sql"] and one.max_loras == 3 and one.max_lora_rank == 256
    assert two.adapters == () and two.max_lora_rank == 8


def test_names_of_other_servers_set_the_bounds(folders: Path) -> None:
    worker = read_settings(None, {}, {"max_loras": "2", "max-lora-rank": "16"}).decode()
    assert (worker.max_loras, worker.max_lora_rank) == (2, 16)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sql", "expected NAME=FOLDER"),
        ("=/a", "expected NAME=FOLDER"),
        ("sql={0}/sql,sql={0}/poet", "names one adapter twice"),
        ("sql={0}/nowhere", r"adapters.*: sql: .*nowhere has no adapter_config\.json"),
        ("one={0}/sql", "'one' is a name of the model itself"),
    ],
)
def test_a_wrong_adapter_is_refused_at_start(value: str, message: str, folders: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(None, {}, {"adapters": value.format(folders), "model": str(folders / "one")}).gateway()


def test_a_name_stands_for_one_thing(folders: Path) -> None:
    file = folders / "baton.toml"
    file.write_text(
        '[[models]]\nmodel = "one"\nadapters = { a = "sql" }\n[[models]]\nmodel = "two"\nadapters = { a = "poet" }\n'
    )
    with pytest.raises(ConfigError, match="the name 'a' stands for two models"):
        read_settings(file).gateway()


@pytest.mark.parametrize(("key", "value"), [("max_loras", 0), ("max_lora_rank", 257), ("lora_bytes", 0)])
def test_bounds_have_bounds(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        DecodeConfig(**{key: value})


def test_a_gpu_refuses_adapters_by_name(folders: Path) -> None:
    with pytest.raises(ConfigError, match="adapters: sql: device 'cuda' computes no adapters"):
        DecodeConfig(device="cuda", adapters=(AdapterFolder("sql", folders / "sql"),))
