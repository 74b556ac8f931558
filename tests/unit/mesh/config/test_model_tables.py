"""Several models in one configuration: what a gateway serves, what each worker loads, what `baton up` starts."""

from pathlib import Path

import pytest

from cli.local_mesh.ports import free_address
from cli.local_mesh.services import parse_settings, services_of
from mesh.config.config_checks import ConfigError
from mesh.config.model_config import ServedModelConfig
from mesh.config.services import GatewayConfig, MeshConfig
from mesh.config.settings import Settings, read_settings

TABLES = """
context_tokens = 512

[worker]
pool_bytes = 1000
kv_dtype = "int8"

[[models]]
model = "big"
served_name = ["large", "best"]
context_tokens = 256
pool_bytes = 4000
quantize = "int4"
kv_dtype = "fp8"
tool_format = "hermes"
prefill_workers = 1
decode_workers = 3

[[models]]
model = "small"

[mesh]
prefill_workers = 0
decode_workers = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("big", "small", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    return tmp_path


def read(folder: Path, text: str = TABLES, **overrides: str) -> Settings:
    (folder / "baton.toml").write_text(text)
    return read_settings(folder / "baton.toml", overrides={key.replace("__", "."): v for key, v in overrides.items()})


def test_a_gateway_serves_every_model_under_its_names_with_what_is_its_own(folder: Path) -> None:
    gateway = read(folder).gateway()
    assert [each.names for each in gateway.served] == [("large", "best"), ("small",)]
    assert [each.context_tokens for each in gateway.served] == [256, 512]
    assert [each.tool_format for each in gateway.served] == ["hermes", "auto"]
    assert (gateway.model, gateway.model_name) == (folder / "big", "large"), "the first one stands for a single one"
    assert [each.folder_name for each in gateway.served] == ["big", "small"]


@pytest.mark.parametrize("name", ["large", "best", "big"])
def test_a_worker_loads_the_model_that_it_is_given_by_any_of_its_names(folder: Path, name: str) -> None:
    settings = read(folder, model=name)
    worker = settings.decode()
    assert (worker.model, worker.model_name, worker.context_tokens) == (folder / "big", "large", 256)
    small = read(folder, model="small").prefill()
    assert worker.pool_bytes == 4000 and small.pool_bytes == 1000
    assert (worker.quantize, worker.kv_dtype, small.quantize, small.kv_dtype) == ("int4", "fp8", "", "int8")
    assert len(settings.gateway().served) == 1, "the same rule holds for every service"


def test_a_worker_that_is_given_no_model_or_an_unknown_one_is_told_which_there_are(folder: Path) -> None:
    with pytest.raises(ConfigError, match="a worker loads one model, and there are large, small: choose with --set"):
        read(folder).decode()
    with pytest.raises(ConfigError, match=r"command line, model: 'huge' is none of the models.*there are large, small"):
        read(folder, model="huge").decode()


def test_up_starts_the_workers_of_each_model_and_the_command_line_wins(folder: Path) -> None:
    def counts(mesh: MeshConfig) -> list[tuple[int, int]]:
        return [(each.prefill_workers, each.decode_workers) for each in (mesh, *mesh.further)]

    mesh = read(folder).mesh()
    assert counts(mesh) == [(1, 3), (0, 1)] and mesh.workers == 5
    with pytest.raises(ConfigError, match=r"mesh\.decode_workers: 0 is "):
        read(folder, mesh__decode_workers="0").mesh()
    assert counts(read(folder, mesh__decode_workers="2").mesh()) == [(1, 2), (0, 2)]
    assert read(folder, model="small").mesh().workers == 1, "up starts the chosen model only"


def test_each_worker_of_up_finds_its_model_in_what_it_is_given(folder: Path) -> None:
    overrides = {f"gateway.{port}_address": free_address() for port in ("http", "grpc", "worker")}
    overrides |= {
        "models": f"one={folder / 'big'},{folder / 'small'},uno={folder / 'big'}",
        "mesh.prefill_workers": "1",
    }
    mesh = read_settings(overrides=overrides).mesh()
    services = services_of(mesh, file=None, overrides=overrides, otlp_endpoint="")
    names = ["prefill-one-0", "decode-one-0", "decode-one-1", "prefill-small-0", "decode-small-0", "decode-small-1"]
    assert [service.name for service in services] == ["gateway", *names]
    given = [
        parse_settings([s.arguments[i + 1] for i, flag in enumerate(s.arguments) if flag == "--set"]) for s in services
    ]
    assert [each.names for each in read_settings(overrides=given[0]).gateway().served] == [("one", "uno"), ("small",)]
    assert read_settings(overrides=given[2]).decode().model == folder / "big"
    last = read_settings(overrides=given[-1]).decode()
    assert (last.model, last.workers_on_host, last.worker_on_host) == (folder / "small", 6, 5)


def test_the_variable_replaces_the_file_s_whole_list(folder: Path) -> None:
    (folder / "baton.toml").write_text(TABLES)
    only = read_settings(folder / "baton.toml", {"BATON_MODELS": f"alone={folder / 'small'}"})
    assert [each.names for each in only.gateway().served] == [("alone",)]
    assert only.decode().model_name == "alone"


def test_one_model_may_have_several_names_too(folder: Path) -> None:
    text = 'model = "small"\nserved_name = {}'
    assert read(folder, text.format('["a", "b"]')).gateway().served[0].names == ("a", "b")
    assert read(folder, 'model = "small"', served_name="a, b").gateway().served[0].names == ("a", "b")
    assert read(folder, 'model = "small"', **{"served-model-name": "a,b"}).decode().model_name == "a"


def test_a_folder_may_hold_an_equals_sign(folder: Path) -> None:
    odd = folder / "a=b"
    odd.mkdir()
    (odd / "config.json").write_text("{}")
    assert [each.names for each in read_settings(overrides={"models": str(odd)}).gateway().served] == [("a=b",)]
    named = read_settings(overrides={"models": f"odd={odd}"}).gateway()
    assert named.served[0].names == ("odd",) and named.model == odd


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models]\nmodel = 'big'", "models: expected a list; write one table"),
        ("models = 3", "models: expected a list"),
        ("[[models]]\nserved_name = 'x'", r"models 1: needs `model`, a Hugging Face folder"),
        ("[[models]]\nmodel = 'big'\nmax_batch = 3", r"unknown key 'max_batch' in \[\[models\]\]; there are model"),
        ("[[models]]\nmodel = 'big'\ncontext_tokens = 'x'", "models 1 context_tokens: expected a whole number"),
        ("[[models]]\nmodel = 'nowhere'", "models 1 model: .*nowhere is not a Hugging Face model folder"),
        ("models = ['x=big', 'x=small']", "the name 'x' stands for two models, .*big and .*small"),
        ("[[models]]\nmodel='big'\n[[models]]\nmodel='big'\nserved_name='x'", "big is there as 'big' and as 'x'"),
        ("models = [['big']]", r"\['big'\] is neither a folder nor a table"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_key(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(folder, text).gateway()


def test_a_gateway_made_by_hand_checks_its_names() -> None:
    same = ServedModelConfig(served_name=("x",))
    with pytest.raises(ConfigError, match="the name 'x' stands for two models"):
        GatewayConfig(models=(same, same))
