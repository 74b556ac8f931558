"""Text of clients never becomes a control token, such as the mark that ends a turn.

Step 1 of a request's life. A chat template writes control tokens as text, so after rendering nothing tells them apart
from the same letters in a message. Therefore `guard` puts a marker, one character that nothing else contains, inside
every control token that a client wrote, and at the end of a text that another text could complete to one. The template
renders as ever. `encode` then replaces the control tokens without a marker by aliases, drops the markers, and tokenizes
with a copy of the tokenizer that knows the aliases instead of the control tokens. Messages without such text take the
tokenizer itself: their ids are those of transformers."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer

from gateway.text.chat import ROLES
from gateway.text.tokenizer import encode
from gateway.text.tokenizer_files import with_few_words
from mesh.errors import InvalidRequest

Json = dict[str, Any]
_ALIAS = "\ufdd0"  # begins and ends an alias; Unicode reserves it, like the markers, for use inside a program
_MARKERS = tuple(map(chr, range(0xFDD1, 0xFDF0)))
MAX_DEPTH = 128  # levels of objects and lists in what a client sends
SLICE = 32_768  # characters that are searched at once
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHAPE = re.compile(
    r"<\|.*\|>", re.DOTALL
)  # a control token by its looks, where the tokenizer does not call it special


@dataclass(frozen=True, slots=True)
class Guarded:
    """Values of a client that are safe to render."""

    values: Any
    marker: str
    cut: str  # another such character, which the caller may use
    marked: bool  # at least one marker was needed


class ControlTokens:
    def __init__(self, tokenizer: Tokenizer, templates: Sequence[str] = ()) -> None:
        """`templates`: sources of the model's chat templates, and marks of its calls. An added token that they name is
        a control token, also where the tokenizer does not call it special, as <tool_call> and <think> of Qwen."""
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = frozenset(token.content for _, token in added if token.special)
        # A tokenizer may split special tokens into their letters, those of the template too: then no text becomes one.
        split = self._special if tokenizer.encode_special_tokens else frozenset()
        self._ids = {
            token.content: number
            for number, token in added
            if len(token.content) > 1
            and token.content not in split
            and (
                token.special or _SHAPE.fullmatch(token.content) or any(token.content in source for source in templates)
            )
        }
        self._templates = "".join(templates)
        text = tokenizer.to_str()
        stamp = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        self._aliases = {name: f"{_ALIAS}{stamp}:{number}{_ALIAS}" for name, number in self._ids.items()}
        self._stamp = f"{_ALIAS}{stamp}"
        self._exact = re.compile(_trie(self._aliases)) if self._aliases else None
        self._all = _Finder(self._aliases)
        self._only_special = _Finder([name for name in self._aliases if name in self._special])
        self._tokenizer = tokenizer
        self._aliased = tokenizer
        if self._aliases:
            self._aliased = with_few_words(Tokenizer.from_str(_aliased(text, self._aliases)))
        self._aliased.encode_special_tokens = tokenizer.encode_special_tokens
        # An alias with an id of its own moves the ids of the added tokens behind it.
        self._translated = {
            moved: number
            for number, token in added
            if (moved := self._aliased.token_to_id(self._aliases.get(token.content, token.content))) is not None
            and moved != number
        }
        # Ids that only a control token may have; an alias with an id of its own leaves its name in the vocabulary.
        self._forbidden = {self._ids[name] for name in self._aliases if self._is_in(name)}

    @property
    def names(self) -> frozenset[str]:
        """The texts of all control tokens."""
        return frozenset(self._ids)

    def _is_in(self, name: str) -> bool:
        return self._aliased.token_to_id(name) is not None

    def guard(self, values: Any, messages: Sequence[Json], field: str) -> tuple[Guarded, list[Json]]:
        """Values and messages with markers, where they need any. In an assistant's content only special tokens get
        markers, because the model itself has written the others there. A role that all templates know is no text of a
        client."""
        text = "\n".join(_strings([values, messages], field))
        if self._stamp in text:
            raise InvalidRequest(field, f"{field} must not contain names that the gateway gives to control tokens")
        marker, cut = self._markers(text, field)
        count = 0

        def mark(string: str, finder: _Finder) -> str:
            nonlocal count
            found = finder.mark(string, marker)
            count += found is not string
            return found

        def walk(value: Any, finder: _Finder) -> Any:
            if isinstance(value, str):
                return mark(value, finder)
            if isinstance(value, dict):
                return {walk(key, finder): walk(item, finder) for key, item in value.items()}
            return [walk(item, finder) for item in value] if isinstance(value, list | tuple) else value

        def message_of(message: Json) -> Json:
            own = message.get("role") == "assistant"
            return {
                walk(key, self._all): item
                if key == "role" and item in ROLES
                else walk(item, self._only_special if own and key == "content" else self._all)
                for key, item in message.items()
            }

        marked = [message_of(message) for message in messages]
        return Guarded(walk(values, self._all), marker, cut, count > 0), marked

    def encode(self, text: str, guarded: Guarded, field: str) -> tuple[int, ...]:
        """Ids of a rendered text."""
        text = _without_halves(text)
        if not guarded.marked or self._exact is None:
            return tuple(encode(self._tokenizer, text, special=False))
        text = text.replace(escaped(guarded.marker), "")  # a template may write JSON with escapes only
        text = self._exact.sub(lambda found: self._aliases[found[0]], text)
        ids = self._ids_of([text.replace(guarded.marker, "")])
        if not self._forbidden.isdisjoint(ids):
            ids = self._ids_of(text.split(guarded.marker))
        if not self._forbidden.isdisjoint(ids):
            raise InvalidRequest(field, f"{field} contain text that the model's tokenizer reads as a control token")
        return tuple(self._translated.get(number, number) for number in ids)

    def plain(self, text: str, guarded: Guarded) -> str:
        """A rendered text without markers."""
        return text.replace(guarded.marker, "") if guarded.marked else text

    def _ids_of(self, parts: Iterable[str]) -> list[int]:
        return [number for part in parts if part for number in encode(self._aliased, part, special=False)]

    def _markers(self, text: str, field: str) -> tuple[str, str]:
        """The first two markers that no text contains, written out or escaped."""
        free: list[str] = []
        for marker in _MARKERS:
            if marker not in self._templates and marker not in text and escaped(marker) not in text:
                free.append(marker)
            if len(free) == 2:
                return free[0], free[1]
        raise InvalidRequest(field, f"{field} contain all the characters that Unicode reserves for programs")


class _Finder:
    """Finds control tokens in a client's text, however upper and lower case are written."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        self._inside = re.compile(f"(?={_trie(names)})", re.IGNORECASE) if names else None
        ends = {letter for name in names for end in (name[0], name[-1]) for letter in (end.lower(), end.upper())}
        # A text without one of these needs no marker.
        self._ends = re.compile(f"[{re.escape(''.join(sorted(ends)))}]") if ends else None
        # Parts of names that begin or end with a letter are ordinary words, which templates compare.
        folded = [name.lower() for name in names]
        self._heads = {name[:size] for name in folded if not name[0].isalnum() for size in range(1, len(name))}
        self._tails = {name[-size:] for name in folded if not name[-1].isalnum() for size in range(1, len(name))}
        self._longest = max(map(len, names), default=0)

    def mark(self, text: str, marker: str) -> str:
        """The text itself if it needs no marker."""
        if self._inside is None or self._ends is None or self._ends.search(text) is None:
            return text
        marked = text
        if places := self._places(self._inside, text):
            marked = marker.join(text[a:b] for a, b in pairwise((0, *places, len(text))))
        sizes = range(1, min(self._longest, len(text) + 1))
        end, start = text[-self._longest :].lower(), text[: self._longest].lower()
        if any(end[-size:] in self._heads for size in sizes):
            marked += marker
        if any(start[:size] in self._tails for size in sizes):
            marked = marker + marked
        return marked

    def _places(self, inside: re.Pattern[str], text: str) -> list[int]:
        """Places behind the first letter of each control token. The text is searched in slices, because nothing else in
        the process runs during a search."""
        return [
            found.start() + 1
            for start in range(0, len(text), SLICE)
            for found in inside.finditer(text, start, start + SLICE + self._longest)
            if found.start() < start + SLICE
        ]


