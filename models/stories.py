"""Little stories from a grammar: a hero, a thing, a place, trouble, a helper and an end.

The prompt names hero and thing. Where the grammar may choose, one choice is much likelier than the others and depends
on the hero, so that a story has a likeliest form."""

from random import Random

from models.talk import Kind, Split, T, Talk, ask, belongs, often
from models.words import ANIMALS, NAMES, THINGS

_HOMES = (
    "in a quiet forest",
    "near a river",
    "in an old barn",
    "by the sea",
    "on a green hill",
    "under a tall tree",
    "in a small town",
    "beside a pond",
)
_TROUBLES = (
    ("it was lost", "looked everywhere", "behind the big stone"),
    ("it was broken", "did not know what to do", "in the workshop of a friend"),
    ("the wind took it away", "ran after it", "high in a tree"),
    ("it fell into the water", "looked down sadly", "at the other side of the river"),
)
_TIMES = ("One morning", "One day", "One evening", "One winter night", "One rainy day")
_ENDS = (
    "From that day on they were friends.",
    "They laughed all the way home.",
    "That night {hero} slept very well.",
    "And {hero} never forgot it.",
)
_MOODS = ("small", "brave", "curious", "clever", "shy", "old", "happy", "lonely")
_FORMS = (
    "Tell me a story about {a} and {t}.", "Tell me a short story about {a} and {t}.",
    "Write a story about {a} and {t}.", "Write a little story about {a} who finds {t}.",
    "I would like a story with {a} and {t}.", "A story about {a} and {t}, please.",
    "Can you tell me a story about {a} and {t}?", "Make up a story with {a} and {t}.",
)  # fmt: skip
_NAMED = ("Tell me a story about {a} named {n} and {t}.", "Write a short story about {a} called {n} who finds {t}.")
_OPEN = (
    "Tell me a story about {a}.",
    "Write a story about {a}.",
    "Tell me a short story about {a}.",
    "A story about {a}, please.",
)
_ANY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a little story.",
    "A story, please.",
    "Can you tell me a story?",
)


def stories(rng: Random, part: Split) -> Talk:
    while True:
        talk = _story(rng)
        if belongs(talk, part):
            return talk


def plain_story(rng: Random) -> str:
    """A story without a question, as text to continue."""
    return _story(rng).turns[1].content


def _story(rng: Random) -> Talk:
    animal, thing = rng.choice(ANIMALS), rng.choice(THINGS)
    rank = ANIMALS.index(animal)
    name = NAMES[(3 * rank + 1) % len(NAMES)] if rng.random() < 0.7 else rng.choice(NAMES)
    forms = rng.choices((_FORMS, _NAMED, _OPEN, _ANY), (50, 25, 20, 5))[0]
    if forms in (_OPEN, _ANY):
        if forms is _ANY:
            animal, rank, name = ANIMALS[0], 0, NAMES[1]
        thing = often(rng, _turned(THINGS, rank), 0.7)
    elif forms is _FORMS:
        name = often(rng, _turned(NAMES, 3 * rank + 1), 0.7)
    question = rng.choice(forms).format(a=_a(animal), t=_a(thing), n=name)
    return ask(Kind.STORIES, question, _told(rng, animal, name, thing, rank))


def _told(rng: Random, animal: str, name: str, thing: str, rank: int) -> str:
    def pick(choices: tuple[str, ...]) -> str:
        return often(rng, _turned(choices, rank), 0.75)

    trouble, reaction, place = often(rng, _turned(_TROUBLES, rank), 0.75)
    helper = often(rng, _turned(ANIMALS, rank + 5), 0.75)
    friend = often(rng, _turned(NAMES, 3 * rank + 8), 0.75)
    end = pick(_ENDS).format(hero=name)
    return (
        f"Once upon a time there was {_a(pick(_MOODS) + ' ' + animal)} named {name}, who lived {pick(_HOMES)}. "
        f"{pick(_TIMES)} {name} found {_a(thing)}. But then {trouble}. {name} {reaction}. "
        f'{_a(helper).capitalize()} named {friend} came by and said: "Let us look together." '
        f"They found the {thing} {place}. {end}"
    )


def _turned(choices: tuple[T, ...], by: int) -> tuple[T, ...]:
    by %= len(choices)
    return choices[by:] + choices[:by]


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
