"""Adapters of a model whose numbers are turned: they would be added in other coordinates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.adapters.turned import is_turned, refuse_turned
from engine.builtin import tiny
from engine.formats.errors import ModelError
from engine.loading.startup import open_held
from engine.quantization.folder import quantize
from mesh.config.adapter_config import AdapterFolder
from mesh.config.settings import read_settings
from tests.families.folders import saved
from tests.harness.adapters import make_adapter

WIDE: dict[str, Any] = {"hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 256}


def rounded(model: Path, out: Path, target: str) -> Path:
    windows = np.random.default_rng(0).integers(0, 262, (2, 32)).astype(np.int32)
    assert list(quantize(model, out, target, out.parent / "cache", windows))
    return out


def test_a_folder_in_four_bits_is_turned_and_takes_no_adapter(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3", dtype="bf16", **WIDE)
    adapter = make_adapter(tmp_path / "adapter", model)
    four, eight = (rounded(model, tmp_path / target, target) for target in ("int4", "int8"))
    assert [is_turned(each) for each in (model, eight, four)] == [False, False, True]
    refuse_turned(adapter, eight)
    with pytest.raises(ModelError, match=r"adapter: .*in four bits: that is turned.*quantize = int8"):
        refuse_turned(adapter, four)


def test_families_that_are_not_turned_take_adapters_in_four_bits(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "granite", {"num_hidden_layers": 1})
    assert not is_turned(rounded(model, tmp_path / "int4", "int4"))


async def test_a_worker_that_rounds_to_four_bits_itself_refuses_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.quantization.cached.WINDOWS", 1)
    monkeypatch.setattr("engine.quantization.cached.WINDOW", 32)
    model = tiny(tmp_path / "model", "llama3", dtype="bf16", **WIDE)
    adapter = make_adapter(tmp_path / "adapter", model)
    for quantized in ("int8", "int4"):
        named = {"model": str(model), "cache_folder": str(tmp_path / "cache"), "adapters": f"a={adapter}"}
        config = read_settings(None, {}, named | {"worker.quantize": quantized}).decode()
        assert config.adapters == (AdapterFolder("a", adapter),)
        if quantized == "int8":
            held = await open_held(config)
            assert held is not None and held.counts()["adapters_in_memory"] == 1
        else:
            with pytest.raises(Exception, match=r"adapter 'a': .*that is turned"):
                await open_held(config)
