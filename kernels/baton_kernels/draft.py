"""A draft model's step in one call: it reads text, then its own tokens, one per sequence and round.

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
    position: Array  # int32, of the first token that is sampled
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


def go_on(
    step: Step, model: Model, wishes: Wishes, *, text: Array, starts: Array, counts: Array, tables: Array, wanted: Array
) -> Array:
    """Reads counts[i] tokens of `text` from slot starts[i] on for each sequence, then samples wanted[i] tokens behind
    them: int32 [most wanted, sequences], in a column what is beyond a sequence's own count is undefined.

    All int32 and `wanted` descends; wishes are needed of those only that want a token. `step` holds scratch memory for
    all rows of the text. Slots that a table has no page for are refused."""
    sequences, max_pages = rank("tables", tables, 2)
    one, asking = (sequences,), (int((wanted > 0).sum()),)
    if not sequences or (counts <= 0).any() or counts.sum() != text.size or starts.min() < 0:
        raise KernelError(f"counts: {counts} from slots {starts} for {text.size} tokens")
    if (np.diff(wanted) > 0).any() or wanted[-1] < 0:
        raise KernelError(f"wanted: {wanted} does not descend to 0")
    stops, stop_starts = wishes.stops, wishes.stop_starts
    if stop_starts[0] != 0 or (np.diff(stop_starts) < 0).any() or stop_starts[-1] > stops.size:
        raise KernelError("stop_starts: not ascending within stops")
    rounds = int(wanted[0])
    out, logprobs = np.empty((rounds, sequences), I32), np.empty(sequences, F32)
    asked = _Wishes(
        temperature=pointer("temperature", wishes.temperature, F32, asking),
        top_p=pointer("top_p", wishes.top_p, F32, asking),
        min_p=pointer("min_p", wishes.min_p, F32, asking),
        top_k=pointer("top_k", wishes.top_k, I32, asking),
        choice=pointer("choice", wishes.choice, I32, asking),
        position=pointer("position", wishes.position, I32, asking),
        min_tokens=pointer("min_tokens", wishes.min_tokens, I32, asking),
        stops=pointer("stops", stops, I32, (stops.size,)),
        stop_starts=pointer("stop_starts", stop_starts, I32, (asking[0] + 1,)),
        seed=pointer("seed", wishes.seed, U64, asking),
    )
    step.tables, step.sequences, step.max_pages = pointer("tables", tables, I32, tables.shape), sequences, max_pages
    check(
        load().go_on(
            byref(step),
            byref(model),
            byref(asked),
            pointer("text", text, I32, (text.size,)),
            pointer("starts", starts, I32, one),
            pointer("counts", counts, I32, one),
            pointer("wanted", wanted, I32, one),
            rounds,
            pointer("out", out, I32, out.shape),
            pointer("logprobs", logprobs, F32, one),
        )
    )
    return out
