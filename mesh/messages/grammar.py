"""The grammar that an answer must follow, as both ends of the mesh handle it: llguidance parses it.

The gateway compiles each grammar once, to refuse a wrong or a costly one before any token is spent. Workers compile it
again and compute masks by it. Both take the same limits from here, so what the gateway accepts a worker can run."""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_REPEATED = re.compile(r"\n\s*(?:1 \||<state>|<grammar>)")
CACHED = 64  # compiled grammars that are kept
MOST_WORDS = 400  # characters of llguidance's reason that an error repeats
CLIENTS = "client"  # name of a grammar that a client has written itself
NO_TEXT = "no text matches it"
MOST_ITEMS = 1000  # items in a row of the parser: 250 optional properties of an object need as many
MOST_ITEMS_OF_CLIENTS = 200  # an ambiguous grammar costs the square of it, JSON does not


def limits(grammar: str) -> LLParserLimits:
    """Bounds what a grammar may cost, when it is compiled and for each token."""
    return LLParserLimits(
        max_items_in_row=MOST_ITEMS_OF_CLIENTS if is_of_client(grammar) else MOST_ITEMS,
        step_max_items=10 * MOST_ITEMS,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def client_grammar(text: str) -> str:
    """A client's own Lark grammar; the name stands where no text of a client can stand."""
    return json.dumps({"grammars": [{"name": CLIENTS, "lark_grammar": text}]})


def is_of_client(grammar: str) -> bool:
    """Whether a client has written the grammar itself, in Lark."""
    return grammar.startswith(client_grammar("")[:-4])


class GrammarFault(Exception):
    """A grammar that cannot be compiled, or a text that does not follow it; the message is for the client."""


class Grammars:
    """Compiled grammars for one tokenizer. Any thread may use it."""

    def __init__(self, definition: Callable[[], str] | None = None, vocabulary: int | None = None) -> None:
        """`definition` reads tokenizer.json when it is first needed; without it every byte is a token. `vocabulary`:
        number of token ids, where the model has more."""
        self._definition, self._vocabulary = definition, vocabulary
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def matcher(self, grammar: str) -> LLMatcher:
        """A matcher at the beginning of a text."""
        with self._lock:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                return known.deep_copy()
        compiled = LLMatcher(self.tokenizer, grammar, limits=limits(grammar), log_level=0)
        check(compiled)
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        return compiled.deep_copy()

    def begins(self, grammar: str) -> bool:
        """Whether some token, or the end, is allowed at the beginning of a text."""
        matcher = self.matcher(grammar)
        bits = matcher.compute_bitmask()
        check(matcher)
        return any(bits) or matcher.is_accepting()

    @property
    def tokenizer(self) -> LLTokenizer:
        """Reading a large tokenizer takes seconds, in which no other Python code runs."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _open(self._definition, self._vocabulary)
            return self._tokenizer


def check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarFault(short(matcher.get_error()))


def short(text: str) -> str:
    """llguidance's reason, without the lines behind it that repeat the grammar."""
    if "NoExtensionBias" in text:  # its own word for it
        return NO_TEXT
    text = " ".join(_REPEATED.split(text)[0].replace("<non-verbose/>", "").split()).removeprefix("at 1(8): ")
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS]}…"


def _open(definition: Callable[[], str] | None, vocabulary: int | None) -> LLTokenizer:
    try:
        if definition is None:
            return LLTokenizer("byte")
        text = _plain(definition())
        try:
            return LLTokenizer(text, n_vocab=vocabulary)
        except ValueError:  # a tokenizer with more ids than the model: it never samples those
            return LLTokenizer(text)
    except (OSError, ValueError) as error:
        what = f"the worker cannot use its model's tokenizer.json with grammars: {short(str(error))}"
        raise GrammarFault(what) from error


def _plain(text: str) -> str:
    """Fine-tunes leave `truncation` and `padding` in the file; both would spoil the tokens of forced text."""
    if all(re.search(rf'"{name}":\s*null', text[:2000]) for name in ("truncation", "padding")):
        return text  # parsing all of it takes a second for a large vocabulary
    return json.dumps(json.loads(text) | {"truncation": None, "padding": None})
