"""The fixed self-test: every kernel on small fixed inputs, hashed. Equal fingerprints mean equal numerics.

A worker runs it when it starts. The bits of the bodies in use must equal those of the plain body, so that a wrong
kernel never serves. Nothing here depends on a model, so the hash of each path is known: a library that is wrong in all
bodies, as an altered source or a bad compiler makes it, is refused even where all workers of a mesh load it."""

import hashlib

import numpy as np

from baton_kernels import machine, pages, products, sampling
from baton_kernels import paged as kv
from baton_kernels.arrays import Array
from baton_kernels.library import KERNEL_VERSION, KernelError

_HEADS, _KV_HEADS, _DIM, _PAGE, _POSITIONS = 6, 2, 32, 32, 96
_STORED, _CHUNK = 41, 700  # pages that long texts repeat, rows of a long chunk
_LENGTHS = (32, 33, 511, 512, 513, 544, 601, 777, 1024, 1025, 1999, 4193)
_VOCABULARIES = (32, 258, 300, 333, 1003, 4099)
# Of each path on every machine. They change only with KERNEL_VERSION, or with this test.
KNOWN = {
    "fp32": "b988a1ce8d69ecf4a007660c4426146e",
    "pairs": "1020a12f2db5481d8fe5e5be5dd3f64f",
    "amx": "5c3e4b71ad02820da471d58634f6bf31",
}


def self_test(path: str) -> str:
    """Fingerprint of this machine's numerics on one product path; KernelError when chosen and plain bodies differ.
    It switches bodies, so no other thread may compute meanwhile."""
    before, forced = machine.chosen(), machine.forced()
    fingerprint = _run(path)
    machine.choose("plain")
    try:
        plain = _run(path)
    finally:
        machine.choose(forced)
    if plain != fingerprint:
        raise KernelError(f"self-test of path {path!r} failed: {before} gives {fingerprint}, plain gives {plain}")
    if fingerprint != KNOWN[path]:
        raise KernelError(
            f"self-test of path {path!r} failed: {before} gives {fingerprint}, a right library gives {KNOWN[path]}; "
            "build it from unchanged sources: `python -m baton_kernels.build`"
        )
    return fingerprint


def _run(path: str) -> str:
    digest = hashlib.blake2b(f"{path} {KERNEL_VERSION}".encode(), digest_size=16)
    for result in (*_products(path), *_attention(path), *_lengths(path), *_sampling(), _checksum()):
        digest.update(np.ascontiguousarray(result).view(np.uint8).tobytes())
    return digest.hexdigest()


