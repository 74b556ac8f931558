"""Section `kernels`: each kernel's share of the device's limits, and its time compared with other people's kernels."""

import torch

from baton_kernels import triton as kernels
from baton_kernels.triton.sampling import scratch_floats
from bench.gpu import peers
from bench.gpu.clock import Call, Clock, DeviceLimits
from bench.gpu.figures import Figure, a_peers, ours, show
from bench.gpu.workloads import attention

DECODE = ((64, 4096, 0.85), (8, 32768, 0.75), (1, 32768, None))  # batch, context, least share of the bandwidth
PREFILL = ((8192, 0.60), (2048, None))
PRODUCTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # outputs and inputs of an 8B model's products


def measure(clock: Clock) -> None:
    limits = clock.limits()
    show(Figure("copy bandwidth", limits.bytes_per_second / 1e9, "GB/s"))
    show(Figure("bf16 matrix peak", limits.operations_per_second / 1e12, "TFLOP/s"))
    for rows in (1, 64, 8192) if clock.real else (3,):
        for outputs, inputs in PRODUCTS if clock.real else ((32, 64),):
            with ours(f"product {rows} x {outputs} x {inputs}"):
                _product(clock, limits, rows, outputs, inputs)
    for rows in (64, 8192) if clock.real else (3,):
        with ours(f"norm of {rows} rows"):
            _norm(clock, limits, rows, 4096 if clock.real else 64)
    with ours("sampling"):
        _sample(clock, limits, *((64, 128256) if clock.real else (2, 300)))
    with ours("pages out of the pool"):
        _pages(clock, limits, 256 if clock.real else 3)
    for batch, context, least in DECODE if clock.real else ((2, 40, None),):
        with ours(f"decode attention {batch} x {context}"):
            _decode(clock, limits, batch, context, least)
    for rows, least in PREFILL if clock.real else ((24, None),):
        with ours(f"prefill attention {rows}"):
            _prefill(clock, limits, rows, least)


def _share(name: str, ms: float, most_per_second: float, work: float, unit: str, least: float | None = None) -> None:
    show(Figure(f"{name}: time", ms, "ms"))
    show(Figure(name, work / ms * 1000 / most_per_second, unit, at_least=least))


def _beside(clock: Clock, name: str, peer: str, call: Call | None, ours_ms: float, least: float | None = None) -> None:
    """Shows how many times as fast as a peer our kernel is."""
    if call is not None:
        show(Figure(name, clock.milliseconds(call) / ours_ms, f"times as fast as {peer}", at_least=least))


def _decode(clock: Clock, limits: DeviceLimits, batch: int, context: int, least: float | None) -> None:
    small = {} if clock.real else {"heads": 2, "kv_heads": 1, "dim": 32}
    work = attention(clock.device, batch, context, 1, **small)
    name, ms = f"decode attention {batch} x {context}", clock.milliseconds(work.run)
    _share(name, ms, limits.bytes_per_second, work.kv_bytes, "of copy bandwidth", least)
    with a_peers(f"{name}, FlashInfer"):
        _beside(clock, name, "FlashInfer", peers.flashinfer_decode(work), ms, 1.0)
    with a_peers(f"{name}, SDPA"):
        _beside(clock, name, "torch's SDPA without pages", peers.sdpa(work), ms)


def _prefill(clock: Clock, limits: DeviceLimits, rows: int, least: float | None) -> None:
    small = {} if clock.real else {"heads": 2, "kv_heads": 1, "dim": 32}
    work = attention(clock.device, 1, rows, rows, **small)
    name, ms = f"prefill attention {rows}", clock.milliseconds(work.run)
    _share(name, ms, limits.operations_per_second, work.operations, "of the matrix peak", least)
    with a_peers(f"{name}, SDPA"):
        _beside(clock, name, "torch's SDPA", peers.sdpa(work), ms)
    if clock.real:
        with a_peers(f"{name}, flex_attention"):
            _beside(clock, name, "flex_attention", peers.flex(work), ms)


