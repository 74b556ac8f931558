"""`response_format` and `structured_outputs` as a grammar: the forms that OpenAI and vLLM spell.

Step 1 of a request's life. Every form becomes a Lark grammar of llguidance, whose rule `start` is the whole answer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from gateway.structured.gbnf import is_gbnf, lark_of
from gateway.structured.schema import MAX_BYTES, WHITE_SPACE, json_grammar
from gateway.text.formats import ReasoningFormat
from gateway.text.json_text import parse_json_text
from mesh.errors import InvalidRequest, brief
from mesh.messages.grammar import client_grammar

Json = dict[str, Any]
Added = Mapping[str, int]  # ids of tokens that are added to a vocabulary, by their text
MAX_CHOICES = 2000
MAX_TAGS = 64
FORMATS = ("text", "json_object", "json_schema", "structural_tag")
KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
OPTIONS = ("disable_any_whitespace", "whitespace_pattern", "disable_fallback", "disable_additional_properties")
# Attributes of a rule that would change more than which tokens are allowed.
_ATTRIBUTES = re.compile(r"\w\[[^\]\n]*\b(temperature|max_tokens|stop)\s*=")


@dataclass(frozen=True, slots=True)
class Form:
    """The demanded form of an answer."""

    field: str  # the request's field that demands it
    json: str = ""  # a Lark expression, where the answer is JSON
    grammar: str = ""  # else the whole grammar
    free: bool = False  # any text may stand around what is demanded

    @property
    def whole(self) -> str:
        return lark(f"start: {self.json}") if self.json else self.grammar


def lark(text: str) -> str:
    found: str = LLMatcher.grammar_from_lark(text)
    return found


def parse_response_format(
    value: Any,
    added: Added,
    field: str = "response_format",
    *,
    flat: bool = False,
    reasoning: ReasoningFormat | None = None,
) -> Form | None:
    """The form that OpenAI's field demands; None for any text. A schema is followed with and without `strict`.
    `flat`: name and schema stand beside the type. `reasoning`: how the model marks it, where text is free."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in FORMATS:
        raise InvalidRequest(f"{field}.type", f"{field}.type must be one of {', '.join(FORMATS)}")
    if kind == "text":
        return None
    if kind == "json_object":
        return Form(field, json_grammar({"type": "object"}, field))
    if kind == "structural_tag":
        return Form(field, grammar=_tags(value, field, added, reasoning), free=True)
    path = field if flat else f"{field}.json_schema"
    wrapper = value if flat else value.get("json_schema")
    if not isinstance(wrapper, dict):
        raise InvalidRequest(path, f'{path} must be {{"name": …, "schema": …}}')
    if not isinstance(wrapper.get("name"), str | None):
        raise InvalidRequest(f"{path}.name", f"{path}.name must be text")
    if not isinstance(wrapper.get("strict"), bool | None):
        raise InvalidRequest(f"{path}.strict", f"{path}.strict must be true or false")
    if not isinstance(wrapper.get("schema"), dict):
        raise InvalidRequest(f"{path}.schema", f"{path}.schema must be a JSON schema, which is an object")
    return Form(f"{path}.schema", json_grammar(wrapper["schema"], f"{path}.schema"))


def parse_structured_outputs(
    value: Any, added: Added, field: str = "structured_outputs", *, reasoning: ReasoningFormat | None = None
) -> Form | None:
    if not isinstance(value, dict):
        raise InvalidRequest(field, f"{field} must be an object with one of {', '.join(KINDS)}")
    for name in value:
        if name not in (*KINDS, *OPTIONS):
            where = f"{field}.{brief(name)}"
            raise InvalidRequest(where, f"{where} is no field; these are: {', '.join((*KINDS, *OPTIONS))}")
    given = [name for name in KINDS if value.get(name) is not None]
    if given == ["json_object"] and value["json_object"] is False:
        return None
    if len(given) != 1:
        shown = " and ".join(given) or "none"
        raise InvalidRequest(field, f"{field} must have one of {', '.join(KINDS)}; it has {shown}")
    kind, path = given[0], f"{field}.{given[0]}"
    content, white_space = value[kind], _white_space(value, field, json=kind in ("json", "json_object"))
    if kind == "json":
        return Form(path, json_grammar(content, path, white_space=white_space))
    if kind == "json_object":
        if content is not True:
            raise InvalidRequest(path, f"{path} must be true")
        return Form(path, json_grammar({"type": "object"}, path, white_space=white_space))
    if kind == "choice":
        return Form(path, grammar=_choice(content, path))
    if kind == "structural_tag":
        return Form(path, grammar=_tags(_object(content, path), path, added, reasoning), free=True)
    if not isinstance(content, str) or not content or len(content) > MAX_BYTES:
        raise InvalidRequest(path, f"{path} must be a text of 1 to {MAX_BYTES} characters")
    return Form(path, grammar=_regex(content) if kind == "regex" else _grammar(content, path))


def _regex(text: str) -> str:
    found: str = LLMatcher.grammar_from_regex(text)
    return found


def _grammar(text: str, path: str) -> str:
    if found := _ATTRIBUTES.search(text):
        raise InvalidRequest(path, f"{path}: the attribute {found[1]!r} of a rule is not supported")
    return client_grammar(lark_of(text, path) if is_gbnf(text) else text)


