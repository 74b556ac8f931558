"""Fuzz target of the copies that go through native code: page ids and layers of a peer become addresses.

The pools' pages lie apart in memory, so that AddressSanitizer sees a copy that leaves its page by a single byte. Bytes
may change only in the layers that a span names, and each of those then has the checksum that the copy returns."""

from random import Random
from typing import Any, cast

from kvtransfer.shm import HostCopies
from kvtransfer.span_reader import span_reader
from mesh.messages.page_shape import PageShape, opaque_pages
from tests.fuzz.cases import Wrong, chance
from tests.fuzz.drawn_shapes import OURS, shape_of
from tests.fuzz.drawn_spans import drawn_spans
from tests.fuzz.guarded_pool import GuardedPool

PAGES = 3
STATE = opaque_pages((2, 64), (1, 192), content="state")
PAIRS = ((OURS, OURS), (OURS, shape_of(4)), (OURS, shape_of(16)), (OURS, shape_of(8, "gpu-v1")), (STATE, STATE))
_POOLS: dict[tuple[PageShape, bool], GuardedPool] = {}


def kv_copies(rng: Random) -> bool:
    """A case reaches deep states when all of its spans lie in the pools."""
    form, other = rng.choice(PAIRS)
    source, target = _pool(form, False), _pool(other, True)
    target.reset()
    spans = drawn_spans(rng, form, PAGES, other, PAGES)
    try:
        if chance(rng, 0.3):
            reader = span_reader(source, other)
            for span, view in zip(spans, reader.read_all(spans)[0], strict=True):
                if len(view) != other.place(span.first_layer, span.layers)[1]:
                    raise Wrong(f"{span} is read as {len(view)} bytes")
            return True
        copies = HostCopies(source, cast(Any, target))
        for span in spans:
            if 0 <= span.target < PAGES:
                layers = (layer for layer in range(span.first_layer, span.first_layer + min(span.layers, 99)))
                target.release(span.target, layers)
        sums = copies.copy(spans)
    except (IndexError, ValueError):  # ValueError: more pages behind the first than the receiver's page takes
        target.check()
        source.check()
        return False
    target.check()
    source.check()
    span = spans[-1]
    alone = all(span.target != other.target for other in spans[:-1])  # spans are not copied in their order
    if alone and target.checksum(span.target, span.first_layer, span.layers) != sums[-1]:
        raise Wrong(f"{span} has another checksum than its page")
    return True


def _pool(shape: PageShape, target: bool) -> GuardedPool:
    if (shape, target) not in _POOLS:
        _POOLS[shape, target] = GuardedPool(shape, PAGES)
    return _POOLS[shape, target]
