"""Other people's kernels on the same inputs as ours. A peer that is not installed gets a note instead of a figure.

`python -m bench.gpu.peers` calls FlashInfer once on small inputs. At its first call FlashInfer compiles its kernels
with nvcc; the run lets it do so beside other sections."""

import importlib.util
from collections.abc import Callable

import torch
from torch.nn import functional

from bench.gpu.clock import Call
from bench.gpu.figures import note
from bench.gpu.workloads import PAGE_TOKENS, AttentionInputs, attention

WORKSPACE_BYTES = 128 * 1024 * 1024


def sdpa(work: AttentionInputs) -> Call:
    q, k, v = work.dense()
    causal = work.rows > 1
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def flex(work: AttentionInputs) -> Call:
    """flex_attention, compiled, with a causal block mask: a peer for prompts."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = work.dense()
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, work.rows, work.context, device=str(q.device))
    compiled: Callable[..., object] = torch.compile(flex_attention)
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=True)


def flashinfer_decode(work: AttentionInputs) -> Call | None:
    if importlib.util.find_spec("flashinfer") is None:
        note("FlashInfer is not installed here")
        return None
    import flashinfer  # type: ignore[import-not-found, unused-ignore]

    each = work.tables.shape[1]
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=work.q.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
    indptr = torch.arange(work.batch + 1, dtype=torch.int32, device=work.q.device) * each
    last = torch.full((work.batch,), (work.context - 1) % PAGE_TOKENS + 1, dtype=torch.int32, device=work.q.device)
    wrapper.plan(
        indptr, work.tables.flatten(), last, work.heads, work.kv_heads, work.dim, PAGE_TOKENS,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    pages = work.pages()
    return lambda: wrapper.run(work.q, pages)


def liger_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Call | None:
    if importlib.util.find_spec("liger_kernel") is None:
        note("Liger is not installed here")
        return None
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction  # type: ignore[import-not-found, unused-ignore]

    x, weight = x.bfloat16(), weight.bfloat16()
    return lambda: LigerRMSNormFunction.apply(x, weight, eps)


def main() -> None:
    if (call := flashinfer_decode(attention(torch.device("cuda", torch.cuda.current_device()), 1, 64, 1))) is not None:
        call()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
