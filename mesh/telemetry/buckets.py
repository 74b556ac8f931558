"""The upper bounds of all histograms on `GET /metrics`; +Inf is added to each.

Those of `vllm:*` and `gen_ai_*` histograms are fixed by others: dashboards compute with exactly these bounds. The rest
is ours: seconds, unless the name says otherwise. Workers send counts without bounds: both ends take them from
here."""

Buckets = tuple[float, ...]


def one_two_five(most: float) -> Buckets:
    """1, 2, 5, 10, 20, 50 … up to `most`."""
    return tuple(float(m * 10**e) for e in range(12) for m in (1, 2, 5) if m * 10**e <= most)


# vLLM's
LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
REQUEST_TOKENS = one_two_five(10_000_000)
# those of OpenTelemetry's conventions for generative AI
OTEL_DURATION = tuple(round(0.01 * 2**power, 2) for power in range(14))  # 0.01 … 81.92
OTEL_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
OTEL_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
# ours
STAGE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STEP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
MICRO = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025)
DELAY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