def _product(clock: Clock, limits: DeviceLimits, rows: int, outputs: int, inputs: int) -> None:
    x = torch.randn(rows, inputs, device=clock.device).bfloat16()
    weight = torch.randn(outputs, inputs, device=clock.device).bfloat16()
    out = torch.empty(rows, outputs, device=clock.device)
    ms = clock.milliseconds(lambda: kernels.product(x, weight, out=out))
    name, operations = f"product {rows} x {outputs} x {inputs}", 2 * rows * outputs * inputs
    moved = 2 * (outputs * inputs + rows * inputs) + 4 * rows * outputs
    if operations / limits.operations_per_second > moved / limits.bytes_per_second:
        _share(name, ms, limits.operations_per_second, operations, "of the matrix peak")
    else:
        _share(name, ms, limits.bytes_per_second, moved, "of copy bandwidth")
    _beside(clock, name, "torch.mm", lambda: torch.mm(x, weight.t()), ms)


def _norm(clock: Clock, limits: DeviceLimits, rows: int, hidden: int) -> None:
    x, weight = torch.randn(rows, hidden, device=clock.device), torch.ones(hidden, device=clock.device)
    out = torch.empty(rows, hidden, dtype=torch.bfloat16, device=clock.device)
    ms = clock.milliseconds(lambda: kernels.rmsnorm(x, weight, 1e-6, out=out))
    _share(f"norm of {rows} rows", ms, limits.bytes_per_second, rows * hidden * 6, "of copy bandwidth")
    if clock.real:
        with a_peers("Liger"):
            _beside(clock, f"norm of {rows} rows", "Liger", peers.liger_norm(x, weight, 1e-6), ms)


def _sample(clock: Clock, limits: DeviceLimits, rows: int, vocab: int) -> None:
    logits = torch.randn(rows, vocab, device=clock.device) * 4
    floats = {name: torch.full((rows,), value, device=clock.device) for name, value in (("t", 0.8), ("p", 0.9))}
    ints = torch.zeros(rows, dtype=torch.int32, device=clock.device)
    scratch = torch.empty(scratch_floats(rows, vocab), device=clock.device)
    tokens, logprobs, totals = ints.clone(), torch.empty_like(floats["t"]), torch.empty_like(floats["t"])
    seeds = torch.arange(rows, dtype=torch.int64, device=clock.device)
    for name, top_k in (("temperature and top-p", 0), ("top-k 40 and top-p", 40)):
        top = ints + top_k

        def draw(top: torch.Tensor = top) -> None:
            kernels.sample(
                logits, floats["t"], top, floats["p"], torch.zeros_like(floats["t"]), seeds, ints, ints,
                scratch=scratch, tokens=tokens, logprobs=logprobs, log_totals=totals,
            )  # fmt: skip

        ms, once = clock.milliseconds(draw), logits.numel() * 4
        _share(
            f"sampling {rows} rows, {name}", ms, limits.bytes_per_second, once, "of copy bandwidth, logits read once"
        )


def _pages(clock: Clock, limits: DeviceLimits, count: int) -> None:
    shape = kernels.GpuPageShape(32, 8, 128) if clock.real else kernels.GpuPageShape(2, 1, 32)
    pool = torch.randint(256, (count * shape.page_bytes,), dtype=torch.uint8, device=clock.device)
    pages = torch.randperm(count, generator=torch.Generator().manual_seed(1)).int().to(clock.device)
    length = shape.page_bytes // 2
    block = torch.empty(count, length, dtype=torch.uint8, device=clock.device)
    sums = torch.empty(count, dtype=torch.int64, device=clock.device)
    ms = clock.milliseconds(lambda: kernels.read_spans(pool, shape.page_bytes, 0, pages, out=block, sums=sums))
    _share("pages out of the pool, checksummed", ms, limits.bytes_per_second, 2 * count * length, "of copy bandwidth")
