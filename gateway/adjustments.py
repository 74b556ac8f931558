"""Validation of the fields that adjust logits: penalties, biases, and tokens that must or must not come.

Step 1 of a request's life, a part of gateway/validation.py. Words become token ids here; workers only see ids."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gateway.fields import Fields
from gateway.text.assets import Assets, Defaults
from gateway.text.tokenizer import ModelTokenizer
from mesh.messages import Adjustments, TokenBias, TokenSequence

MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256
MAX_PENALTY = 2.0  # of frequency_penalty and presence_penalty
MAX_BIAS = 100.0
REPETITION_PENALTIES = (0.01, 100.0)


@dataclass(frozen=True, slots=True)
class AdjustmentFields:
    """The client's wishes about logits. None or empty: the client left the field out."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None  # by token id
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None


NO_ADJUSTMENTS = AdjustmentFields()


def validate_adjustments(
    wanted: AdjustmentFields, fields: Fields, assets: Assets, *, early_stops: Collection[int]
) -> Adjustments | None:
    """The adjustments; None: the model's own logits stay. `early_stops` are stop ids that cannot come at first."""
    defaults: Defaults = assets.defaults
    low, high = REPETITION_PENALTIES
    repetition = fields.number(
        "repetition_penalty", wanted.repetition_penalty, defaults.repetition_penalty, low=low, high=high
    )
    frequency, presence = (
        fields.number(name, getattr(wanted, name), 0.0, low=-MAX_PENALTY, high=MAX_PENALTY)
        for name in ("frequency_penalty", "presence_penalty")
    )
    bias = _bias(wanted.logit_bias or {}, fields, assets.vocabulary)
    words = _bad_words(wanted.bad_words, fields, assets.tokenizer)
    allowed = _allowed(wanted.allowed_token_ids, fields, assets.vocabulary)
    suppressed = tuple(token for token in defaults.suppress_tokens if 0 <= token < assets.vocabulary)
    alone = {word.tokens[0] for word in words if len(word.tokens) == 1}
    if allowed and alone.union(suppressed, early_stops).issuperset(allowed):
        what = "leaves no token: bad_words, min_tokens or the model's suppress_tokens exclude all of them"
        raise fields.invalid("allowed_token_ids", what)
    found = Adjustments(
        biases=bias,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        allowed_ids=allowed,
        suppressed_ids=suppressed,
        bad_words=words,
        no_repeat_ngram=defaults.no_repeat_ngram_size,
    )
    return None if found == Adjustments() else found


def adjusting_field(found: Adjustments) -> str:
    """The first field that makes these adjustments necessary."""
    reasons = {
        "logit_bias": found.biases,
        "repetition_penalty": found.repetition_penalty != 1.0,
        "frequency_penalty": found.frequency_penalty,
        "presence_penalty": found.presence_penalty,
        "allowed_token_ids": found.allowed_ids,
        "bad_words": found.bad_words,
    }
    return next((name for name, reason in reasons.items() if reason), "model")


def _bias(given: Mapping[int, float] | Mapping[str, float], fields: Fields, vocabulary: int) -> tuple[TokenBias, ...]:
    biases: dict[int, float] = {}
    for key, value in given.items():
        text = str(key)
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise fields.invalid("logit_bias", f"has the key {text[:40]!r}; its keys are token ids")
        fields.token_ids("logit_bias", (int(text),), vocabulary)
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise fields.invalid("logit_bias", f"gives token {text} {value}; biases are from -100 to 100")
        if value:
            biases[int(text)] = float(value)
    return tuple(TokenBias(token, bias) for token, bias in biases.items())


def _allowed(given: tuple[int, ...] | None, fields: Fields, vocabulary: int) -> tuple[int, ...]:
    if given is None:
        return ()
    if not given:
        raise fields.invalid("allowed_token_ids", "is empty: leave it out to allow every token")
    fields.token_ids("allowed_token_ids", given, vocabulary)
    allowed = tuple(sorted(set(given)))
    return () if len(allowed) == vocabulary else allowed


def _bad_words(given: tuple[str, ...], fields: Fields, tokenizer: ModelTokenizer) -> tuple[TokenSequence, ...]:
    """The token ids of each word at the start of a text and behind a space, because most tokenizers tell them apart."""
    if len(given) > MAX_BAD_WORDS:
        raise fields.invalid("bad_words", f"has {len(given)} words; at most {MAX_BAD_WORDS} are allowed")
    if any(not word.strip() or len(word) > MAX_BAD_WORD_CHARACTERS for word in given):
        raise fields.invalid("bad_words", f"holds a word that is empty or longer than {MAX_BAD_WORD_CHARACTERS}")
    forms = [form for word in given for form in (word.lstrip(), f" {word.lstrip()}")]
    found = dict.fromkeys(tokenizer.encode(form, special=False) for form in forms)
    return tuple(TokenSequence(tokens) for tokens in found if tokens)
