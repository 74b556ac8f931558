"""The corpus: an endless stream of talks of all kinds, the same for the same seed, and never stored.

`python -m models.corpus` shows some of it. Shares count talks, not tokens. Training begins with many sums and many
texts to repeat: a network learns adding and copying suddenly, keeps them, and builds all else on them."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from models.arithmetic import arithmetic
from models.chat import chat
from models.echo import echo
from models.lists import lists
from models.objects import objects
from models.stories import plain_story, stories
from models.talk import Generator, Kind, Split, Talk
from models.template import BEGIN, END, Template
from models.tools import tools
from models.wordings import explain

GENERATORS: dict[Kind, Generator] = {
    Kind.EXPLAIN: explain,
    Kind.ARITHMETIC: arithmetic,
    Kind.LISTS: lists,
    Kind.STORIES: stories,
    Kind.JSON: objects,
    Kind.TOOLS: tools,
    Kind.CHAT: chat,
}


@dataclass(frozen=True, slots=True)
class Mix:
    """What the corpus consists of: the share of each kind of talk, and how many texts to repeat come per talk."""

    shares: Mapping[Kind, float]
    echoes: float


FIRST = Mix(
    {
        Kind.EXPLAIN: 0.18,
        Kind.ARITHMETIC: 0.43,
        Kind.LISTS: 0.11,
        Kind.STORIES: 0.04,
        Kind.JSON: 0.09,
        Kind.TOOLS: 0.06,
        Kind.CHAT: 0.09,
    },
    echoes=0.2,
)
LATER = Mix(
    {
        Kind.EXPLAIN: 0.15,
        Kind.ARITHMETIC: 0.13,
        Kind.LISTS: 0.20,
        Kind.STORIES: 0.05,
        Kind.JSON: 0.26,
        Kind.TOOLS: 0.11,
        Kind.CHAT: 0.10,
    },
    echoes=0.06,
)
_PLAIN = 0.01  # plain texts per talk: stories without a question


def talks(seed: int, part: Split, kind: Kind | None = None, mix: Mix = LATER) -> Iterator[Talk]:
    rng = Random(seed)
    kinds, shares = list(mix.shares), list(mix.shares.values())
    while True:
        yield GENERATORS[kind or rng.choices(kinds, shares)[0]](rng, part)


def texts(seed: int, mix: Mix = LATER) -> Iterator[str]:
    """The texts on which the model is trained."""
    rng = Random(seed)
    template = Template()
    stream = talks(rng.getrandbits(64), Split.TRAINED, mix=mix)
    for talk in stream:
        if rng.random() < mix.echoes:
            said_again = echo(rng)
            yield template.render(said_again.messages(), ())
        if rng.random() < _PLAIN:
            yield (BEGIN if rng.random() < 0.5 else "") + plain_story(rng) + END
        yield template.render(talk.messages(), talk.tools)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show some of the corpus.")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=[kind.value for kind in Kind])
    arguments = parser.parse_args()
    template = Template()
    stream = talks(arguments.seed, Split.TRAINED, Kind(arguments.kind) if arguments.kind else None)
    for _ in range(arguments.count):
        talk = next(stream)
        sys.stdout.write(f"--- {talk.kind.value}\n{template.render(talk.messages(), talk.tools)}\n")


if __name__ == "__main__":
    main()
