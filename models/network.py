"""The Llama architecture in torch, for training and evaluation only: the engine computes the served model.

Parameter names are those of Hugging Face, so a state dict is a checkpoint. The products may run in bf16 under autocast;
everything between them, the residual stream included, stays in fp32."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class NetworkShape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = 2048
    context: int = 2048
    theta: float = 10000.0
    eps: float = 1e-5


MODEL = NetworkShape(256, 6, 4, 2, 64, 704)
DRAFT = NetworkShape(128, 2, 4, 2, 32, 352)


class Cache:
    """Keys and values of every layer, [rows, kv_heads, slots, head_dim]; rows may be filled to different lengths."""

    def __init__(self, shape: NetworkShape, rows: int, slots: int) -> None:
        size = (rows, shape.kv_heads, slots, shape.head_dim)
        self.keys = [torch.zeros(size) for _ in range(shape.layers)]
        self.values = [torch.zeros(size) for _ in range(shape.layers)]


class TrainedNetwork(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(NetworkLayer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        frequencies = shape.theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.context).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def initialise(self, seed: int) -> "TrainedNetwork":
        generator = torch.Generator().manual_seed(seed)
        for name, values in self.named_parameters():
            if values.dim() == 2:
                spread = 0.02 if "embed" in name else values.shape[1] ** -0.5
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    spread *= (2 * self.shape.layers) ** -0.5
                nn.init.normal_(values, std=spread, generator=generator)
        return self

    def forward(self, tokens: Tensor, mask: Tensor, cache: Cache | None = None, slots: Tensor | None = None) -> Tensor:
        """Logits [rows, tokens, vocab]. `slots` [rows, tokens] is the slot of each token; without it they count from
        0."""
        at = torch.arange(tokens.shape[1])[None] if slots is None else slots
        rotary = self.cos[at][:, None], self.sin[at][:, None]  # [rows, 1, tokens, head_dim / 2]
        x = self.embed_tokens(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, mask, None if cache is None else (cache.keys[index], cache.values[index], at))
        logits: Tensor = F.linear(self.norm(x), self.embed_tokens.weight)
        return logits


class NetworkLayer(nn.Module):
    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.self_attn = NetworkAttention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor, Tensor] | None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask, past)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class NetworkAttention(nn.Module):
    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor, Tensor] | None
    ) -> Tensor:
        rows, count, _ = x.shape
        q, k, v = (
            product(x).view(rows, count, -1, self.shape.head_dim).transpose(1, 2)
            for product in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotated(q, rotary), rotated(k, rotary)
        if past is not None:
            k, v = _extended(k, past[0], past[2]), _extended(v, past[1], past[2])
        groups = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).reshape(rows, count, -1)
        return self.o_proj(out)  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


def rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs as Hugging Face does: the first of a pair stands in the lower half of the head."""
    cos, sin = rotary
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


def _extended(new: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    """Writes new keys or values at their slots and returns the whole cache."""
    index = at[:, None, :, None].expand(new.shape)
    cache.scatter_(2, index, new.to(cache.dtype))
    return cache.to(new.dtype)
