"""FP8 matrices: every shape of scales is read as its folder means it, and damaged ones are refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import WidenedMatrix
from engine.model.matrices import checked
from tests.unit.engine.quantized_files import Array, write

MODULE = "model.layers.0.mlp.up_proj"
N, K = 8, 512


def made(place: Path, scale: Array, block: list[int] | None, name: str = "weight_scale_inv", **more: Any) -> Checkpoint:
    weight = np.full((N, K), 0x38, np.uint8)  # ones
    weight[-1, -1] = more.pop("code", 0x38)
    settings = {"quant_method": "fp8", "weight_block_size": block} | more
    tensors = {f"{MODULE}.weight": weight, f"{MODULE}.{name}": scale}
    return write(place / "m", tensors, settings, fp8=(f"{MODULE}.weight",))


def numbers(checkpoint: Checkpoint) -> Array:
    stored = checkpoint.tensors[f"{MODULE}.weight"]
    assert isinstance(stored, WidenedMatrix)
    halves = [stored.rows(0, 3), stored.rows(3, N)]
    assert (np.concatenate(halves) == stored.rows(0, N)).all()
    return stored.rows(0, N)


def test_as_many_blocks_as_rows_are_no_scales_of_rows(tmp_path: Path) -> None:
    scale = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    found = numbers(made(tmp_path, scale, [4, 128]))
    assert (found == np.repeat(np.repeat(scale, 4, 0), 128, 1)).all()


@pytest.mark.parametrize("block", [[3, 200], [5, 512], [8, 511], [100, 100]])
def test_the_last_block_may_be_partial(block: list[int], tmp_path: Path) -> None:
    shape = -(-N // block[0]), -(-K // block[1])
    scale = np.arange(1, shape[0] * shape[1] + 1, dtype=np.float32).reshape(shape)
    found = numbers(made(tmp_path, scale, block))
    assert (found == np.repeat(np.repeat(scale, block[0], 0), block[1], 1)[:N, :K]).all()


@pytest.mark.parametrize(
    ("shape", "block", "name"),
    [
        ((4, 2), [4, 128], "weight_scale_inv"),  # the blocks of the other way round
        ((2, 3), [4, 128], "weight_scale_inv"),
        ((1,), [4, 128], "weight_scale_inv"),
        ((8,), [4, 128], "weight_scale_inv"),
        ((8, 4), None, "weight_scale_inv"),
        ((1, 8), None, "weight_scale"),
        ((2, 4), None, "weight_scale"),
    ],
)
def test_scales_that_fit_no_blocks_are_refused_by_name(
    shape: tuple[int, ...], block: list[int] | None, name: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=rf"{MODULE}\.{name}.*shape \[.*instead of.*weight of \[8, 512\]"):
        made(tmp_path, np.ones(shape, np.float32), block, name)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite_is_refused_by_name(value: float, tmp_path: Path) -> None:
    scale = np.ones((2, 4), np.float32)
    scale[1, 2] = value
    with pytest.raises(ModelError, match=rf"{MODULE}\.weight_scale_inv.*is -?(nan|inf) at \[1, 2\]"):
        made(tmp_path, scale, [4, 128])


@pytest.mark.parametrize(("code", "scale"), [(0x7F, 1.0), (0xFF, 1.0), (0x7E, 1e37)])
def test_a_number_that_is_not_finite_in_bf16_is_refused_by_name(code: int, scale: float, tmp_path: Path) -> None:
    found = made(tmp_path, np.full((2, 4), scale, np.float32), [4, 128], code=code)
    stored = checked(f"{MODULE}.weight", found.tensors[f"{MODULE}.weight"])
    assert isinstance(stored, WidenedMatrix) and np.isfinite(stored.rows(0, N - 1)).all()
    with pytest.raises(ModelError, match=rf"{MODULE}\.weight: has numbers in row 7 that are not finite"):
        stored.rows(0, N)
