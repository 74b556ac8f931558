"""A layer's kernels in one call: what a step's loop over layers costs in Python matters when a step takes milliseconds.

`Step` and `Layer` hold plain addresses of arrays that the caller keeps alive and has checked once; indices (tables,
slots) are checked by every call. The kernels are those of `products` and `paged` in the same order: equal bits."""

from ctypes import Structure, byref, c_float, c_int, c_int64, c_long, c_void_p

from baton_kernels.library import check, load


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class Layer(Structure):
    """Addresses of one layer's weights; a bias or norm that the model lacks is None."""

    _fields_ = _fields(
        c_void_p, "input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "o", "o_bias", "ffn_norm", "gate_up", "down"
    )


class Step(Structure):
    """What all layers of a step share, and where its rows are on their way."""

    _fields_ = [
        *_fields(c_int, "path"),
        *_fields(c_float, "eps", "scale"),
        *_fields(c_long, "rows", "sequences", "max_pages", "hidden", "ffn", "heads", "kv_heads", "dim"),
        *_fields(c_long, "page_tokens", "max_positions"),
        *_fields(c_int64, "pool_bytes", "page_stride"),
        *_fields(c_void_p, "pool", "cos", "sin", "slots", "page_of", "offset_in_page"),
        *_fields(c_void_p, "tables", "starts", "counts", "first_row"),
        *_fields(c_void_p, "x", "normed", "qkv", "q", "attended", "gated"),
    ]


def run(step: Step, rest: Layer | None, rest_offset: int, following: Layer | None, following_offset: int) -> None:
    """Attention and feed-forward of `rest`, then keys and values of `following`; offsets in a page, in bytes."""
    check(
        load().layer(
            byref(step),
            None if rest is None else byref(rest),
            rest_offset,
            None if following is None else byref(following),
            following_offset,
        )
    )


def begin(step: Step, embedding: int, tokens: int, vocab: int) -> None:
    """The tokens' rows of the packed embedding into `x`."""
    check(load().embed(step.path, embedding, tokens, step.rows, vocab, step.hidden, step.x))


def finish(step: Step, last: Layer, offset: int, norm: int) -> None:
    """The rest of the last layer for all rows, and their final norm into `normed`."""
    library = load()
    check(library.layer(byref(step), byref(last), offset, None, 0))
    check(library.rmsnorm(step.x, norm, step.rows, step.hidden, step.eps, step.normed))


def busy_seconds() -> float:
    """How long kernels have held the pool since the process began, for measuring what else a step does."""
    seconds: float = load().busy_seconds()
    return seconds
