"""Spans as a prefill worker makes them from a Landing and from Resends: page ids and layers are a peer's numbers."""

from random import Random

from kvtransfer.transfer import Span
from mesh.messages.page_shape import PageShape
from tests.fuzz.cases import ODD_INTS, chance


def drawn_spans(rng: Random, source: PageShape, source_pages: int, target: PageShape, target_pages: int) -> list[Span]:
    """Mostly spans that lie in both pools; in a fifth of the cases one number of one of them is any other."""
    spans = [_span(rng, source, source_pages, target, target_pages) for _ in range(rng.randint(1, 4))]
    if chance(rng, 0.2):
        at, odd = rng.randrange(len(spans)), rng.choice((*ODD_INTS[:9], 4, 5, -1, -(1 << 31)))
        span = spans[at]
        values = [span.index, span.source, span.target, span.first_layer, span.layers]
        values[rng.randrange(1, 5)] = odd
        spans[at] = Span(*values, span.behind)
    return spans


def _span(rng: Random, source: PageShape, source_pages: int, target: PageShape, target_pages: int) -> Span:
    first = rng.randrange(source.layers)
    index, behind = rng.randrange(3), 0
    if target.page_tokens > source.page_tokens:
        behind = rng.randrange(target.page_tokens // source.page_tokens)
    pages = [rng.randrange(source_pages) for _ in range(1 + behind)]
    layers = rng.randint(1, source.layers - first)
    return Span(index, pages[0], rng.randrange(target_pages), first, layers, tuple(pages[1:]))