def _choice(value: Any, path: str) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise InvalidRequest(path, f"{path} must be a list of texts, none of them empty")
    if len(value) > MAX_CHOICES or sum(map(len, value)) > MAX_BYTES:
        raise InvalidRequest(path, f"{path} may hold {MAX_CHOICES} texts of together {MAX_BYTES} characters")
    return lark("start: CHOICE\nCHOICE: " + " | ".join(map(literal, value)))


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def pieces(text: str, added: Added) -> list[str]:
    """A text of which the model writes some parts, such as <tool_call>, as one added token each."""
    names = sorted(filter(None, added), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return [f"<[{added[part]}]>" if part in added else literal(part) for part in parts if part]


def _white_space(value: Json, field: str, *, json: bool) -> str | None:
    if value.get("disable_additional_properties"):
        path = f"{field}.disable_additional_properties"
        raise InvalidRequest(path, f"{path} is not supported: write additionalProperties: false into the schema")
    for name in OPTIONS:
        kind = str if name == "whitespace_pattern" else bool
        if not isinstance(value.get(name), kind | None):
            raise InvalidRequest(
                f"{field}.{name}", f"{field}.{name} must be {'a text' if kind is str else 'a boolean'}"
            )
    pattern = value.get("whitespace_pattern")
    if (pattern is not None or value.get("disable_any_whitespace")) and not json:
        raise InvalidRequest(field, f"{field}: options for white space need json or json_object")
    if value.get("disable_any_whitespace"):
        return None
    return WHITE_SPACE if pattern is None else str(pattern)


def _tags(value: Any, path: str, added: Added, reasoning: ReasoningFormat | None) -> str:
    """Free text in which each trigger begins one of its structures: a fixed text, JSON of a schema, a fixed text."""
    structures, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures or not triggers:
        raise InvalidRequest(path, f'{path} needs "structures" ({{"begin", "schema", "end"}}) and "triggers"')
    if len(structures) > MAX_TAGS or len(triggers) > MAX_TAGS:
        raise InvalidRequest(path, f"{path} may hold {MAX_TAGS} structures and triggers")
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise InvalidRequest(f"{path}.triggers", f"{path}.triggers must be a list of texts, none of them empty")
    bodies = dict[str, list[str]]()
    for at, each in enumerate(structures):
        where = f"{path}.structures[{at}]"
        if not isinstance(each, dict) or not isinstance(each.get("begin"), str) or not isinstance(each.get("end"), str):
            raise InvalidRequest(where, f'{where} must be {{"begin": text, "schema": …, "end": text}}')
        begin = each["begin"]
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise InvalidRequest(f"{where}.begin", f"{where}.begin must begin with one of the triggers")
        schema = json_grammar(each.get("schema", {}), f"{where}.schema")
        bodies.setdefault(trigger, []).append(sequence(begin[len(trigger) :], schema, each["end"], added))
    return lark(triggered(bodies, added, reasoning=reasoning))


def sequence(before: str, expression: str, after: str, added: Added) -> str:
    """A Lark expression between two fixed texts."""
    return " ".join((*pieces(before, added), expression, *pieces(after, added)))


def triggered(
    bodies: dict[str, list[str]], added: Added, *, most: str = "*", reasoning: ReasoningFormat | None = None
) -> str:
    """Free text, in which one of its bodies follows each trigger. `most`: `*`, or `?` for one at most."""
    first, rules = thought(reasoning, added)
    rules.append(f"start: {first}({' | '.join(f'tag{at}' for at in range(len(bodies)))}){most} rest")
    rules += ["rest: TEXT", "TEXT: /(.|\\n)*/"]
    for at, (trigger, choices) in enumerate(bodies.items()):
        first, *rest = pieces(trigger, added)
        rules.append(f"lead{at}{'' if first.startswith('<') else '[lazy]'}: TEXT {first}")
        rules.append(" ".join((f"tag{at}: lead{at}", *rest, f"body{at}")))
        rules.append(f"body{at}: " + " | ".join(choices))
    return "\n".join(rules)


def thought(reasoning: ReasoningFormat | None, added: Added) -> tuple[str, list[str]]:
    """Returns what lets a model reason before a free answer: how the rule `start` begins, and the rules that it names.

    Free text, the terminal TEXT, holds marks that are text. It holds no added token, so marks that are one have a rule
    of their own. The prompt may have written the mark that begins the reasoning."""
    if reasoning is None or reasoning.channels:
        return "", []
    begin, end = (pieces(mark, added) for mark in (reasoning.begin, reasoning.end))
    rule = "".join(f"({mark})? " for mark in begin if len(begin) == 1 and mark.startswith("<"))
    if len(end) == 1 and end[0].startswith("<"):
        rule += f"TEXT {end[0]}"
    return ("thought? ", [f"thought: {rule}"]) if rule else ("", [])


def _object(value: Any, path: str) -> Any:
    value = parse_json_text(value, path) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise InvalidRequest(path, f"{path} must be an object")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(path, f"{path} has half of a character (\\ud800 to \\udfff alone)") from None
    except RecursionError:
        raise InvalidRequest(path, f"{path} is nested too deeply") from None
    return value
