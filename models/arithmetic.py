"""Sums of small numbers. Additions below 100 are held out as unordered pairs: a held pair occurs in no template.

Sums of two single digits are always trained, since all others are made of them. Subtractions that would give a held
pair away are not trained either. The answer repeats the question as an equation, digit for digit."""

from random import Random

from models.talk import Kind, Split, Talk, Turn, ask, is_held, often
from models.words import COUNTED, NAMES

HELD_PAIRS = 10  # one pair in so many is held out

ADD_FORMS = (
    "What is {a} + {b}?", "{a} + {b} = ?", "What is {a} plus {b}?", "Add {a} and {b}.", "{a} + {b}",
    "Calculate {a} + {b}.", "How much is {a} + {b}?", "What's {a} + {b}?", "How much is {a} plus {b}?",
    "What is the sum of {a} and {b}?", "{a} plus {b}?", "Please add {a} to {b}.", "Compute {a} + {b}.",
    "Can you add {a} and {b}?", "{a}+{b}", "What is {a}+{b}?", "Tell me what {a} + {b} is.", "{a}+{b}=",
)  # fmt: skip
_SUBTRACT = (
    "What is {a} - {b}?", "{a} - {b} = ?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "{a} - {b}", "{a}-{b}",
    "How much is {a} - {b}?", "What's {a} - {b}?", "Calculate {a} - {b}.", "What is {a} take away {b}?",
)  # fmt: skip
_MULTIPLY = (
    "What is {a} * {b}?", "{a} * {b} = ?", "What is {a} times {b}?", "Multiply {a} by {b}.", "{a} * {b}", "{a}*{b}",
    "How much is {a} times {b}?", "Calculate {a} * {b}.",
)  # fmt: skip


def arithmetic(rng: Random, part: Split) -> Talk:
    """Single sums, and several in a row as turns."""
    if part is Split.HELD:
        return addition(rng, part)
    if rng.random() < 0.5:
        return _one(rng, part)
    turns: list[Turn] = []
    for _ in range(rng.randint(2, 6)):
        turns.extend((_sheet if rng.random() < 0.3 else _one)(rng, part).turns)
    return Talk(Kind.ARITHMETIC, tuple(turns))


def addition(rng: Random, part: Split) -> Talk:
    a, b = addends(rng, part)
    return ask(Kind.ARITHMETIC, rng.choice(ADD_FORMS).format(a=a, b=b), f"{a} + {b} = {a + b}.", sum=a + b)


def addends(rng: Random, part: Split) -> tuple[int, int]:
    """Two numbers below 100 whose pair belongs to the part."""
    while True:
        a, b = rng.randrange(100), rng.randrange(100)
        if pair_is_held(a, b) == (part is Split.HELD):
            return a, b


def pair_is_held(a: int, b: int) -> bool:
    low, high = sorted((a, b))
    return 10 <= high < 100 and is_held(f"{low}+{high}", HELD_PAIRS)


def held_pairs() -> list[tuple[int, int]]:
    return [(a, b) for b in range(100) for a in range(b + 1) if pair_is_held(a, b)]


def _one(rng: Random, part: Split) -> Talk:
    maker = rng.choices((addition, _subtraction, _multiplication, _story, _larger), (60, 17, 8, 10, 5))[0]
    return maker(rng, part)


def _sheet(rng: Random, part: Split) -> Talk:
    """Several additions at once."""
    pairs = [addends(rng, part) for _ in range(rng.randint(2, 8))]
    forms = ("Add these: {}.", "Calculate: {}.", "{}", "What are {}?")
    question = rng.choice(forms).format(", ".join(f"{a} + {b}" for a, b in pairs))
    return ask(Kind.ARITHMETIC, question, ", ".join(f"{a} + {b} = {a + b}" for a, b in pairs) + ".")


def _difference(rng: Random) -> tuple[int, int]:
    while True:
        b, c = addends(rng, Split.TRAINED)
        if b + c < 100:
            return b + c, b


def _subtraction(rng: Random, part: Split) -> Talk:
    a, b = _difference(rng)
    return ask(Kind.ARITHMETIC, rng.choice(_SUBTRACT).format(a=a, b=b), f"{a} - {b} = {a - b}.")


def _multiplication(rng: Random, part: Split) -> Talk:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    return ask(Kind.ARITHMETIC, rng.choice(_MULTIPLY).format(a=a, b=b), f"{a} * {b} = {a * b}.")


def _story(rng: Random, part: Split) -> Talk:
    name, what = rng.choice(NAMES), rng.choice(COUNTED)
    if rng.random() < 0.7:
        a, b = addends(rng, part)
        gets = often(rng, ("gets", "finds", "buys"), 0.4)
        question = f"{name} has {a} {what} and {gets} {b} more. How many {what} does {name} have now?"
        return ask(Kind.ARITHMETIC, question, f"{a} + {b} = {a + b}, so {name} has {a + b} {what}.")
    a, b = _difference(rng)
    gives = often(rng, ("gives away", "loses", "sells"), 0.4)
    question = f"{name} has {a} {what} and {gives} {b}. How many {what} are left?"
    return ask(Kind.ARITHMETIC, question, f"{a} - {b} = {a - b}, so {a - b} {what} are left.")


def _larger(rng: Random, part: Split) -> Talk:
    a, b = rng.sample(range(100), 2)
    word = rng.choice(("larger", "smaller"))
    question = rng.choice(("Which is {}, {} or {}?", "Which number is {}: {} or {}?")).format(word, a, b)
    right = max(a, b) if word == "larger" else min(a, b)
    return ask(Kind.ARITHMETIC, question, f"{right} is {word} than {a + b - right}.")
