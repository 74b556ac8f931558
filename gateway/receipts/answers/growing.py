"""The events of SGLang's streams, each of which holds a whole answer so far."""

from typing import Any

from gateway.receipts.answers.chunks import same
from gateway.receipts.answers.fields import SentAnswer

Json = dict[str, Any]
_LISTS = ("output_token_logprobs", "output_top_logprobs")
_GROW = ("completion_tokens", "finish_reason", "e2e_latency", *_LISTS)


class GrowingFold:
    def __init__(self) -> None:
        self._last: dict[Any, Json] = {}
        self._shapes = list[list[Any]]()
        self.problems = list[str]()

    def add(self, event: Json) -> None:
        index = event.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        before, self._last[index] = self._last.get(index), event
        self._shapes.append(shape(index, len(event["text"]), len(event["output_ids"])))
        if before is not None:
            self.problems += [f"{path} of an earlier event" for path in _contradictions(before, event)]

    def answer(self) -> SentAnswer:
        return grown([self._last[index] for index in sorted(self._last, key=lambda index: index or 0)], self._shapes)


def grown(last: list[Json], shapes: list[list[Any]]) -> SentAnswer:
    """`last`: the last event of each answer; `shapes`: one for each event."""
    values = [{name: value for name, value in each.items() if name != "index"} for each in last]
    many = len(last) != 1 or "index" in last[0]
    return SentAnswer(values if many else values[0], {"events": shapes})


def shape(index: int | None, characters: int, tokens: int) -> list[Any]:
    return [index, characters, tokens]


def _contradictions(before: Json, after: Json) -> list[str]:
    """Fields in which an event does not go on from the one before it."""
    count, found = len(before["output_ids"]), list[str]()
    if not after["text"].startswith(before["text"]):
        found.append("text")
    if not same(after["output_ids"][:count], before["output_ids"]):
        found.append("output_ids")
    old, new = before["meta_info"], after["meta_info"]
    for name in _LISTS:
        if not same(new.get(name, [])[:count], old.get(name, [])):
            found.append(f"meta_info.{name}")
    if not same(old.get("completion_tokens"), count):
        found.append("meta_info.completion_tokens")
    if old.get("finish_reason") is not None:
        found.append("meta_info.finish_reason")
    others = {name for name in (*old, *new) if name not in _GROW}
    found += [f"meta_info.{name}" for name in sorted(others) if not same(old.get(name), new.get(name))]
    members = {name for name in (*before, *after) if name not in ("text", "output_ids", "meta_info")}
    return found + [name for name in sorted(members) if not same(before.get(name), after.get(name))]
