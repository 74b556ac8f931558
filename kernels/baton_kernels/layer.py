"""All kernels of a layer in one call, because a step takes milliseconds and Python's share of them counts.

`LayerStep` and `Layer` hold plain addresses of arrays that the caller has checked once and keeps alive; every call
checks the indices (tables, slots). It runs the kernels of `products` and `paged` in the same order, with equal bits."""

from ctypes import Structure, byref, c_float, c_int, c_int64, c_long, c_void_p

from baton_kernels.library import check, load


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


NORMS = ("rms", "layer")  # in the order of calls.h, as are the next
CLAMPED_SWIGLU = "clamped_swiglu"  # a function of gate and up together
ACTIVATIONS = ("silu", "gelu_tanh", CLAMPED_SWIGLU)


class MlpWeights(Structure):
    """Addresses of an MLP's weights, and what lies between its products. Without a gate, `gate_up` is up alone.

    With a router there are experts, whose matrices lie one behind the other, as their biases do; `gate_up` and `down`
    are then the expert that computes every row, or None."""

    _fields_ = [
        *_fields(c_void_p, "gate_up", "gate_up_bias", "down", "down_bias"),
        *_fields(c_int, "activation", "gated"),
        *_fields(c_void_p, "router", "experts_gate_up", "experts_down"),
        *_fields(c_int64, "gate_up_bytes", "down_bytes"),
        *_fields(c_int, "experts", "chosen", "normalised", "shared"),
        ("factor", c_float),
        *_fields(c_void_p, "router_bias", "experts_gate_up_bias", "experts_down_bias"),
    ]


class Layer(Structure):
    """Addresses of one layer's weights; a bias, a norm or sinks that the model lacks are None, as is a rope's table.
    `window`: slots that a row sees, its own the last; 0: all."""

    _fields_ = [
        *_fields(c_void_p, "input_norm", "input_norm_bias", "qkv", "qkv_bias", "q_norm", "k_norm", "latent_norm"),
        *_fields(c_void_p, "o", "o_bias", "attended_norm", "ffn_norm", "ffn_norm_bias"),
        ("mlp", MlpWeights),
        *_fields(c_void_p, "fed_norm", "cos", "sin", "sinks"),
        ("window", c_long),
        ("index", c_long),
    ]


class LayerStep(Structure):
    """The arguments that all layers of a step share, and the arrays that hold its rows between kernels."""

    _fields_ = [
        *_fields(c_int, "path", "kv", "norm", "wide_norms"),
        *_fields(c_float, "eps", "scale", "attention_cap", "embedding_scale", "residual_scale", "logits_cap"),
        *_fields(c_float, "qkv_limit", "latent_eps"),
        ("latent", c_long),
        *_fields(c_long, "rows", "sequences", "max_pages", "hidden", "ffn", "heads", "kv_heads", "dim"),
        *_fields(c_long, "page_tokens", "max_positions"),
        *_fields(c_int64, "pool_bytes", "page_stride"),
        *_fields(c_void_p, "pool", "slots", "page_of", "offset_in_page"),
        *_fields(c_void_p, "tables", "starts", "counts", "first_row"),
        *_fields(c_void_p, "x", "normed", "qkv", "q", "attended", "gated"),
        *_fields(c_void_p, "adapted", "gate_up"),  # None: no row has an adapter
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
    """Copies the tokens' rows of the packed embedding into `x`, scaled."""
    check(load().embed(embedding, tokens, step.rows, step.embedding_scale, step.x))


def finish(step: LayerStep, last: Layer, offset: int, norm: int, norm_bias: int | None) -> None:
    """Computes attention and feed-forward of the last layer for all rows, and writes their final norm to `normed`."""
    library = load()
    check(library.layer(byref(step), byref(last), offset, None, 0))
    check(library.finish(byref(step), norm, norm_bias))


def busy_seconds() -> float:
    """Seconds that kernels have held the thread pool since the process began. Benchmarks subtract them from a step."""
    seconds: float = load().busy_seconds()
    return seconds
