"""Reads spans of a writer's pool as the receiver's pages hold them: the bytes as they are, or converted.

Step 4 of a request's life. A transport whose bytes pass through this process asks here for bytes and checksum of each
span; where both pools have one form, the bytes are a view of the page, without a copy."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

import numpy as np

import baton_kernels
from kvtransfer.conversion import Bytes, Conversion
from kvtransfer.transfer import Pool, Span
from mesh.messages.page_shape import PageShape

_LAYERS = attrgetter("first_layer", "layers")
_KEY_BYTES = 8  # a checksum is keyed by each 64-bit word's position in its page


class SpanReader(Protocol):
    shape: PageShape  # shape of the receiver's pages

    def read_all(self, spans: Sequence[Span]) -> tuple[list[memoryview], list[int]]:
        """Each span's bytes in the receiver's page, and their checksums."""


def span_reader(source: Pool, target: PageShape) -> SpanReader:
    return AsTheyAre(source) if source.shape == target else Converted(source, target)


class AsTheyAre:
    def __init__(self, source: Pool) -> None:
        self.shape, self._source = source.shape, source

    def read_all(self, spans: Sequence[Span]) -> tuple[list[memoryview], list[int]]:
        views, sums = list[memoryview](), list[int]()
        for (first_layer, layers), same in groupby(spans, _LAYERS):
            pages = [span.source for span in same]
            views += self._source.views(pages, first_layer, layers)
            sums += self._source.checksums(pages, first_layer, layers)
        return views, sums


class Converted:
    def __init__(self, source: Pool, target: PageShape) -> None:
        self.shape, self._source, self._conversion = target, source, Conversion(source.shape, target)

    def read_all(self, spans: Sequence[Span]) -> tuple[list[memoryview], list[int]]:
        found = [self.read(span) for span in spans]
        return [data for data, _ in found], [checksum for _, checksum in found]

    def read(self, span: Span) -> tuple[memoryview, int]:
        """The span's bytes in the receiver's page, and their checksum."""
        found = self.convert(span)
        key = self.shape.before(span.first_layer) // _KEY_BYTES
        return found.data, baton_kernels.checksum(int(found.ctypes.data), len(found), key)

    def convert(self, span: Span) -> Bytes:
        views = [self._source.view(page, span.first_layer, span.layers) for page in (span.source, *span.behind)]
        pages = [np.frombuffer(view, np.uint8) for view in views]
        return self._conversion.span(span.stretch, pages, span.first_layer, span.layers)
