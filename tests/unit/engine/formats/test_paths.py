"""The product path follows the checkpoint, the setting and, before both, BATON_PRODUCT_PATH."""

from collections.abc import Iterator

import pytest

import baton_kernels
from baton_kernels import machine
from engine.formats.errors import ModelError
from engine.model.paths import VARIABLE, PathChoice, choose_path


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    yield
    baton_kernels.choose(None)


def path_of(product_path: str, dtype: str, environment: dict[str, str]) -> str:
    return choose_path(product_path, dtype, environment=environment).path


def test_integers_have_the_path_that_all_machines_share() -> None:
    assert choose_path("auto", "fp16", "int8", environment={}) == PathChoice("pairs", "int8")
    assert choose_path("auto", "q4_1", stored=True, environment={}) == PathChoice("pairs", "stored")
    assert choose_path("fp32", "q4_1", stored=True, environment={}) == PathChoice("fp32", "dense")
    assert choose_path("auto-amx", "fp16", "int8", environment={}) == PathChoice("amx", "int8")
    assert choose_path("auto-amx", "q4_1", stored=True, environment={}) == PathChoice("amx", "stored")
    with pytest.raises(ModelError, match=r"product_path.*'fp32' keeps.*rounds them to int8.*'auto' or 'auto-amx'"):
        choose_path("fp32", "bf16", "int8", environment={})
    choose_path("auto", "bf16", "int4", environment={VARIABLE: "auto:avx2"})
    assert machine.forced() == "avx2"


def test_without_a_setting_the_checkpoint_decides() -> None:
    assert path_of("auto", "bf16", {}) == "pairs"
    assert path_of("auto", "fp16", {}) == path_of("auto", "fp32", {}) == "fp32"
    assert path_of("fp32", "bf16", {}) == "fp32" and machine.forced() is None
    assert path_of("auto-amx", "bf16", {}) == "amx" and path_of("auto-amx", "fp32", {}) == "fp32"


def test_the_variable_wins_over_the_setting_and_may_name_a_body() -> None:
    assert path_of("pairs", "bf16", {VARIABLE: "fp32"}) == "fp32" and machine.forced() is None
    assert path_of("fp32", "bf16", {VARIABLE: "pairs:avx2"}) == "pairs"
    assert machine.forced() == "avx2" and set(baton_kernels.chosen().values()) == {"avx2"}


@pytest.mark.parametrize(
    ("variable", "dtype", "message"),
    [
        ("pears", "bf16", "environment.*BATON_PRODUCT_PATH.*'pears' is unknown.*auto, auto-amx, fp32, pairs, amx"),
        ("pairs:avx3", "bf16", "no body 'avx3' for 'pairs'.*pairs:plain, pairs:avx2"),
        ("fp32:amx", "bf16", "no body 'amx' for 'fp32'"),
        ("pairs", "fp32", "this checkpoint is fp32.*Set BATON_PRODUCT_PATH to 'auto' or 'fp32'"),
    ],
)
def test_what_the_machine_or_the_checkpoint_lacks_is_refused_by_name(variable: str, dtype: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        path_of("auto", dtype, {VARIABLE: variable})
    assert machine.forced() is None


def test_a_wrong_setting_names_the_setting() -> None:
    with pytest.raises(ModelError, match=r"configuration.*product_path.*'pears' is unknown"):
        path_of("pears", "bf16", {})
