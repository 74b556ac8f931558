"""Tests that need a GPU. They are not part of the default run: `pytest tests/gpu -m gpu`."""

import importlib.util
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks only the tests of this folder; pytest passes the tests of every collected folder."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if reason := missing():
            item.add_marker(pytest.mark.skip(reason=reason))


def missing() -> str:
    """The reason why these tests cannot run here; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install '.[gpu]'"
    import torch

    return "" if torch.cuda.is_available() else "torch finds no CUDA device here"


@pytest.fixture
def device() -> str:
    return "cuda"
