"""Bands: the layers of a model that share pages.

A model whose layers all have windows, or none, is one band: a page holds all its layers. Where some layers have windows
and others see everything, their keys and values are of use for different times. So such a model is cut into bands,
first those with windows, then those without, and a page holds one band's layers. All pages have equally many bytes, so
one pool holds them all (`docs/protocol.md`, "Pages behind windows"). The last band with windows may have fewer layers
than the others: what is left of its pages is written along with its last layer, and nothing reads it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MOST_PADDING = 1 / 12  # share of a model's layers by which its pages may be larger than they have to be


@dataclass(frozen=True, slots=True)
class LayerBands:
    window: int = 0  # slots that a row may read in bands with windows, its own the last; 0: all, there are no windows
    count: int = 1
    full: int = 0  # the last bands, whose layers see everything though others have windows
    places: tuple[tuple[int, int], ...] = ()  # each layer's band and its place in there; empty: one band has all

    def __post_init__(self) -> None:
        if not 0 <= self.full < self.count or (self.full and not self.window) or bool(self.places) != (self.count > 1):
            raise ValueError(
                f"{self.count} bands, {self.full} of them without a window, cannot be: window {self.window}"
            )

    def place(self, layer: int) -> tuple[int, int]:
        """The band of a layer, and the layer's index in pages of that band."""
        return self.places[layer] if self.places else (0, layer)

    def spans(self, first: int, layers: int) -> list[tuple[tuple[int, ...], int, int]]:
        """These layers of the model as spans of pages: (bands, first layer in a page, number of layers)."""
        if not self.places:
            return [((0,), first, layers)]
        size, own, within = self.page_layers(0), Counter(band for band, _ in self.places), dict[int, list[int]]()
        for band, place in self.places[first : first + layers]:
            within.setdefault(band, []).append(place)
        alike = dict[tuple[int, int], list[int]]()
        for band, found in within.items():
            stop = size if max(found) + 1 == own[band] else max(found) + 1
            alike.setdefault((min(found), stop - min(found)), []).append(band)
        return [(tuple(bands), *span) for span, bands in alike.items()]

    def page_layers(self, layers: int) -> int:
        """For how many layers a page has room, in a model of so many."""
        return max(place for _, place in self.places) + 1 if self.places else layers

    def indexes(self, stretches: range, bands: Sequence[int]) -> list[int]:
        """The indexes of the pages of these stretches and bands among those of a text."""
        return [stretch * self.count + band for stretch in stretches for band in bands]


ONE_BAND = LayerBands()


def bands_of(windows: Sequence[int]) -> LayerBands:
    """The bands of a model with these windows, one per layer; 0: the layer sees everything."""
    kinds = (
        [layer for layer, window in enumerate(windows) if window],
        [layer for layer, window in enumerate(windows) if not window],
    )
    if not all(kinds):
        return LayerBands(max(windows, default=0))
    size, places = _page_layers(*map(len, kinds)), [(0, 0)] * len(windows)
    windowed, full = (-(-len(kind) // size) for kind in kinds)
    for kind, first in zip(kinds, (0, windowed), strict=True):
        for number, layer in enumerate(kind):
            places[layer] = first + number // size, number % size
    return LayerBands(max(windows), windowed + full, full, tuple(places))


def _page_layers(windowed: int, full: int) -> int:
    """The layers of a band: as many as leave little empty in pages with windows, and nothing in the others, of which a
    long text has most."""
    sizes = [size for size in range(1, full + 1) if full % size == 0]
    return max(size for size in sizes if -windowed % size <= MOST_PADDING * (windowed + full))