def numbers(seed: int, *shape: int) -> Array:
    """Fixed pseudo-random fp32 numbers around zero, by integer arithmetic only, spread over a few powers of two."""
    z = (np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(32)
    mantissa = (z >> np.uint64(8) & np.uint64(0xFFFF)).astype(np.float32) / np.float32(65536) - np.float32(0.5)
    power = (z >> np.uint64(30) & np.uint64(3)).astype(np.int32)
    result: Array = np.ldexp(mantissa, power - 1).astype(np.float32).reshape(shape)
    return result


def packed(path: str, weight: Array) -> Array:
    out = np.zeros(products.pack_bytes(path, *weight.shape), np.uint8)
    products.pack(path, weight, out)
    return out


def _products(path: str) -> list[Array]:
    results = []
    for rows, n, k in ((1, 48, 67), (5, 96, 64), (40, 70, 130)):
        x, out, both = numbers(1, rows, k), np.empty((rows, n), np.float32), np.empty((rows, n), np.float32)
        products.product(path, x, packed(path, numbers(2, n, k)), n, out, numbers(3, n), numbers(4, rows, n))
        products.gated(path, x, packed(path, numbers(5, 2 * n, k)), n, both)
        results += [out, both]
    return results


def _attention(path: str) -> list[Array]:
    layer = kv.layer_bytes(path, _PAGE, _KV_HEADS, _DIM)
    pool = np.zeros(layer * 4, np.uint8)
    tables = np.array([[2, 0, 3], [1, 0, 0]], np.int32)
    starts, counts, first = np.array([0, 0], np.int32), np.array([75, 5], np.int32), np.array([0, 75], np.int32)
    slots = np.concatenate([np.arange(75), np.arange(5)]).astype(np.int32)
    page_of = tables[np.repeat([0, 1], counts), slots // _PAGE].astype(np.int64) * layer
    angles = numbers(6, _POSITIONS, _DIM // 2)
    cos, sin = np.sqrt(np.float32(1.1) - angles * angles * np.float32(0.25)), angles
    q, out = np.empty((80, _HEADS, _DIM), np.float32), np.empty((80, _HEADS * _DIM), np.float32)
    qkv, norm = numbers(7, 80, (_HEADS + 2 * _KV_HEADS) * _DIM), numbers(8, _DIM)
    kv.rotate_write(
        path, qkv, _HEADS, _KV_HEADS, _DIM, cos, sin, slots, page_of, slots % _PAGE, _PAGE, pool, q, norm, norm
    )
    kv.attention(path, q, pool, 0, layer, tables, starts, counts, first, _HEADS, _KV_HEADS, _DIM, _PAGE, 0.7, out)
    normed = np.empty_like(out)
    kv.rmsnorm(out, numbers(9, _HEADS * _DIM), 1e-6, normed)
    return [q, pool, out, normed]


def _lengths(path: str) -> list[Array]:
    """Single rows of texts up to thousands of slots, and a long chunk. The texts repeat few pages, without a period."""
    layer, slots = kv.layer_bytes(path, _PAGE, 1, _DIM), np.arange(_STORED * _PAGE, dtype=np.int32)
    pool, angles = np.zeros(layer * _STORED, np.uint8), numbers(12, len(slots), _DIM // 2)
    cos = np.sqrt(np.float32(1.1) - angles * angles * np.float32(0.25))
    q, page_of = np.empty((len(slots), 1, _DIM), np.float32), (slots // _PAGE).astype(np.int64) * layer
    qkv = numbers(13, len(slots), 3 * _DIM)
    kv.rotate_write(path, qkv, 1, 1, _DIM, cos, angles, slots, page_of, slots % _PAGE, _PAGE, pool, q)
    order = np.arange(-(-_LENGTHS[-1] // _PAGE))
    table, results = (order * order * 7 + order * 3) % _STORED, []
    ends = np.array(_LENGTHS, np.int32)
    for starts, counts in ((ends - 1, np.ones_like(ends)), (np.zeros(1, np.int32), np.full(1, _CHUNK, np.int32))):
        rows, tables = int(counts.sum()), np.repeat(table[None].astype(np.int32), len(starts), 0)
        out, first = np.empty((rows, _DIM), np.float32), (np.cumsum(counts) - counts).astype(np.int32)
        kv.attention(path, q[:rows], pool, 0, layer, tables, starts, counts, first, 1, 1, _DIM, _PAGE, 0.7, out)
        results.append(out)
    return results


def _sampling() -> list[Array]:
    return [each for vocab in _VOCABULARIES for each in _drawn(vocab)]


def _drawn(vocab: int) -> list[Array]:
    rows = 6
    position, n_top = np.arange(rows, dtype=np.int32), np.full(rows, 3, np.int32)
    drawn = sampling.sample(
        numbers(10, rows, vocab) * np.float32(4),
        np.array([0, 1, 0.7, 1.3, 1, 1], np.float32),
        np.array([0, 0, 5, 0, 0, 9], np.int32),
        np.array([1, 1, 1, 0.8, 1, 0.9], np.float32),
        np.array([0, 0, 0, 0, 0.1, 0], np.float32),
        np.arange(rows, dtype=np.uint64),
        position,
        position,
        n_top=n_top,
    )
    return list(drawn)


def _checksum() -> Array:
    words = numbers(11, 300)
    return np.array([pages.checksum(words.ctypes.data, words.nbytes, 5)], np.uint64)
