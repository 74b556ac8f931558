"""The pages of a GPU's pool: one page id covers `page_tokens` tokens of all layers, contiguous,
[layers][2][kv_heads][tile]. A page may hold the layers of two models, one behind the other; a shape describes the
share of one model.

A bf16 tile is [page_tokens][dim]. An fp8 tile is [page_tokens][dim] e4m3 bytes, then one fp32 scale per token:
scales belong to a token and a head, never to a page that still fills. The order's name and the dtype go into the
handshake of transfers."""

from dataclasses import dataclass

import torch

from baton_kernels.library import KernelError

PAGE_TOKENS = (16, 32, 64)
KV_TYPES = ("bf16", "fp8")
ALIGN_BYTES = 64  # alignment of a model's share of a page, so that kernels know by what its offset divides
FP8_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class GpuPageShape:
    layers: int
    kv_heads: int
    dim: int
    page_tokens: int = 16
    kv_type: str = "bf16"
    first_byte: int = 0  # byte offset of this model's layers inside a page
    other_bytes: int = 0  # bytes of a page that belong to another model's layers, before or behind these

    def __post_init__(self) -> None:
        if self.page_tokens not in PAGE_TOKENS:
            raise KernelError(f"page_tokens: {self.page_tokens} is not one of {PAGE_TOKENS}")
        if self.kv_type not in KV_TYPES:
            raise KernelError(f"kv_type: {self.kv_type!r} is not one of {', '.join(KV_TYPES)}")
        if self.dim % 16 or not 16 <= self.dim <= 256:
            raise KernelError(f"dim: {self.dim} is not a multiple of 16 up to 256")
        if self.fp8 and self.dim > 128:
            raise KernelError(f"dim: heads of {self.dim} are beyond what fp8 pages hold (128)")
        if self.layers < 1 or self.kv_heads < 1:
            raise KernelError(f"layers, kv_heads: {self.layers} and {self.kv_heads} must be at least 1")
        aligned = self.first_byte % ALIGN_BYTES == self.other_bytes % ALIGN_BYTES == 0
        if not aligned or not 0 <= self.first_byte <= self.other_bytes:
            share = f"{self.first_byte} of {self.other_bytes}"
            raise KernelError(f"first_byte, other_bytes: {share} are no multiples of {ALIGN_BYTES} that fit")

    @property
    def name(self) -> str:
        return f"gpu-{self.kv_type}-{self.page_tokens}-{self.dim}-v1"

    @property
    def tiles(self) -> tuple[str, str]:
        """Name of the order of a head's keys and values in a page, and the dtype of an element."""
        return "gpu-v1", "fp8-e4m3" if self.fp8 else self.kv_type

    @property
    def fp8(self) -> bool:
        return self.kv_type == "fp8"

    @property
    def tile_bytes(self) -> int:
        return self.page_tokens * (self.dim + 4 if self.fp8 else 2 * self.dim)

    @property
    def layer_bytes(self) -> int:
        return 2 * self.kv_heads * self.tile_bytes

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes + self.other_bytes

    def layer_byte(self, layer: int) -> int:
        """Byte offset of this layer inside a page."""
        return self.first_byte + layer * self.layer_bytes

    def check_pool(self, pool: torch.Tensor) -> int:
        """Refuses a pool of the wrong type or length; returns the number of its pages."""
        if pool.dtype != torch.uint8 or pool.dim() != 1 or not pool.is_contiguous() or pool.numel() % self.page_bytes:
            raise KernelError(f"pool: must be contiguous uint8, a multiple of {self.page_bytes} bytes long")
        return pool.numel() // self.page_bytes

    def check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.layers:
            raise KernelError(f"layer: {layer} is not one of the page's {self.layers}")


def as_stored(x: torch.Tensor, kv_type: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds x [..., dim] as a page stores it; returns the elements as float32 before scaling, and the scales [...]."""
    if kv_type == "bf16":
        return x.bfloat16().float(), torch.ones(x.shape[:-1])
    largest = x.float().abs().amax(-1)
    scale = torch.where(largest > 0, largest / FP8_LARGEST, torch.ones_like(largest))
    return (x.float() / scale[..., None]).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn).float(), scale


def write_token(
    pool: torch.Tensor, shape: GpuPageShape, layer: int, page: int, offset: int, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Reference: writes k and v [kv_heads, dim] of one token into its page."""
    at = page * shape.page_bytes + shape.layer_byte(layer)
    tiles = pool[at : at + shape.layer_bytes].view(2, shape.kv_heads, shape.tile_bytes)
    for tile, x in zip(tiles, (k, v), strict=True):
        elements, scale = as_stored(x, shape.kv_type)
        if shape.fp8:
            body = tile[:, : shape.page_tokens * shape.dim].unflatten(1, (shape.page_tokens, shape.dim))
            body[:, offset] = elements.to(torch.float8_e4m3fn).view(torch.uint8)
            tile[:, shape.page_tokens * shape.dim :][:, 4 * offset : 4 * offset + 4] = scale[:, None].view(torch.uint8)
        else:
            body = tile.view(torch.bfloat16).unflatten(1, (shape.page_tokens, shape.dim))
            body[:, offset] = elements.bfloat16()


def read_page(pool: torch.Tensor, shape: GpuPageShape, layer: int, page: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference: reads K and V [page_tokens, kv_heads, dim] of one layer of a page, as float32 after scaling."""
    at = page * shape.page_bytes + shape.layer_byte(layer)
    tiles = pool[at : at + shape.layer_bytes].cpu().view(2, shape.kv_heads, shape.tile_bytes)
    if shape.fp8:
        elements = tiles[..., : shape.page_tokens * shape.dim].contiguous().view(torch.float8_e4m3fn).float()
        scales = tiles[..., shape.page_tokens * shape.dim :].contiguous().view(torch.float32)
        whole = elements.unflatten(2, (shape.page_tokens, shape.dim)) * scales[..., None]
    else:
        whole = tiles.view(torch.bfloat16).float().unflatten(2, (shape.page_tokens, shape.dim))
    k, v = whole.transpose(1, 2)
    return k, v
