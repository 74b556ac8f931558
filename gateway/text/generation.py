"""generation_config.json: how the model's makers sample it, which stands for what a request leaves out.

A field that changes the answer is applied or refused by name; one that only changes how transformers computes it, such
as a cache, or how long answers may be, which a request's max_tokens and the context decide here, changes nothing."""

from collections.abc import Mapping
from typing import Any

RANGES = {
    "temperature": (0.0, 100.0),
    "top_k": (-1, 2**31 - 1),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 1e6),
    "no_repeat_ngram_size": (0, 2**31 - 1),
    "min_new_tokens": (0, 2**31 - 1),
}
_WHOLE = ("top_k", "no_repeat_ngram_size", "min_new_tokens")
# Fields that change answers and are not supported, with the values besides null under which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ({}, []),
    "stop_strings": ([],),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}


def read_defaults(generation: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Values for requests that leave a field out. ValueError: what is wrong, beginning with the field's name."""
    for name, neutral in _NEUTRAL.items():
        value = generation.get(name)
        if value is not None and value not in neutral:
            raise ValueError(
                f"{name} is {value!r}, which is not supported; remove it from the file to serve without it"
            )
    found: dict[str, Any] = {name: generation[name] for name in RANGES if generation.get(name) is not None}
    for name, value in found.items():
        low, high = RANGES[name]
        kind = int if name in _WHOLE else int | float
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not (isinstance(value, kind) or whole) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}; it must be from {low} to {high}")
        found[name] = int(value) if name in _WHOLE else value
    if "top_k" in found:
        found["top_k"] = max(0, found["top_k"])  # -1 is off, as 0 is
    if banned := generation.get("suppress_tokens"):
        if not _are_ids(banned, vocabulary):
            raise ValueError(f"suppress_tokens is {banned!r}; it must be a list of token ids below {vocabulary}")
        found["suppress_tokens"] = tuple(banned)
    if generation.get("do_sample") is False:
        found["temperature"] = 0.0  # greedy
    return found


def _are_ids(value: Any, vocabulary: int) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < vocabulary for one in value)
