"""Tools with made-up names and parameters, so that the network must read a call off the list of tools."""

from random import Random

from models import words
from models.tool_kinds import Parameter, Tool

_VERBS = (
    "get",
    "find",
    "set",
    "open",
    "close",
    "read",
    "send",
    "check",
    "make",
    "show",
    "start",
    "stop",
    "look_up",
    "count",
)
_NOUNS = (
    *words.THINGS[:10],
    *words.FRUITS[:4],
    "page",
    "worker",
    "room",
    "order",
    "file",
    "user",
    "ticket",
    "report",
    "price",
    "song",
)
_TEXT_KEYS = ("name", "city", "colour", "kind", "title", "room", "person", "word", "place", "tier", "topic", "query")
_NUMBER_KEYS = ("count", "id", "number", "minutes", "level", "size", "age", "limit", "page", "amount")
_VALUES = (*words.NAMES, *words.CITIES, *words.COLOURS, *words.ANIMALS, *words.THINGS)
_ASKS = (
    "Call {tool} with {values}.",
    "Use {tool} with {values}.",
    "Please {verb} the {noun} with {values}.",
    "{verb} {noun}: {values}.",
)


def made_tool(rng: Random) -> Tool:
    verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
    name = rng.choice((f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{noun.capitalize()}"))
    parameters: dict[str, Parameter] = {}
    for _ in range(rng.choices((1, 2, 3), (50, 35, 15))[0]):
        if rng.random() < 0.6:
            parameters[rng.choice(_TEXT_KEYS)] = Parameter(
                {"type": "string"}, "Some text", lambda rng: rng.choice(_VALUES)
            )
        else:
            parameters[rng.choice(_NUMBER_KEYS)] = Parameter(
                {"type": "integer"}, "A number", lambda rng: rng.randint(1, 99)
            )
    said = verb.replace("_", " ")
    values = " and ".join(f"{key} {{{key}}}" for key in parameters)
    asks = tuple(form.format(tool=name, verb=said, noun=noun, values=values) for form in _ASKS)
    return Tool(
        names=(name,),
        text=f"{said.capitalize()} the {noun}",
        parameters=parameters,
        asks=tuple(text[0].upper() + text[1:] if not text.startswith(name) else text for text in asks),
        result=lambda rng, values: {"ok": True},
        answer=f"Done: {said} the {noun}.",
    )
