"""What the fault tests share: the mesh they break and the questions they ask it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from bench.asking import Question, prompt_of
from bench.mesh_process import MeshProcess

PROMPT_TOKENS = 512
SETTINGS = {
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "64",  # 4 pages and 4 layers each: 32 writes of 4 spans per prompt
    "worker.pool_pages": "200",
    "worker.prefix_cache": "false",  # every run pushes every page
    "worker.threads": "1",
    "gateway.local": "never",  # recovery goes over the hand-off too
}
LANDING_ENDS = re.compile(r"request (\d+): landing ends with (\d+) of (\d+) spans")


@dataclass
class Notes:
    """What services noted; landings that ended without being admitted, by request."""

    ended: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def take(self, process: MeshProcess, text: str) -> None:
        if found := LANDING_ENDS.match(text):
            request, landed, spans = map(int, found.groups())
            self.ended.setdefault(request, []).append((landed, spans))


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def settings() -> Callable[..., dict[str, str]]:
    return lambda **more: SETTINGS | {name.replace("__", "."): value for name, value in more.items()}


@pytest.fixture
def question() -> Callable[..., Question]:
    def make(number: int, *, max_tokens: int = 16, name: str = "") -> Question:
        """Every second one is sampled with a seed; the others are greedy."""
        prompt = prompt_of(Random(number).randbytes(PROMPT_TOKENS - 1), number)
        return Question(name or f"question-{number}", prompt, max_tokens, number if number % 2 else None)

    return make
