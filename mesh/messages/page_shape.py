"""The form of a page: how many tokens it covers, and the segments that lie in it one behind the other.

Both ends of a hand-off describe their pages so, to each other and to gateways (steps 1 and 3 of a request's life).
Where the two forms differ, the writer converts (`kvtransfer/conversion.py`) or the pair is refused by name
(`mesh/messages/page_fit.py`). What peers send is checked first (`mesh/messages/page_shape_checks.py`)."""

from dataclasses import dataclass
from functools import cached_property

KV = "kv"  # keys and values of tokens: [layers][2][KV heads of the shard][tile]
ROWS = "rows"  # bytes per token and layer that only their owner reads: [layers][token][bytes], for instance latent KV
OPAQUE = "opaque"  # bytes of the page as a whole, which move as they are, for instance a state behind its last token
KINDS = (KV, ROWS, OPAQUE)
CONTENT_LETTERS = 16  # letters of a model's hash that name the content of its pages
_MOST_PLACES = 4096


@dataclass(frozen=True, slots=True)
class PageSegment:
    """A part of every page: layers of one kind, one behind the other."""

    kind: str  # what the bytes are, see KINDS; a later version may send others
    content: str  # equal for segments whose bytes mean the same: the first letters of the model's hash
    layers: int
    layer_bytes: int  # bytes of one layer in one page
    tiles: str = ""  # KV: name of the order of a head's keys and values
    dtype: str = ""  # KV: of one element
    heads: int = 0  # KV: KV heads of the whole model
    first_head: int = 0  # KV: first head of the shard that these pages hold
    shard_heads: int = 0  # KV: heads of that shard
    head_dim: int = 0  # KV: elements of a key

    @property
    def total_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def __str__(self) -> str:
        if self.kind != KV:
            return f"{self.layers} {self.kind} layers of {self.layer_bytes} bytes from {self.content}"
        heads = f"heads {self.first_head} to {self.first_head + self.shard_heads} of {self.heads}"
        return f"{self.layers} layers of {self.dtype} in {self.tiles}, {heads} x {self.head_dim}, from {self.content}"


@dataclass(frozen=True)  # without slots: it remembers what was asked for
class PageShape:
    """How the bytes of a page are laid out. A layer's index counts through the segments."""

    page_tokens: int  # tokens that one page covers
    segments: tuple[PageSegment, ...]  # the model's, then its draft's

    @cached_property
    def layers(self) -> int:
        """Layers of all segments together."""
        return sum(segment.layers for segment in self.segments)

    @cached_property
    def page_bytes(self) -> int:
        return sum(segment.total_bytes for segment in self.segments)

    @cached_property
    def _places(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Results of `place` so far, by its arguments."""
        return {}

    def first_byte(self, segment: int) -> int:
        """Byte offset of a segment inside a page."""
        return sum(before.total_bytes for before in self.segments[:segment])

    def before(self, layer: int) -> int:
        """Byte offset of this layer inside a page."""
        total = 0
        for segment in self.segments:
            mine = min(layer, segment.layers)
            total += mine * segment.layer_bytes
            layer -= mine
        return total

    def place(self, first_layer: int, layers: int) -> tuple[int, int]:
        """Byte offset and byte length of these layers inside a page. The layers may lie in two segments."""
        found = self._places.get((first_layer, layers))
        if found is None:
            offset = self.before(first_layer)
            found = offset, self.before(first_layer + layers) - offset
            if len(self._places) < _MOST_PLACES:
                self._places[first_layer, layers] = found
        return found

    def __str__(self) -> str:
        return f"pages of {self.page_tokens} tokens: " + "; ".join(map(str, self.segments))


def opaque_pages(*layers: tuple[int, int], content: str, page_tokens: int = 1) -> PageShape:
    """Pages of segments that are moved as they are, for pools without a model; of each the layers and their bytes."""
    return PageShape(page_tokens, tuple(PageSegment(OPAQUE, content, count, size) for count, size in layers))
