"""The four ready-made loads: how long prompts and answers are, and how fast requests arrive.

Lengths are drawn evenly from half to one and a half times the mean, so that requests do not run in step."""

from dataclasses import dataclass
from enum import Enum
from random import Random

from cli.load.plan import LoadRequest


class ShapeName(Enum):
    SHORT = "short"  # a question and a short answer
    MEDIUM = "medium"  # a conversation with some history
    HEAVY = "heavy"  # a document to read, a long answer to write
    CONCURRENT = "concurrent"  # sixteen clients, each with one request after the other


@dataclass(frozen=True, slots=True)
class LoadShape:
    input_tokens: int  # mean
    output_tokens: int  # mean
    requests: int
    requests_per_second: float | None  # open loop; None: closed loop
    concurrency: int | None  # closed loop; None: open loop

    def __post_init__(self) -> None:
        assert (self.requests_per_second is None) != (self.concurrency is None)


SHAPES = {
    ShapeName.SHORT: LoadShape(128, 32, 60, 2.0, None),
    ShapeName.MEDIUM: LoadShape(512, 128, 60, 1.0, None),
    ShapeName.HEAVY: LoadShape(2048, 256, 30, 0.25, None),
    ShapeName.CONCURRENT: LoadShape(256, 64, 96, None, 16),
}


def draw(shape: LoadShape, count: int, random: Random) -> list[LoadRequest]:
    """Requests of this shape; equal seeds draw equal requests."""
    return [
        LoadRequest(_around(shape.input_tokens, random), _around(shape.output_tokens, random)) for _ in range(count)
    ]


def _around(mean: int, random: Random) -> int:
    return random.randint(mean - mean // 2, mean + mean // 2)