def _trie(names: Iterable[str]) -> str:
    """A pattern for the longest of the names, whose cost does not grow with their number."""
    root: dict[str, Any] = {}
    for name in names:
        node = root
        for letter in name:
            node = node.setdefault(letter, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        branches = [re.escape(letter) + pattern(below) for letter, below in node.items() if letter]
        if not branches:
            return ""
        body = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
        return f"{body}?" if "" in node else body

    return pattern(root)


def _strings(value: Any, field: str) -> Iterable[str]:
    """All texts in a value, keys included."""
    values = [(value, 0)]
    while values:
        item, depth = values.pop()
        if isinstance(item, str):
            yield item
        elif depth > MAX_DEPTH:
            raise InvalidRequest(field, f"{field} or their settings are nested deeper than {MAX_DEPTH} levels")
        elif isinstance(item, dict):
            values += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list | tuple):
            values += [(part, depth + 1) for part in item]


def _without_halves(text: str) -> str:
    """Halves of characters, which JSON can spell and UTF-8 cannot, become replacement characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def escaped(marker: str) -> str:
    return json.dumps(marker)[1:-1]


def _aliased(text: str, aliases: dict[str, str]) -> str:
    """A tokenizer's description with other names for its control tokens, so that text cannot spell them."""
    content = json.loads(text)
    for token in content["added_tokens"]:
        if token["content"] in aliases:
            token |= {"content": aliases[token["content"]], "normalized": False, "single_word": False}
    model = content["model"]
    vocabulary, merges = model.get("vocab"), model.get("merges") or ()
    made = {"".join(merge) if isinstance(merge, list) else merge.replace(" ", "", 1) for merge in merges}
    renamed = {name: alias for name, alias in aliases.items() if name not in made}
    if isinstance(vocabulary, dict):
        model["vocab"] = {renamed.get(name, name): number for name, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[renamed.get(entry[0], entry[0]), *entry[1:]] for entry in vocabulary]
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    return json.dumps(content, ensure_ascii=False)
