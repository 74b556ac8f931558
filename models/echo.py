"""Texts to repeat word for word. They teach the network to copy, which names, keys and arguments need."""

from random import Random

from models import words
from models.talk import Kind, Talk, ask

_WORDS = (
    *words.NAMES, *words.CITIES, *words.COLOURS, *words.ANIMALS, *words.FRUITS, *words.THINGS, *words.COUNTED,
    *words.INSTRUMENTS, *words.PLANETS, *words.DAYS, *words.MONTHS, *words.SEASONS, *words.TREES, *words.NUMBERS,
)  # fmt: skip
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FORMS = ("Repeat: {}", "Say this again: {}", "Repeat these words: {}", "Copy this: {}", "Write this once more: {}")


def echo(rng: Random) -> Talk:
    one = rng.choice((_word, _word, _key, _number, _letters, _any))
    text = rng.choice((", ", " ", ", ", "; ", ": ")).join(one(rng) for _ in range(rng.randint(2, 30)))
    return ask(Kind.LISTS, rng.choice(_FORMS).format(text), text)


def _word(rng: Random) -> str:
    return rng.choice(_WORDS)


def _key(rng: Random) -> str:
    return f'"{rng.choice(_WORDS).lower()}_{rng.choice(_WORDS).lower()}"'


def _number(rng: Random) -> str:
    return str(rng.randrange(100))


def _letters(rng: Random) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randint(1, 6)))


def _any(rng: Random) -> str:
    return rng.choice((_word, _key, _number, _letters))(rng)
