"""The arguments that a draft model's step refuses. `tests/unit/engine` tests what it computes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels.draft import Model, SamplingArrays, propose


def ints(*values: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    return np.array(values, np.int32)


def floats(*values: float) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.array(values, np.float32)


ONE = SamplingArrays(
    temperature=floats(0.0),
    top_k=ints(0),
    top_p=floats(1.0),
    min_p=floats(0.0),
    seed=np.zeros(1, np.uint64),
    choice=ints(0),
    position=ints(4),
    min_tokens=ints(0),
    stops=ints(2, 3),
    stop_starts=ints(0, 2),
)
ARRAYS = {"text": ints(5, 6, 7), "starts": ints(0, 9), "counts": ints(2, 1), "wanted": ints(3, 0)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": ints(2, 2)}, "counts"),
        ({"counts": ints(3, 0)}, "counts"),
        ({"starts": ints(0, -1)}, "counts"),
        ({"wanted": ints(1, 2)}, "wanted"),
        ({"wanted": ints(1, -1)}, "wanted"),
        ({"wanted": ints(3, 1)}, "temperature"),  # parameters of one sequence for two
        ({"starts": ints(0)}, "starts"),
        ({"text": np.array([5, 6, 7], np.int64)}, "text"),
        ({"stops": ints(2)}, "stop_starts"),
        ({"stop_starts": ints(1, 2)}, "stop_starts"),
        ({"stop_starts": ints(0, 2, 2)}, "stop_starts"),
        ({"seed": np.zeros(1, np.int64)}, "seed"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    arrays = ARRAYS | {name: value for name, value in change.items() if name in ARRAYS}
    sampling = replace(ONE, **{name: value for name, value in change.items() if name not in ARRAYS})
    with pytest.raises(bk.KernelError, match=message):
        propose(bk.layer.LayerStep(), Model(), sampling, tables=np.zeros((2, 1), np.int32), **arrays)
