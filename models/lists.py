"""Lists and counting: count up, down and in steps, name a few things, sort, reverse, continue, count how many."""

from random import Random

from models import words
from models.talk import Kind, Split, Talk, ask, belongs, listed, often

_SETS = {
    "days of the week": words.DAYS,
    "months of the year": words.MONTHS,
    "seasons": words.SEASONS,
    "planets": words.PLANETS,
}
_SAMPLES = {
    "colours": words.COLOURS,
    "animals": words.ANIMALS,
    "fruits": words.FRUITS,
    "instruments": words.INSTRUMENTS,
    "cities": words.CITIES,
    "names": words.NAMES,
    "vegetables": words.VEGETABLES,
    "trees": words.TREES,
}
_PLURALS = (words.ANIMALS, words.FRUITS, words.THINGS, words.COLOURS, words.CITIES, words.TREES)


def lists(rng: Random, part: Split) -> Talk:
    while True:
        maker = rng.choice(
            (_count, _count, _steps, _name, _whole, _sort, _sort_numbers, _next, _many, _reverse, _bullets)
        )
        talk = maker(rng)
        if belongs(talk, part):
            return talk


def _count(rng: Random) -> Talk:
    low = often(rng, (1, rng.randrange(60)), 0.4)
    high = low + rng.randint(2, 20)
    if rng.random() < 0.3:
        down = ("Count down from {b} to {a}.", "Count backwards from {b} to {a}.")
        return ask(Kind.LISTS, rng.choice(down).format(a=low, b=high), _row(range(high, low - 1, -1)))
    forms = (
        "Count from {a} to {b}.",
        "Count to {b}." if low == 1 else "Please count from {a} to {b}.",
        "Write the numbers from {a} to {b}.",
    )
    return ask(Kind.LISTS, rng.choice(forms).format(a=low, b=high), _row(range(low, high + 1)))


def _steps(rng: Random) -> Talk:
    step = rng.choice((2, 5, 10, 3))
    low = step * rng.randint(0, 3)
    high = low + step * rng.randint(3, 10)
    forms = ("Count from {a} to {b} in steps of {s}.", "Count by {s} from {a} to {b}.")
    return ask(Kind.LISTS, rng.choice(forms).format(a=low, b=high, s=step), _row(range(low, high + 1, step)))


def _name(rng: Random) -> Talk:
    what, known = rng.choice(list(_SAMPLES.items()))
    count = rng.randint(2, 7)
    written = rng.choice((str(count), words.NUMBERS[count]))
    forms = ("Name {n} {w}.", "List {n} {w}.", "Give me {n} {w}.", "Can you name {n} {w}?", "Tell me {n} {w}.")
    return ask(Kind.LISTS, rng.choice(forms).format(n=written, w=what), listed(known[:count]) + ".")


def _bullets(rng: Random) -> Talk:
    what, known = rng.choice(list(_SAMPLES.items()))
    count = rng.randint(2, 7)
    number = rng.random() < 0.5
    form = rng.choice(("Write a {k} list of {n} {w}.", "Make a {k} list of {n} {w}."))
    question = form.format(k="numbered" if number else "bullet", n=words.NUMBERS[count], w=what)
    lines = [f"{rank}. {word}" if number else f"- {word}" for rank, word in enumerate(known[:count], 1)]
    return ask(Kind.LISTS, question, "\n".join(lines))


def _whole(rng: Random) -> Talk:
    what, known = rng.choice(list(_SETS.items()))
    forms = (
        "List the {w}.",
        "What are the {w}?",
        "Name the {w}.",
        "Name all {w}.",
        "Tell me the {w}.",
        "Which {w} are there?",
    )
    return ask(Kind.LISTS, rng.choice(forms).format(w=what), ", ".join(known) + ".")


def _sort(rng: Random) -> Talk:
    items = rng.sample(rng.choice(_PLURALS), rng.randint(3, 5))
    forms = ("Sort these words: {}.", "Put these in alphabetical order: {}.", "Sort by alphabet: {}.")
    return ask(Kind.LISTS, rng.choice(forms).format(", ".join(items)), ", ".join(sorted(items)) + ".")


def _sort_numbers(rng: Random) -> Talk:
    items = rng.sample(range(100), rng.randint(3, 6))
    forms = ("Sort these numbers: {}.", "Put these numbers in order: {}.", "Sort: {}.")
    return ask(Kind.LISTS, rng.choice(forms).format(_row(items)[:-1]), _row(sorted(items)))


def _next(rng: Random) -> Talk:
    known = rng.choice((words.DAYS, words.MONTHS, words.SEASONS))
    place = rng.randrange(len(known))
    if rng.random() < 0.5:
        after = ("What comes after {}?", "Which one comes after {}?", "What follows {}?")
        return ask(
            Kind.LISTS,
            rng.choice(after).format(known[place]),
            f"{_capital(known[(place + 1) % len(known)])} comes after {known[place]}.",
        )
    forms = ("What comes before {}?", "Which one comes before {}?")
    return ask(
        Kind.LISTS, rng.choice(forms).format(known[place]), f"{_capital(known[place - 1])} comes before {known[place]}."
    )


def _many(rng: Random) -> Talk:
    items = [rng.choice(rng.choice(_PLURALS)) for _ in range(rng.randint(1, 9))]
    forms = ("How many words are here: {}?", "Count the words: {}.", "How many items are in this list: {}?")
    numbered = ", ".join(f"{rank} {word}" for rank, word in enumerate(items, 1))
    return ask(Kind.LISTS, rng.choice(forms).format(", ".join(items)), f"{numbered}. That makes {len(items)}.")


def _reverse(rng: Random) -> Talk:
    items = rng.sample(rng.choice(_PLURALS), rng.randint(3, 5))
    forms = ("Reverse this list: {}.", "Say these words backwards: {}.", "Repeat these words: {}.")
    form = rng.choice(forms)
    answer = items if form.startswith("Repeat") else items[::-1]
    return ask(Kind.LISTS, form.format(", ".join(items)), ", ".join(answer) + ".")


def _row(numbers: "range | list[int]") -> str:
    return ", ".join(map(str, numbers)) + "."


def _capital(word: str) -> str:
    return word[0].upper() + word[1:]
