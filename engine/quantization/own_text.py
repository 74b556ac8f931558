"""Text that a model writes by itself, to be quantized with: of its own language and subjects, whatever these are.

Sequences begin with tokens from all over the vocabulary and go on as the model samples, together in one batch. Logits
and sampler are exact, so that every machine of a numerics class gets the same text."""

import numpy as np

import baton_kernels
from engine.model.forward import Forward
from engine.model.page_memory import page_layout, page_memory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import Weights
from engine.quantization.folder import Windows
from engine.step.layer_groups import unreported
from engine.step.plan import Piece
from mesh.messages.jobs import Sampling

WINDOWS, WINDOW = 16, 512
_TOP_P = 0.95  # rare tokens lead a small model astray
_PAGE = 32


def own_text(weights: Weights, *, windows: int, tokens: int) -> Windows:
    """[windows, tokens]"""
    config = weights.config
    tokens = min(tokens, config.context)
    layout, pages = page_layout(weights, None, _PAGE), -(-tokens // _PAGE)
    pool = np.zeros(windows * pages * layout.page_bytes, np.uint8)
    forward = Forward(weights, page_memory(pool, layout, _PAGE, segment=0))
    limits = RowLimits(config.vocab, config.context, windows * pages, _PAGE, layout.page_bytes)
    text, every = np.empty((windows, tokens), np.int32), Sampling()
    text[:, 0] = np.arange(windows) * config.vocab // windows
    zeros, ones = np.zeros(windows, np.int32), np.ones(windows, np.float32)
    for at in range(tokens - 1):
        pieces = [
            Piece(number, (token,), at, tuple(range(number * pages, number * pages + at // _PAGE + 1)), 1, 0, every)
            for number, token in enumerate(text[:, at].tolist())
        ]
        logits = forward.logits(forward.hidden(Rows.of(pieces, limits), unreported))
        text[:, at + 1] = baton_kernels.sample(
            logits,
            temperature=ones,
            top_k=zeros,
            top_p=ones * np.float32(_TOP_P),
            min_p=zeros.astype(np.float32),
            seed=zeros.astype(np.uint64),
            choice=np.arange(windows, dtype=np.int32),
            position=zeros + np.int32(at),
        ).tokens
    return text
