"""The self-test notices every sampler that is a little wrong, in vocabularies of every size."""

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from baton_kernels import library
from engine.selftest import run as selftest
from engine.selftest.sampling import sampling
from tests.unit.engine import sampler_mutants
from tests.unit.engine.sampler_mutants import CPP, PYTHON, changed

VOCABULARIES = (32, 258, 300, 1000, 151936)


def bits(vocab: int) -> str:
    """The hash of the self-test's part about sampling. It needs no more of a model than its vocabulary."""
    weights: Any = SimpleNamespace(config=SimpleNamespace(vocab=vocab))
    return selftest._hash(sampling(weights, 16))


@pytest.fixture(scope="module")
def honest() -> dict[int, str]:
    return {vocab: bits(vocab) for vocab in VOCABULARIES}


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return sampler_mutants.compiled(tmp_path_factory.mktemp("mutants"))


@pytest.fixture
def use(mutants: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def act(number: int) -> None:
        function = getattr(mutants, f"mutant_{number}")
        right = library.load().sample_adjusted
        function.restype, function.argtypes = right.restype, right.argtypes
        monkeypatch.setattr(library.load(), "sample_adjusted", function)

    yield act


def unnoticed(honest: dict[int, str], least: int = 1) -> list[int]:
    return [vocab for vocab in VOCABULARIES if vocab >= least and bits(vocab) == honest[vocab]]


def test_the_right_sampler_compiled_like_the_mutants_passes(use: Any, honest: dict[int, str]) -> None:
    use(0)
    assert unnoticed(honest) == list(VOCABULARIES)


@pytest.mark.parametrize("name", CPP)
def test_a_sampler_with_an_error_shows_in_every_vocabulary(name: str, use: Any, honest: dict[int, str]) -> None:
    use(1 + list(CPP).index(name))
    assert not unnoticed(honest, CPP[name].least)


@pytest.mark.parametrize("name", PYTHON)
def test_an_error_around_the_sampler_shows_in_every_vocabulary(
    name: str, honest: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mutant = PYTHON[name]
    monkeypatch.setattr(*changed(place, mutant))
    assert not unnoticed(honest, mutant.least)
