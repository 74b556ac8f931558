"""The tools of the corpus: names and parameters, the questions that need them, their results and the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from models import words
from models.talk import often

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    schema: dict[str, Any]
    text: str
    draw: Callable[[Random], Any]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    names: tuple[str, ...]
    text: str
    parameters: dict[str, Parameter]
    asks: tuple[str, ...]
    result: Callable[[Random, Values], Values]
    answer: str
    sums: bool = False  # takes two addends


def _text(text: str, choices: Sequence[str], *aliases: str) -> Parameter:
    return Parameter({"type": "string"}, text, lambda rng: rng.choice(choices), aliases)


def _number(text: str, low: int, high: int, *aliases: str) -> Parameter:
    return Parameter({"type": "integer"}, text, lambda rng: rng.randint(low, high), aliases)


def _one_of(text: str, choices: tuple[str, ...], *aliases: str) -> Parameter:
    return Parameter({"type": "string", "enum": list(choices)}, text, lambda rng: rng.choice(choices), aliases)


def _city() -> Parameter:
    return _text("The city", words.CITIES, "location", "place", "town")


TOOLS: tuple[Tool, ...] = (
    Tool(
        ("get_weather", "weather", "current_weather", "fetch_weather"),
        "Get the weather in a city",
        {"city": _city()},
        (
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "Is it cold in {city}?",
            "What's the weather like in {city}?",
            "Tell me the weather in {city}.",
            "Weather in {city}?",
            "Does it rain in {city}?",
            "What is the weather like in {city} today?",
        ),
        lambda rng, values: (
            values | {"degrees": rng.randint(1, 30), "sky": often(rng, ("sunny", "cloudy", "rainy"), 0.5)}
        ),
        "It is {sky} in {city}, at {degrees} degrees.",
    ),
    Tool(
        ("get_time", "current_time", "time_in"),
        "Get the time in a city",
        {"city": _city()},
        (
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "How late is it in {city}?",
            "What is the time in {city}?",
        ),
        lambda rng, values: values | {"time": f"{rng.randint(10, 23)}:{rng.randint(10, 59)}"},
        "It is {time} in {city}.",
    ),
    Tool(
        ("add", "add_numbers", "sum", "plus"),
        "Add two numbers",
        {
            "a": _number("The first number", 0, 99, "x", "first"),
            "b": _number("The second number", 0, 99, "y", "second"),
        },
        ("Add {a} and {b} with the tool.", "What is {a} + {b}? Use the tool.", "Use the tool to add {a} and {b}."),
        lambda rng, values: {"result": values["a"] + values["b"]},
        "{a} + {b} = {result}.",
        sums=True,
    ),
    Tool(
        ("multiply", "multiply_numbers", "times"),
        "Multiply two numbers",
        {
            "a": _number("The first number", 2, 99, "x", "first"),
            "b": _number("The second number", 2, 99, "y", "second"),
        },
        (
            "Multiply {a} by {b} with the tool.",
            "What is {a} times {b}? Use the tool.",
            "Use the tool to multiply {a} by {b}.",
        ),
        lambda rng, values: {"result": values["a"] * values["b"]},
        "{a} * {b} = {result}.",
    ),
    Tool(
        ("set_timer", "start_timer", "timer"),
        "Start a timer",
        {"minutes": _number("How many minutes", 1, 90, "duration", "length")},
        (
            "Set a timer for {minutes} minutes.",
            "Start a timer of {minutes} minutes.",
            "Wake me in {minutes} minutes.",
            "Timer for {minutes} minutes, please.",
        ),
        lambda rng, values: {"ok": True},
        "The timer is set for {minutes} minutes.",
    ),
    Tool(
        ("send_message", "write_message", "message"),
        "Send a message to a person",
        {
            "to": _text("Who gets it", words.NAMES, "name", "person"),
            "text": _text(
                "What to say",
                ("hello", "I am late", "good morning", "see you soon", "thank you", "dinner is ready"),
                "content",
                "body",
            ),
        },
        (
            "Send {to} a message: {text}.",
            "Write to {to}: {text}.",
            "Tell {to}: {text}.",
            "Please send this to {to}: {text}.",
        ),
        lambda rng, values: {"ok": True},
        "I told {to}: {text}.",
    ),
    Tool(
        ("mesh_status", "get_status", "worker_status"),
        "Look at the workers of a tier",
        {"tier": _one_of("Which tier", ("prefill", "decode"), "kind")},
        (
            "How are the {tier} workers?",
            "Are the {tier} workers fine?",
            "Check the {tier} tier.",
            "What is the status of the {tier} workers?",
            "How many {tier} workers run?",
        ),
        lambda rng, values: values | {"workers": rng.randint(1, 8), "status": often(rng, ("ready", "busy"), 0.7)},
        "{workers} {tier} workers are {status}.",
    ),
    Tool(
        ("free_pages", "count_pages", "page_count"),
        "Count the free pages of a worker",
        {"worker": _number("Number of the worker", 0, 9, "id", "index")},
        (
            "How many pages are free on worker {worker}?",
            "Count the free pages of worker {worker}.",
            "Free pages on worker {worker}?",
        ),
        lambda rng, values: values | {"free": rng.randint(1, 99)},
        "Worker {worker} has {free} free pages.",
    ),
    Tool(
        ("play_music", "play", "start_music"),
        "Play music",
        {"instrument": _one_of("Which instrument", words.INSTRUMENTS, "kind")},
        ("Play some {instrument} music.", "I want to hear a {instrument}.", "Please play the {instrument}."),
        lambda rng, values: {"ok": True},
        "Here is some {instrument} music.",
    ),
    Tool(
        ("set_light", "light", "change_light"),
        "Change the colour of the light",
        {
            "room": _text("Which room", ("kitchen", "bedroom", "office", "garden", "hall"), "place"),
            "colour": _text("Which colour", words.COLOURS, "color"),
        },
        (
            "Make the light in the {room} {colour}.",
            "Set the {room} light to {colour}.",
            "I want {colour} light in the {room}.",
        ),
        lambda rng, values: {"ok": True},
        "The light in the {room} is {colour} now.",
    ),
    Tool(
        ("find_book", "search_books", "book_search"),
        "Find books of an author",
        {"author": _text("The author", words.NAMES, "name", "writer")},
        ("Which books did {author} write?", "Find books by {author}.", "Is there a book by {author}?"),
        lambda rng, values: values | {"title": often(rng, ("The Lantern", "The Map", "The River"), 0.5)},
        "{author} wrote {title}.",
    ),
    Tool(
        ("book_train", "find_train", "train"),
        "Find a train between two cities",
        {
            "start": _text("From where", words.CITIES, "origin", "source"),
            "goal": _text("To where", words.CITIES, "destination", "target"),
        },
        (
            "Find a train from {start} to {goal}.",
            "I want to go from {start} to {goal}.",
            "Is there a train from {start} to {goal}?",
        ),
        lambda rng, values: {"time": f"{rng.randint(10, 23)}:{rng.randint(10, 59)}"},
        "The next train from {start} to {goal} leaves at {time}.",
    ),
    Tool(
        ("roll_dice", "dice", "throw_dice"),
        "Roll some dice",
        {"count": _number("How many dice", 1, 6, "number", "n")},
        ("Roll {count} dice.", "Throw {count} dice for me.", "Please roll {count} dice."),
        lambda rng, values: {"total": values["count"] * rng.randint(1, 6)},
        "You rolled {total} with {count} dice.",
    ),
    Tool(
        ("add_to_list", "remember_item", "note"),
        "Put something on the shopping list",
        {
            "item": _text("What to buy", words.FRUITS + words.VEGETABLES, "thing", "what"),
            "count": _number("How many", 1, 20, "amount", "number"),
        },
        (
            "Put {count} of {item} on my list.",
            "I need {count} of {item}, add it to the list.",
            "Add {item} to my list, {count} of them.",
        ),
        lambda rng, values: {"ok": True},
        "I put {count} of {item} on your list.",
    ),
)
