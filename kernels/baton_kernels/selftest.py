"""The fixed self-test: every kernel on small fixed inputs, hashed. Equal fingerprints mean equal numerics.

A worker runs it when it starts. The bits of the bodies in use must equal those of the plain body, so that a wrong
kernel never serves. Nothing here depends on a model, so the hash of each path is known: a library that is wrong in all
bodies, as an altered source or a bad compiler makes it, is refused even where all workers of a mesh load it."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from baton_kernels import machine, pages, products, sampling
from baton_kernels import paged as kv
from baton_kernels.arrays import PATHS, Array
from baton_kernels.deltas import AdaptedRows, LowRank, PackedDelta, add_deltas, delta_table, pack_delta
from baton_kernels.fixed import numbers, packed
from baton_kernels.forms import DEEP, MatrixForm
from baton_kernels.layer import ACTIVATIONS
from baton_kernels.library import KERNEL_VERSION, KernelError
from baton_kernels.rows import add, cap, layernorm, rmsnorm_within, share_latent
from baton_kernels.selftest_attention import attention, lengths, sinks, windows
from baton_kernels.selftest_experts import mixtures

_VOCABULARIES = (32, 258, 300, 333, 1003, 4099)
_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
INTEGER_FORMS = (
    MatrixForm("int8"),
    MatrixForm("int8", segments=4),
    MatrixForm("int4", group=128, segments=2),
    MatrixForm("int4", group=32),
    MatrixForm("int8-groups", group=16, scales="fp16"),
    MatrixForm("int8-groups", group=32, scales="bf16", offset="zero"),
    MatrixForm("int8-groups", group=128, offset="minimum"),
    MatrixForm("int4-groups", group=32, scales="fp16", offset="minimum"),
    MatrixForm("int4-groups", group=64, scales="bf16", middle=8),
    MatrixForm("int4-groups", group=128, offset="zero", segments=2),
    MatrixForm("int4-groups", group=32, scales="fp16", table=_TABLE),
)
# Of each path, of integer products, of coded pages, of what other families and adapters compute, of experts, of
# windows and of sinks: on every machine. They change only with KERNEL_VERSION, or with this test.
KNOWN = {
    "fp32": "a805d6ce2bf7e24d0fd11a6a59b2d5c8",
    "pairs": "b165158df1e38d9f39b086400ad6951c",
    "amx": "950c4cd3b1afbf4c5dd0fd283bbd8838",
    "integers": "0aa9f637faf7c23399d5f011d9a009df",
    "codes": "0c2429d352e434d8c63b29bb36cb0bc4",
    "families": "e77d9ced94a866dad1bc0c7b47679b8b",
    "experts": "1912f9820d4555bb40e5917f83cc5fca",
    "windows": "7654cce15dcf00dbb08ebf262822fb08",
    "sinks": "c0a6ace66b50fe4bfa08a4aeffa0501d",
    "deltas": "cc8332df0dadac9df5b518a1767a7b15",
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
    if path == "integers":
        return _digest(path, _integer_products())
    if path == "families":
        return _digest(path, _families())
    if path == "experts":
        return _digest(path, mixtures())
    if path == "windows":
        return _digest(path, windows())
    if path == "sinks":
        return _digest(path, sinks())
    if path == "deltas":
        return _digest(path, _deltas())
    if path == "codes":
        return _digest(path, (each for own in PATHS for coded in kv.KV[1:] for each in attention(own, coded)))
    return _digest(path, (*_products(path), *attention(path), *lengths(path), *_sampling(), _checksum()))


def _digest(path: str, results: Iterable[Array]) -> str:
    digest = hashlib.blake2b(f"{path} {KERNEL_VERSION}".encode(), digest_size=16)
    for result in results:
        digest.update(np.ascontiguousarray(result).view(np.uint8).tobytes())
    return digest.hexdigest()


def _products(path: str) -> list[Array]:
    results = []
    for rows, n, k in ((1, 48, 67), (5, 96, 64), (40, 70, 130)):
        x, out, both = numbers(1, rows, k), np.empty((rows, n), np.float32), np.empty((rows, n), np.float32)
        products.product(x, packed(path, numbers(2, n, k)), out, numbers(3, n), numbers(4, rows, n))
        products.gated(x, packed(path, numbers(5, 2 * n, k)), both)
        results += [out, both]
    return results


def _integer_products() -> Iterator[Array]:
    """Every kind of integer form, with few rows and with many, with ordinary numbers, the largest, and ties."""
    for seed, form in enumerate(INTEGER_FORMS):
        k, n = max(form.group, DEEP) * form.segments * 2, 70
        for worst in (False, True):
            weight = integers_of(form, n, k, seed, worst=worst)
            out = np.empty(weight.nbytes, np.uint8)
            products.pack_integers(weight, out)
            for rows in (3, 20) if worst else (1, 40):
                x, result = numbers(20 + seed, rows, k), np.empty((rows, n), np.float32)
                if worst:
                    x = np.where(x > 0, np.float32(1), np.float32(-1))
                    x[0] = near_ties(k)
                products.product(x, out, result, numbers(3, n), numbers(4, rows, n))
                both = np.empty((rows, n // 2), np.float32)
                products.gated(x, out, both)
                yield result
                yield both


def near_ties(k: int) -> Array:
    """Activations whose product with the inverse scale is rounded to a tie though it is none: a product that is fused
    with the sum behind it gives other integers."""
    most = np.float32(0.7310586)
    inverse = np.float32(127) / most
    half = (np.arange(k) % 126).astype(np.float32) + np.float32(0.5)
    x = (half / inverse).astype(np.float32)
    for near in (x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(1))):
        exact = near.astype(np.float64) * np.float64(inverse)
        x = np.where((near * inverse == half) & (np.rint(exact) != np.rint(half)), near, x)
    x[::16] = most
    return x


def integers_of(form: MatrixForm, n: int, k: int, seed: int, *, worst: bool = False) -> products.Integers:
    """A fixed matrix in this form; `worst`: of the largest numbers that the form allows."""
    low, high = (0, 15) if form.scheme.startswith("int4") else (-128, 127)
    some = np.abs(numbers(30 + seed, n, k)) * np.float32(65536)
    values = low + some.astype(np.int32) % (high + 1 - low)
    if worst:
        values = np.where(values * 2 > low + high, high, low)
    groups = k // form.group if form.group else 1
    scales = np.abs(numbers(31 + seed, n, groups)) + np.float32(2**-6)
    zeros = (values[:, :groups] & 7).astype(np.int8)
    whole = form.scheme in ("int8", "int4")
    kind = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16}[form.scales]
    stored = (scales.view(np.uint32) >> 16).astype(np.uint16) if form.scales == "bf16" else scales.astype(kind)
    return products.Integers(
        form,
        values.astype(np.int8),
        np.ascontiguousarray(scales[:, 0]) if whole else stored,
        stored if form.offset == "minimum" else zeros if form.offset == "zero" or form.scheme == "int4" else None,
        (zeros.view(np.uint8) + 1).astype(np.uint8) if form.scheme == "int4" else None,
    )


def _families() -> Iterator[Array]:
    """The kernels that Llama has no use for: other norms and activations, biases inside an MLP, caps, heads that no
    layer rotates, latents and scores over them."""
    rows, k, n = 5, 130, 96
    x, y, weight, bias = numbers(14, rows, k), numbers(15, rows, k), numbers(16, k), numbers(17, k)
    layered, columns, wide = np.empty_like(x), x.copy(), numbers(18, 2, 4099) * np.float32(40)
    layernorm(x, weight, bias, 1e-5, layered)
    rmsnorm_within(columns, weight[:70], 33, 1e-6)
    cap(wide, 30.0)
    latents = numbers(20, 3, 5 * 48)
    share_latent(latents, numbers(21, 32), 3, 48, 1e-6)
    yield from (layered, columns, wide, latents, *attention("fp32", stretches=True))
    for norm, factor in ((weight, 1.0), (None, 0.22), (weight, 0.22)):
        total = x.copy()
        add(total, y, norm=norm, eps=1e-6, factor=factor)
        yield total
    for path in PATHS:
        both, single = packed(path, numbers(19, 2 * n, k)), packed(path, numbers(20, n, k))
        for more in (None, numbers(21, 2 * n)):
            for activation in ACTIVATIONS:
                out = np.empty((rows, n), np.float32)
                products.gated(x, both, out, more, activation=activation)
                yield out
        out = np.empty((rows, n), np.float32)
        products.activated(x, single, out, numbers(22, n), activation="gelu_tanh")
        yield out
        for coded in kv.KV:
            yield from attention(path, coded, cap=2.5, rotated=False)


def _deltas() -> Iterator[Array]:
    """Adapters of several ranks in fp32 and bf16, for few rows and many, of widths that fill no panel."""
    for seed, (k, columns, ranks) in enumerate(
        ((67, (48, 33), (5, 0)), (96, (70,), (8,)), (130, (32, 16, 9), (1, 4, 19)))
    ):
        wide = [_low_rank(30 + seed, k, n, rank) for n, rank in zip(columns, ranks, strict=True)]
        half = [None if each is None else _halved(each) for each in wide]
        packed_deltas: list[PackedDelta] = [pack_delta(each, columns, k) for each in (wide, half)]
        tables = [delta_table([each]) for each in packed_deltas]
        for rows in (3, 150):
            x, out = numbers(40, rows, k), numbers(41, rows, sum(columns))
            order = np.arange(rows, dtype=np.int32)
            add_deltas(x, out, AdaptedRows(tables, [order[::3], order[1::3]]), 0)
            yield out


def _low_rank(seed: int, k: int, columns: int, rank: int) -> LowRank | None:
    return LowRank(numbers(seed, rank, k), numbers(seed + 5, columns, rank), 0.7) if rank else None


def _halved(part: LowRank) -> LowRank:
    down, up = ((each.view(np.uint32) >> 16).astype(np.uint16) for each in (part.down, part.up))
    return LowRank(down, up, part.scale)


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
