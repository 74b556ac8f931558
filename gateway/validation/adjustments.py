"""The fields that adjust logits, checked once for all prompts and choices of a request: penalties, biases, bans.

Step 1 of a request's life, between a front door's parser and gateway/validation/validate.py. Words become token ids
here, so workers see ids only. Large fields are checked in a thread, so that no request stops the event loop."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gateway.prompts.assets import Assets
from gateway.text.tokenizer import ModelTokenizer
from gateway.validation.fields import Fields
from gateway.validation.ranges import ADJUSTMENTS, BIASES
from mesh.messages.jobs import Adjustments, TokenBias, TokenSequence

MAX_BIASES = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256
MAX_BAD_TOKENS = 4096  # tokens of all bad words together
LARGE = 512  # ids, biases or characters that take a good part of a millisecond


@dataclass(frozen=True, slots=True)
class AdjustmentFields:
    """The client's wishes about logits. None or empty: the client left the field out."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None  # by token id
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] | None = None


async def find_adjustments(wanted: AdjustmentFields, fields: Fields, assets: Assets) -> Adjustments | None:
    """The adjustments of a request; None: the model's own logits stay."""
    biases = len(wanted.logit_bias or ())
    if biases > MAX_BIASES:
        raise fields.invalid("logit_bias", f"has {biases} tokens; at most {MAX_BIASES} are allowed")
    if len(wanted.bad_words) > MAX_BAD_WORDS:
        raise fields.invalid("bad_words", f"has {len(wanted.bad_words)} words; at most {MAX_BAD_WORDS} are allowed")
    if any(not word.strip() or len(word) > MAX_BAD_WORD_CHARACTERS for word in wanted.bad_words):
        limit = f"{MAX_BAD_WORD_CHARACTERS} characters"
        raise fields.invalid("bad_words", f"holds a word that is empty or longer than {limit}")
    ids = wanted.allowed_token_ids or ()
    if len(ids) > assets.vocabulary:
        raise fields.invalid("allowed_token_ids", f"has {len(ids)} ids; the vocabulary has {assets.vocabulary}")
    if len(ids) + biases + sum(map(len, wanted.bad_words)) < LARGE:
        return _adjustments(wanted, fields, assets)
    return await asyncio.to_thread(_adjustments, wanted, fields, assets)


def leaves_none(found: Adjustments, early_stops: Collection[int]) -> bool:
    """Whether the request could never take its first token. `early_stops` are stop ids that cannot come at first."""
    if not found.allowed:
        return False
    excluded = {word.tokens[0] for word in found.bad_words if len(word.tokens) == 1}.union(found.suppressed_ids)
    some = [token for token in excluded.union(early_stops) if token < 8 * len(found.allowed)]
    count = sum(found.allowed[token >> 3] >> (token & 7) & 1 for token in some)
    return int.from_bytes(found.allowed, "little").bit_count() == count


def adjusting_field(found: Adjustments) -> str:
    """The first field that makes these adjustments necessary."""
    reasons = {
        "logit_bias": found.biases,
        "repetition_penalty": found.repetition_penalty != 1.0,
        "frequency_penalty": found.frequency_penalty,
        "presence_penalty": found.presence_penalty,
        "allowed_token_ids": found.allowed,
        "bad_words": found.bad_words,
        "thinking_token_budget": found.reasoning is not None,
    }
    return next((name for name, reason in reasons.items() if reason), "model")


def _adjustments(wanted: AdjustmentFields, fields: Fields, assets: Assets) -> Adjustments | None:
    fields.within(ADJUSTMENTS, wanted)
    defaults, repetition = assets.defaults, wanted.repetition_penalty
    found = Adjustments(
        biases=_biases(wanted.logit_bias or {}, fields, assets.vocabulary),
        repetition_penalty=defaults.repetition_penalty if repetition is None else repetition,
        frequency_penalty=wanted.frequency_penalty or 0.0,
        presence_penalty=wanted.presence_penalty or 0.0,
        allowed=_allowed(wanted.allowed_token_ids, fields, assets.vocabulary),
        suppressed_ids=tuple(token for token in defaults.suppress_tokens if 0 <= token < assets.vocabulary),
        bad_words=_bad_words(wanted.bad_words, fields, assets.tokenizer),
        no_repeat_ngram=defaults.no_repeat_ngram_size,
    )
    return None if found == Adjustments() else found


def _biases(given: Mapping[int, float] | Mapping[str, float], fields: Fields, vocabulary: int) -> tuple[TokenBias, ...]:
    biases: dict[int, float] = {}
    for key, value in given.items():
        text = str(key)
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise fields.invalid("logit_bias", f"has the key {text[:40]!r}; its keys are token ids")
        fields.token_ids("logit_bias", (int(text),), vocabulary)
        if not BIASES.holds(value):
            raise fields.invalid("logit_bias", f"gives token {text} {value}; biases are {BIASES.words}")
        if value:
            biases[int(text)] = float(value)
    return tuple(TokenBias(token, bias) for token, bias in biases.items())


def _allowed(given: Sequence[int] | None, fields: Fields, vocabulary: int) -> bytes:
    """One bit for each token id, because a list of ids travels with every choice."""
    if given is None:
        return b""
    if not given:
        raise fields.invalid("allowed_token_ids", "is empty: leave it out to allow every token")
    fields.token_ids("allowed_token_ids", tuple(given), vocabulary)
    bits = bytearray(-(-vocabulary // 8))
    for token in given:
        bits[token >> 3] |= 1 << (token & 7)
    return b"" if int.from_bytes(bits, "little").bit_count() == vocabulary else bytes(bits)


def _bad_words(given: Sequence[str], fields: Fields, tokenizer: ModelTokenizer) -> tuple[TokenSequence, ...]:
    """The token ids of each word at the start of a text and behind a space, because most tokenizers tell them apart."""
    forms = [form for word in given for form in (word.lstrip(), f" {word.lstrip()}")]
    found = [tokens for tokens in dict.fromkeys(tokenizer.encode(form, special=False) for form in forms) if tokens]
    if (count := sum(map(len, found))) > MAX_BAD_TOKENS:
        raise fields.invalid("bad_words", f"has {count} tokens; at most {MAX_BAD_TOKENS} are allowed")
    return tuple(map(TokenSequence, found))
