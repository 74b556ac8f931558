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
from engine.model.mixture import mixture_of, routed
from engine.model.weights import Bytes, LayerWeights, Weights
from engine.selftest.inputs import (
    FEW_ROWS,
    MANY_ROWS,
    PANEL,
    Array,
    columns,
    gate_columns,
    kinds_of_layers,
    matrices,
    row_counts,
    spread,
)
from engine.selftest.lengths import lengths
from engine.selftest.pages import attention, large_steps, moved_pages
from engine.selftest.sampling import sampling
from engine.selftest.steps import proposals, steps

Part = Callable[[Weights, int], Iterator[Array]]
_MOST_HEAD_BYTES = 1 << 30  # a head of more bytes is multiplied in slices only


def self_test(weights: Weights, page_tokens: int) -> str:
    """Fingerprint of the model's numerics on this machine; KernelError when a kernel is wrong. It switches bodies, so
    no other thread may compute meanwhile."""
    before, forced = machine.chosen(), machine.forced()
    compared: dict[str, Part] = {"products": products, "attention": attention, "sampling": sampling}
    # Too long for the plain body. Each of them compares itself with what is compared above.
    alone: dict[str, Part] = {
        "many rows": many_rows,
        "large steps": large_steps,
        "lengths": lengths,
        "steps": steps,
        "head": whole_head,
    }
    mine = {name: _hash(part(weights, page_tokens)) for name, part in (compared | alone).items()}
    moved_pages(weights, page_tokens)
    _compare(weights, page_tokens, compared, mine, before, forced)
    paths = {weights.path} | ({"integers"} if weights.products != weights.path else set())
    paths |= set() if weights.kv == kernels.OWN else {"codes"}
    paths |= {"families"} if weights.config.beyond_llama() else set()
    paths |= {"experts"} if weights.config.experts else set()
    paths |= {"windows"} if weights.config.windows else set()
    paths |= {"sinks"} if weights.config.row.sinks else set()
    digest = blake3(" ".join(kernels.self_test(path) for path in sorted(paths)).encode())
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
    """Each matrix of the first layer of each kind and the head: real depth, some columns, few rows. Also the norms,
    embedding rows from all over the vocabulary, and the rotary tables that this machine has computed."""
    config = weights.config
    counts = row_counts(config)
    for part, width, k in _slices(weights):
        x, bias, residual = spread(1, counts[-1], k), spread(2, width), spread(3, counts[-1], width)
        for rows in counts:
            out = np.empty((rows, width), np.float32)
            kernels.product(x[:rows], part, out, bias, residual[:rows])
            yield out
    x = spread(4, counts[-1], config.hidden)
    for layer in kinds_of_layers(weights):
        yield from _between(weights, layer, x, counts)
        yield from _routes(weights, layer, x)
    yield from _norms(weights, x)
    tokens = np.linspace(0, config.vocab - 1, 2 * PANEL).astype(np.int32)
    rows_of_tokens = np.empty((len(tokens), config.hidden), np.float32)
    kernels.embed(weights.embed, tokens, rows_of_tokens, factor=config.embedding_scale)
    yield rows_of_tokens
    positions = np.linspace(0, len(weights.cos) - 1, 2 * PANEL).astype(np.int64)
    yield from (weights.cos[positions], weights.sin[positions])
    local = [weights.layers[index] for index in config.local_layers[:1]]
    yield from (table[positions] for one in local for table in (one.cos, one.sin) if table is not None)


def _between(weights: Weights, layer: LayerWeights, x: Array, counts: tuple[int, ...]) -> Iterator[Array]:
    """Some columns of what stands between the two products of the layer's MLP, and of its first expert."""
    config, of_experts = weights.config, layer.experts_gate_up
    for packed in (layer.gate_up, None if of_experts is None else of_experts[0]):
        if packed is None:
            continue
        if config.row.tensors.gated:
            part, width = gate_columns(packed)
        else:
            part = next(part for _, part in columns(packed))
            width, _ = kernels.shape_of(part)
        biased = config.mlp_bias if packed is layer.gate_up else layer.experts_gate_up_bias is not None
        bias = spread(9, kernels.shape_of(part)[0]) if biased else None
        between = kernels.gated if config.row.tensors.gated else kernels.activated
        for rows in counts:
            out = np.empty((rows, width), np.float32)
            between(x[:rows], part, out, bias, activation=config.activation)
            yield out


