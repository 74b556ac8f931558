"""A runner whose pages hold one band of layers each computes the bits of one whose pages hold all of them, also when
the pages behind the windows are gone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.cpu.runner import CpuRunner
from engine.loading.loaded import load_model
from engine.model.page_memory import layer_bands, page_layout
from engine.model.weights import open_weights
from engine.pool.horizon import GONE, Horizon
from engine.step.plan import Piece, Plan
from mesh.config.worker_config import ROUNDED
from tests.families.folders import saved
from tests.unit.engine.conftest import GREEDY

FULL, SLIDING = "full_attention", "sliding_attention"
MODELS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 30},
    "gemma3_text of 13 layers": {
        "sliding_window": 30,
        "num_hidden_layers": 13,
    },  # seven bands of two layers, one of them half empty
    "gemma2": {"sliding_window": 37},
    "olmo3": {"sliding_window": 21},
    "ministral": {"sliding_window": 33, "layer_types": [FULL, SLIDING, SLIDING, SLIDING]},
}
PAGE, CHUNK, PAGES = 16, 24, 40


def with_bands(folder: Path, cache: Path, path: str, kv: str, pages: int) -> tuple[CpuRunner, Horizon]:
    how = {"quantize": path} if path in ROUNDED else {"product_path": path}
    weights = open_weights(folder, cache, kv=kv, **how)  # type: ignore[arg-type]
    bands = layer_bands(weights, None)
    layout = page_layout(weights, None, PAGE, bands)
    assert bands.count > 1 and layout.layers == -(-weights.config.layers // bands.count)
    pool = np.full(pages * layout.page_bytes, 0xFF, np.uint8)
    return CpuRunner(weights, pool_buffer=pool, page_tokens=PAGE, threads=2, banded=True), Horizon.of(bands, PAGE)


@pytest.mark.parametrize(
    ("family", "path", "kv"),
    [*((family, "pairs", "own") for family in MODELS), ("gemma3_text", "fp32", "own"), ("gemma2", "int8", "int8")],
)
def test_pages_of_bands_change_no_bit_and_those_behind_windows_are_not_read(
    family: str, path: str, kv: str, tmp_path: Path, engine: Any, words: Any
) -> None:
    fields, text = MODELS[family], words(200)
    folder = saved(tmp_path / "model", family.split()[0], fields, dtype=torch.bfloat16)
    expected = engine(folder, product_path=path, kv=kv).logits(text)
    runner, horizon = with_bands(folder, tmp_path / "cache", path, kv, 12 * 13)
    free, table, gone, found = list(range(12 * 13)), list[int](), 0, []
    for start in range(0, len(text), CHUNK):
        rows = text[start : start + CHUNK]
        for index in horizon.behind(gone, first := horizon.first_page(start)):
            free.insert(0, table[index])  # the next stretch gets it
            table[index] = GONE
        gone = max(gone, first)
        table += [free.pop(0) for _ in range(horizon.whole(start + len(rows)) - len(table))]
        piece = Piece(1, tuple(rows), start, tuple(table), len(rows), 0, GREEDY)
        found.append(runner.compute_logits(Plan(0, (piece,)))[0])
    runner.close()
    assert gone > 5 and np.concatenate(found).tobytes() == expected.tobytes()


def test_negative_control_a_page_of_a_full_band_that_is_gone_is_refused(tmp_path: Path, words: Any) -> None:
    folder, text = saved(tmp_path / "model", "gemma2", MODELS["gemma2"], dtype=torch.bfloat16), words(100)
    runner, horizon = with_bands(folder, tmp_path / "cache", "pairs", "own", PAGES)
    table = list(range(horizon.whole(100)))
    for index in horizon.behind(0, horizon.first_page(99)):
        table[index] = GONE
    piece = Piece(1, (text[99],), 99, tuple(table), 1, 0, GREEDY)
    runner.compute_logits(Plan(0, (piece,)))
    table[1] = GONE  # a page of the band without a window
    with pytest.raises(ValueError, match="block table names pages -1"):
        runner.compute_logits(Plan(0, (Piece(1, (text[99],), 99, tuple(table), 1, 0, GREEDY),)))
    runner.close()


def test_a_draft_and_a_model_that_is_loaded_alone_keep_all_layers_in_one_page(tmp_path: Path) -> None:
    folder, given = (
        saved(tmp_path / "model", "gemma2", MODELS["gemma2"], dtype=torch.bfloat16),
        {"product_path": "auto", "page_tokens": PAGE},
    )
    drafted = load_model(folder, tmp_path / "cache", draft=folder, banded=True, **given)  # type: ignore[arg-type]
    alone = load_model(folder, tmp_path / "cache", **given)  # type: ignore[arg-type]
    served = load_model(folder, tmp_path / "cache", banded=True, **given)  # type: ignore[arg-type]
    assert (drafted.bands.count, alone.bands.count, served.bands.count) == (1, 1, 2)
    assert served.identity == alone.identity, "how layers lie in pages is no part of the class"
    assert served.shape.page_bytes * 2 == alone.shape.page_bytes
