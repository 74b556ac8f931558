"""A worker whose kernels are a little wrong for its model stays out of the class: it gets no request and no page."""

import ctypes
from typing import Any

import numpy as np
import pytest

from baton_kernels import KernelError, library
from baton_kernels.forms import Header

pytestmark = pytest.mark.mesh

PROMPT = tuple(range(40, 80))


def with_wrong_feed_forward(step: Any, rest: Any, *others: Any) -> bytes | None:
    """The call that computes a layer, with feed-forward outputs times 1.01."""
    refused: bytes | None = _layer(step, rest, *others)
    if rest is not None:
        values = step._obj
        _floats(values.x, values.rows * values.hidden)[:] *= np.float32(1.01)
    return refused


def with_wrong_embedding(packed: int, tokens: int, rows: int, factor: float, out: int) -> bytes | None:
    """The rows of tokens, all a little too large."""
    refused: bytes | None = _embed(packed, tokens, rows, factor, out)
    _floats(out, rows * Header.from_address(packed).k)[:] *= np.float32(1.0001)
    return refused


def _floats(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


_layer, _embed = library.load().layer, library.load().embed


async def test_a_worker_with_a_wrong_feed_forward_does_not_start(
    real_mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_mesh() as mesh:
        with monkeypatch.context() as patch:
            patch.setattr(library.load(), "layer", with_wrong_feed_forward)
            with pytest.raises(KernelError, match="a layer in one call has other bits than its kernels one by one"):
                await mesh.add("decode")
        await mesh.add("prefill")
        await mesh.add("decode")
        await mesh.ask(PROMPT).task


@pytest.mark.parametrize("is_wrong", [True, False])
async def test_a_worker_whose_bits_are_wrong_throughout_is_refused_from_the_class(
    is_wrong: bool, real_mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wrong kernel (the negative control) the second decode worker joins."""
    async with real_mesh() as mesh:
        prefill, good = await mesh.add("prefill"), await mesh.add("decode")
        with monkeypatch.context() as patch:  # it is wrong while it starts; the others share its process
            if is_wrong:
                patch.setattr(library.load(), "embed", with_wrong_embedding)
            other = await mesh.add("decode")
        hellos = {worker.hello.address: worker.hello for worker in mesh.gateway.workers}
        theirs, ours = (hellos[worker.attachments.address] for worker in (other, good))
        assert theirs.numerics == ours.numerics and (theirs.fingerprint != ours.fingerprint) == is_wrong
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
