"""A worker whose kernels are a little wrong for its model stays out of the class: it gets no request and no page."""

import ctypes
from typing import Any

import numpy as np
import pytest

from baton_kernels import library

pytestmark = pytest.mark.mesh

PROMPT = tuple(range(40, 80))


def off_by_a_hundredth(step: Any, rest: Any, *others: Any) -> bytes | None:
    """The call that computes a layer, with feed-forward outputs times 1.01."""
    refused: bytes | None = _layer(step, rest, *others)
    if rest is not None:
        values = step._obj
        out = (ctypes.c_float * (values.rows * values.hidden)).from_address(values.x)
        np.ctypeslib.as_array(out)[:] *= np.float32(1.01)
    return refused


_layer = library.load().layer


@pytest.mark.parametrize("is_wrong", [True, False])
async def test_a_worker_with_a_wrong_feed_forward_is_refused_from_the_class(
    is_wrong: bool, real_mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_mesh() as mesh:
        prefill, good = await mesh.add("prefill"), await mesh.add("decode")
        with monkeypatch.context() as patch:  # it is wrong while it starts; the others share its process
            if is_wrong:
                patch.setattr(library.load(), "layer", off_by_a_hundredth)
            other = await mesh.add("decode")
        assert other.hello.numerics == good.hello.numerics
        assert (other.hello.fingerprint != good.hello.fingerprint) == is_wrong
        link = prefill.links.to(other.attachments.address)
        if is_wrong:
            with pytest.raises(TimeoutError):
                await mesh.until(lambda: link.up, 1.0)
        else:
            await mesh.until(lambda: link.up)
        for number in range(8):
            asked = mesh.ask((*PROMPT, number))
            await asked.task
            assert len(asked.tokens) == 8
        assert good.plans or not is_wrong
        assert not (is_wrong and other.plans), "it got a request"
