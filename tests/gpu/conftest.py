"""Tests that need a GPU. They are not part of the default run: `pytest tests/gpu -m gpu`."""

import importlib.util
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The hook is given the tests of every folder that was collected."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if reason := missing():
            item.add_marker(pytest.mark.skip(reason=reason))


def missing() -> str:
    """Why these tests cannot run here; empty when they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'baton[gpu]'"
    import torch

    return "" if torch.cuda.is_available() else "torch finds no CUDA device here"


@pytest.fixture
def device() -> str:
    return "cuda"