def _routes(weights: Weights, layer: LayerWeights, x: Array) -> Iterator[Array]:
    """The layer's router: scores of these rows, the chosen experts, and sums of as many rows. `steps` has the rest."""
    mixture = mixture_of(layer, weights.config)
    if mixture is None:
        return
    scores = np.empty((len(x), mixture.scored), np.float32)
    kernels.product(x, mixture.router, scores, mixture.router_bias)
    ids, of_rows = routed(mixture, scores)
    total, places = np.empty_like(x), np.resize(np.arange(len(x), dtype=np.int32), of_rows.shape)
    kernels.experts.combine(x, places, of_rows, total, x)
    yield from (scores, ids, of_rows, total)


def _norms(weights: Weights, x: Array) -> Iterator[Array]:
    """Work on whole rows of the first layer and the head: norms, sums with the residual, capped logits."""
    config, layer = weights.config, weights.layers[0]
    weight = weights.norm if layer.ffn_norm is None else layer.ffn_norm
    normed = np.empty_like(x)
    if weights.norm_bias is not None:
        bias = weights.norm_bias if layer.ffn_norm_bias is None else layer.ffn_norm_bias
        kernels.layernorm(x, weight, bias, config.eps, normed)
    else:
        kernels.rmsnorm(x, weight, config.eps, normed)
    yield normed
    if config.latent is not None and layer.latent_norm is not None:
        shared = spread(12, 2, config.qkv_width)
        kernels.share_latent(shared, layer.latent_norm, config.heads, config.head_dim, config.latent.eps)
        yield shared
    if config.qkv_limit:
        clipped = spread(11, 2, config.qkv_width) * np.float32(2 * config.qkv_limit)
        kernels.clip(clipped, config.qkv_limit)
        yield clipped
    for norm in (layer.attended_norm, layer.fed_norm):
        if norm is not None or config.residual_scale != 1.0:
            total = x.copy()
            kernels.add(total, normed, norm=norm, eps=config.eps, factor=config.residual_scale)
            yield total
    if config.logits_cap:
        logits = spread(10, 2, config.vocab) * np.float32(config.logits_cap)
        kernels.cap(logits, config.logits_cap)
        yield logits


def many_rows(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """The same matrices with many rows, which are cut otherwise: each row must have the bits that it has among few."""
    for part, width, k in _slices(weights):
        x = spread(6, MANY_ROWS[-1], k)
        out, few = (np.empty((len(x), width), np.float32) for _ in range(2))
        for first in range(0, len(x), FEW_ROWS):
            some = slice(first, first + FEW_ROWS)
            kernels.product(x[some], part, few[some])
        for rows in MANY_ROWS:
            kernels.product(x[:rows], part, out[:rows])
            if out[:rows].tobytes() != few[:rows].tobytes():
                raise KernelError(f"self-test failed: a product of {width} x {k} has other bits in {rows} rows")
        yield out


def _slices(weights: Weights) -> Iterator[tuple[Bytes, int, int]]:
    """Some columns of each matrix of the first layer of each kind and of the head: packed weight, columns, depth."""
    of_layers = [matrix for layer in kinds_of_layers(weights) for matrix in matrices(layer)]
    for packed in (*of_layers, weights.head):
        for _, part in columns(packed):
            yield part, *kernels.shape_of(part)


def whole_head(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """The logits of one row over the whole vocabulary; those of some columns must be what they are alone."""
    config = weights.config
    if weights.head.nbytes > _MOST_HEAD_BYTES:
        return
    x, out = spread(5, 1, config.hidden), np.empty((1, config.vocab), np.float32)
    kernels.product(x, weights.head, out)
    for first, part in columns(weights.head):
        width, _ = kernels.shape_of(part)
        few = np.empty((1, width), np.float32)
        kernels.product(x, part, few)
        if few.tobytes() != out[:, first : first + width].tobytes():
            raise KernelError("self-test failed: logits over the whole vocabulary have other bits than over a part")
    yield out


def _hash(results: Iterable[Array]) -> str:
    digest = blake3()
    for result in results:
        digest.update(np.ascontiguousarray(result).view(np.uint8).data)
    return digest.hexdigest(16)
