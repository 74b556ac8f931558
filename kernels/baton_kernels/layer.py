"""All kernels of a layer in one call, because a step takes milliseconds and Python's share of them counts.

`LayerStep` and `Layer` hold plain addresses of arrays that the caller has checked once and keeps alive; every call
checks the indices (tables, slots). It runs the kernels of `products` and `paged` in the same order, with equal bits."""

from ctypes import Structure, byref, c_float, c_int, c_int64, c_long, c_void_p

from baton_kernels.library import check, load


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class Layer(Structure):
    """Addresses of one layer's weights; a bias or norm that the model lacks is None."""

    _fields_ = _fields(
        c_void_p, "input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "o", "o_bias", "ffn_norm", "gate_up", "down"
    )


class LayerStep(Structure):
    """The arguments that all layers of a step share, and the arrays that hold its rows between kernels."""

    _fields_ = [
        *_fields(c_int, "path", "kv"),
        *_fields(c_float, "eps", "scale"),
        *_fields(c_long, "rows", "sequences", "max_pages", "hidden", "ffn", "heads", "kv_heads", "dim"),
        *_fields(c_long, "page_tokens", "max_positions"),
        *_fields(c_int64, "pool_bytes", "page_stride"),
        *_fields(c_void_p, "pool", "cos", "sin", "slots", "page_of", "offset_in_page"),
        *_fields(c_void_p, "tables", "starts", "counts", "first_row"),
        *_fields(c_void_p, "x", "normed", "qkv", "q", "attended", "gated"),
    ]


def run(step: LayerStep, rest: Layer | None, rest_offset: int, following: Layer | None, following_offset: int) -> None:
    """Computes attention and feed-forward of the layer `rest`, then writes keys and values of the layer `following`.
    Each offset is where the layer begins inside a page, in bytes."""
    check(
        load().layer(
            byref(step),
            None if rest is None else byref(rest),
            rest_offset,
            None if following is None else byref(following),
            following_offset,
        )
    )


def begin(step: LayerStep, embedding: int, tokens: int) -> None:
    """Copies the tokens' rows of the packed embedding into `x`."""
    check(load().embed(embedding, tokens, step.rows, step.x))


def finish(step: LayerStep, last: Layer, offset: int, norm: int) -> None:
    """Computes attention and feed-forward of the last layer for all rows, and writes their final norm to `normed`."""
    library = load()
    check(library.layer(byref(step), byref(last), offset, None, 0))
    check(library.rmsnorm(step.x, norm, step.rows, step.hidden, step.eps, step.normed))


def busy_seconds() -> float:
    """Seconds that kernels have held the thread pool since the process began. Benchmarks subtract them from a step."""
    seconds: float = load().busy_seconds()
    return seconds
