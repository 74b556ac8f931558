"""A draft model's step in one call: the model reads the text that it has not seen, then proposes tokens in rounds.

Each round samples one token per sequence and feeds it back. A return to Python between two rounds would cost as much as
a pass of so small a model. The call runs the kernels of `layer`, `products` and `sampling` in the same order and gives
the same bits. The caller keeps the arrays alive whose addresses it passes."""

from ctypes import POINTER, Structure, byref, c_int64, c_long, c_void_p
from dataclasses import dataclass

import numpy as np

from baton_kernels.arrays import F32, I32, U64, Array, pointer, rank
from baton_kernels.layer import Layer, LayerStep
from baton_kernels.library import KernelError, check, load


class Model(Structure):
    """The model of a pass: its layers, their place in a page, the packed embedding and the packed head."""

    _fields_ = [
        ("layers", POINTER(Layer)),
        ("count", c_long),
        ("first_byte", c_int64),
        ("layer_bytes", c_int64),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("norm_bias", c_void_p),
        ("head", c_void_p),
        ("vocab", c_long),
        ("logits", c_void_p),
    ]


@dataclass(frozen=True, slots=True)
class SamplingArrays:
    """The sampling parameters of each sequence, as `baton_kernels.sample` takes them, and the stop ids that are banned
    before position `min_tokens`."""

    temperature: Array  # float32 [sequences]
    top_k: Array  # int32
    top_p: Array  # float32
    min_p: Array  # float32
    seed: Array  # uint64
    choice: Array  # int32
    position: Array  # int32, position of the first token that is sampled
    min_tokens: Array  # int32
    stops: Array  # int32, stop ids of all sequences one after the other
    stop_starts: Array  # int32 [sequences + 1], index in `stops` where each sequence's ids begin


class _Sampling(Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            "temperature", "top_p", "min_p", "top_k", "choice", "position", "min_tokens", "stops", "stop_starts", "seed"
        )
    ]  # fmt: skip


def propose(
    step: LayerStep,
    model: Model,
    sampling: SamplingArrays,
    *,
    text: Array,
    starts: Array,
    counts: Array,
    tables: Array,
    wanted: Array,
) -> Array:
    """Reads counts[i] tokens of `text` from slot starts[i] on for each sequence i, then samples wanted[i] tokens that
    follow them. Returns int32 [largest wanted, sequences]; entries of column i from row wanted[i] on are undefined.

    The arrays are int32 and `wanted` descends. `sampling` covers only the sequences that want a token; they come first.
    `step` holds scratch memory for all rows of the text. The call refuses slots for which a table has no page."""
    sequences, max_pages = rank("tables", tables, 2)
    one, sampled = (sequences,), (int((wanted > 0).sum()),)
    if not sequences or (counts <= 0).any() or counts.sum() != text.size or starts.min() < 0:
        raise KernelError(f"counts: {counts} from slots {starts} on do not fit a text of {text.size} tokens")
    if (np.diff(wanted) > 0).any() or wanted[-1] < 0:
        raise KernelError(f"wanted: {wanted} does not descend to 0")
    stops, stop_starts = sampling.stops, sampling.stop_starts
    if stop_starts[0] != 0 or (np.diff(stop_starts) < 0).any() or stop_starts[-1] > stops.size:
        raise KernelError("stop_starts: not ascending within stops")
    rounds = int(wanted[0])
    out, logprobs = np.empty((rounds, sequences), I32), np.empty(sequences, F32)
    parameters = _Sampling(
        temperature=pointer("temperature", sampling.temperature, F32, sampled),
        top_p=pointer("top_p", sampling.top_p, F32, sampled),
        min_p=pointer("min_p", sampling.min_p, F32, sampled),
        top_k=pointer("top_k", sampling.top_k, I32, sampled),
        choice=pointer("choice", sampling.choice, I32, sampled),
        position=pointer("position", sampling.position, I32, sampled),
        min_tokens=pointer("min_tokens", sampling.min_tokens, I32, sampled),
        stops=pointer("stops", stops, I32, (stops.size,)),
        stop_starts=pointer("stop_starts", stop_starts, I32, (sampled[0] + 1,)),
        seed=pointer("seed", sampling.seed, U64, sampled),
    )
    step.tables, step.sequences, step.max_pages = pointer("tables", tables, I32, tables.shape), sequences, max_pages
    check(
        load().propose(
            byref(step),
            byref(model),
            byref(parameters),
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
