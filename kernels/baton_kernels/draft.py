"""A draft model's rounds in one call: it reads its own tokens, one per sequence and round, and samples the next ones.

Between two passes of so small a model, a return to Python would cost as much as a pass. The kernels are those of
`layer`, `products` and `sampling` in the same order: equal bits. The caller keeps alive what addresses point to."""

from ctypes import POINTER, Structure, byref, c_int64, c_long, c_void_p
from dataclasses import dataclass

import numpy as np

from baton_kernels.arrays import F32, I32, U64, Array, pointer, rank
from baton_kernels.layer import Layer, Step
from baton_kernels.library import KernelError, check, load


class Model(Structure):
    """What a whole pass needs beside a `Step`: where its layers lie in a page, and its packed embedding and head."""

    _fields_ = [
        ("layers", POINTER(Layer)),
        ("count", c_long),
        ("first_byte", c_int64),
        ("layer_bytes", c_int64),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("head", c_void_p),
        ("vocab", c_long),
        ("logits", c_void_p),
    ]


@dataclass(frozen=True, slots=True)
class Wishes:
    """How each sequence is sampled, as in `sample`, and which stop ids it must not say before `min_tokens`."""

    temperature: Array  # float32 [sequences]
    top_k: Array  # int32
    top_p: Array  # float32
    min_p: Array  # float32
    seed: Array  # uint64
    choice: Array  # int32
    position: Array  # int32, of the token that the first round samples
    min_tokens: Array  # int32
    stops: Array  # int32, ids of all sequences one after the other
    stop_starts: Array  # int32 [sequences + 1], where each one's begin


class _Wishes(Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            "temperature", "top_p", "min_p", "top_k", "choice", "position", "min_tokens", "stops", "stop_starts", "seed"
        )
    ]  # fmt: skip


def go_on(step: Step, model: Model, wishes: Wishes, wanted: Array, first_slots: Array, tokens: Array) -> Array:
    """int32 [1 + the most wanted, sequences]: first `tokens`, then what each round sampled behind the row before.

    `step` holds scratch memory for as many rows as there are sequences, and their tables. Sequence i takes part in
    `wanted[i]` rounds, its first row being tokens[i] in slot first_slots[i]; `wanted` descends."""
    (count,) = one = rank("tokens", tokens, 1)
    rounds = int(wanted[0]) if count else 0
    if not count or count != step.sequences or (np.diff(wanted) > 0).any() or wanted[-1] < 0:
        raise KernelError(f"wanted: {wanted} must descend, for {step.sequences} sequences")
    if (
        wishes.stop_starts[0] != 0
        or (np.diff(wishes.stop_starts) < 0).any()
        or wishes.stop_starts[-1] > wishes.stops.size
    ):
        raise KernelError("stop_starts: not ascending within stops")
    out, logprobs = np.empty((rounds + 1, count), I32), np.empty(count, F32)
    out[0] = tokens
    asked = _Wishes(
        temperature=pointer("temperature", wishes.temperature, F32, one),
        top_p=pointer("top_p", wishes.top_p, F32, one),
        min_p=pointer("min_p", wishes.min_p, F32, one),
        top_k=pointer("top_k", wishes.top_k, I32, one),
        choice=pointer("choice", wishes.choice, I32, one),
        position=pointer("position", wishes.position, I32, one),
        min_tokens=pointer("min_tokens", wishes.min_tokens, I32, one),
        stops=pointer("stops", wishes.stops, I32, (wishes.stops.size,)),
        stop_starts=pointer("stop_starts", wishes.stop_starts, I32, (count + 1,)),
        seed=pointer("seed", wishes.seed, U64, one),
    )
    check(
        load().go_on(
            byref(step),
            byref(model),
            byref(asked),
            pointer("wanted", wanted, I32, one),
            pointer("first_slots", first_slots, I32, one),
            rounds,
            pointer("out", out, I32, out.shape),
            pointer("logprobs", logprobs, F32, one),
        )
    )
    return out
