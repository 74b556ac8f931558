"""The self-test of an opened model: every kernel that its worker calls, on the model's own shapes and weights, hashed.

A worker runs it when it starts. The hash is its fingerprint: two workers share requests only when their fingerprints
are equal, so a machine whose kernels compute other bits for this model shares none. The bodies in use must also give
the bits of the plain body, or the worker does not start. Work that would take too long on large models is done for some
columns, over the real depth; what is left out depends on the model alone, so that equal models have equal fingerprints
whatever the page size, the number of threads, the body and the settings are."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from blake3 import blake3

import baton_kernels as kernels
from baton_kernels import KernelError, machine
from engine.model.weights import Weights
from engine.selftest_inputs import Array, columns, gate_columns, row_counts, spread
from engine.selftest_pages import attention, moved_pages
from engine.selftest_steps import proposals, sampling, short_steps, steps

PANEL = 32  # columns that are packed together
Part = Callable[[Weights, int], Iterator[Array]]
_MOST_HEAD_BYTES = 1 << 30  # a head of more bytes is multiplied in slices only


def self_test(weights: Weights, page_tokens: int) -> str:
    """Fingerprint of the model's numerics on this machine; KernelError when a kernel is wrong. It switches bodies, so
    no other thread may compute meanwhile."""
    before, forced = machine.chosen(), machine.forced()
    digest = blake3(kernels.self_test(weights.path).encode())
    parts: dict[str, Part] = {"products": products, "attention": attention, "sampling": sampling}
    if short_steps(weights):
        parts["steps"] = steps
    mine = {name: _hash(part(weights, page_tokens)) for name, part in parts.items()}
    moved_pages(weights, page_tokens)
    _compare(weights, page_tokens, parts, mine, before, forced)
    if not short_steps(weights):
        mine["steps"] = _hash(steps(weights, page_tokens))
    mine["head"] = _hash(whole_head(weights))
    for name in sorted(mine):
        digest.update(f" {name} {mine[name]}".encode())
    return digest.hexdigest(16)


def check_draft_kernels(draft: Weights, page_tokens: int) -> None:
    """KernelError when a kernel is wrong on the draft's shapes. A draft changes no token, so it has no fingerprint."""
    before, forced = machine.chosen(), machine.forced()
    parts: dict[str, Part] = {"products": products, "attention": attention, "proposals": proposals}
    mine = {name: _hash(part(draft, page_tokens)) for name, part in parts.items()}
    _compare(draft, page_tokens, parts, mine, before, forced)


def _compare(
    weights: Weights,
    page_tokens: int,
    parts: dict[str, Part],
    mine: dict[str, str],
    before: dict[str, str],
    forced: str | None,
) -> None:
    """Computes the parts on the plain body; KernelError where its bits differ."""
    machine.choose("plain")
    try:
        plain = {name: _hash(part(weights, page_tokens)) for name, part in parts.items()}
    finally:
        machine.choose(forced)
    wrong = [name for name in parts if plain[name] != mine[name]]
    if wrong:
        shape = f"path {weights.path!r}, model {weights.model_hash[:16]}"
        raise KernelError(f"self-test of {shape} failed: {', '.join(wrong)} of {before} have other bits than plain's")


def products(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """Each matrix of the first layer and the head: real depth, some columns, every way in which rows are cut. Also the
    norms, embedding rows from all over the vocabulary, and the rotary tables that this machine has computed."""
    config, layer, path = weights.config, weights.layers[0], weights.path
    counts = row_counts(config)
    matrices = (
        (layer.qkv, config.qkv_width, config.hidden),
        (layer.o, config.hidden, config.q_width),
        (layer.gate_up, 2 * config.ffn, config.hidden),
        (layer.down, config.hidden, config.ffn),
        (weights.head, config.vocab, config.hidden),
    )
    for packed, n, k in matrices:
        x = spread(1, counts[-1], k)
        for part, width in columns(path, packed, n, k):
            for rows in counts:
                out = np.empty((rows, width), np.float32)
                kernels.product(path, x[:rows], part, width, out, spread(2, width), spread(3, rows, width))
                yield out
    x = spread(4, counts[-1], config.hidden)
    part, width = gate_columns(path, layer.gate_up, config.ffn, config.hidden)
    for rows in counts:
        out = np.empty((rows, width), np.float32)
        kernels.gated(path, x[:rows], part, width, out)
        yield out
    normed = np.empty_like(x)
    kernels.rmsnorm(x, layer.ffn_norm, config.eps, normed)
    tokens = np.linspace(0, config.vocab - 1, 2 * PANEL).astype(np.int32)
    rows_of_tokens = np.empty((len(tokens), config.hidden), np.float32)
    kernels.embed(path, weights.embed, tokens, config.vocab, config.hidden, rows_of_tokens)
    yield from (normed, rows_of_tokens)
    positions = np.linspace(0, len(weights.cos) - 1, 2 * PANEL).astype(np.int64)
    yield from (weights.cos[positions], weights.sin[positions])


def whole_head(weights: Weights) -> Iterator[Array]:
    """The logits of one row over the whole vocabulary."""
    config = weights.config
    if kernels.pack_bytes(weights.path, config.vocab, config.hidden) <= _MOST_HEAD_BYTES:
        out = np.empty((1, config.vocab), np.float32)
        kernels.product(weights.path, spread(5, 1, config.hidden), weights.head, config.vocab, out)
        yield out


def _hash(results: Iterable[Array]) -> str:
    digest = blake3()
    for result in results:
        digest.update(np.ascontiguousarray(result).view(np.uint8).data)
    return digest.hexdigest(16)
