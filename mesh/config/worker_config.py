"""The settings of a worker, of both tiers and of each, checked when they are made.

`mesh/config/settings.py` fills them from one TOML file and BATON_* variables; every error names the field and the
remedy."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mesh.config.common_config import CommonConfig
from mesh.config.config_checks import (
    ConfigError,
    check_address,
    check_behind_sidecar,
    check_choice,
    check_choice_on,
    check_range,
    check_seconds,
    split_address,
)

SPECULATION = ("auto", "draft", "lookup", "off")
PRODUCT_PATHS = {"cpu": ("auto", "auto-amx", "fp32", "pairs", "amx"), "cuda": ("auto", "fast")}  # by device
ROUNDED = ("int8", "int4")  # what weights are rounded to
KV_DTYPES = {"cpu": ("auto", "int8", "fp8", "int4"), "cuda": ("auto",)}  # by device
PAGE_TOKENS = (16, 32, 64)
TRANSPORTS = {"cpu": ("shm", "rdma", "tcp"), "cuda": ("cuda_ipc", "nccl")}
UNENCRYPTED = ("rdma", "nccl")  # transports between hosts that cannot use TLS
WILDCARDS = ("0.0.0.0", "::")


def most_threads() -> int:
    """The most compute threads of one worker, as the kernels have it."""
    return 4 * (os.cpu_count() or 1) + 4


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(CommonConfig):
    """Settings of both tiers: `[worker]` in the file. The section of a tier overrides them."""

    address: str = "127.0.0.1:0"  # port 0: any free one; the gateways learn it when the worker registers
    advertise_host: str = ""  # what others dial instead of the host of `address`; empty: that host
    advertise_port: int = 0  # what others dial instead of the port of `address`; 0: that port
    gateways: tuple[str, ...] = ("127.0.0.1:50052",)  # their worker_address
    device: str = "cpu"  # cpu | cuda: where the model is computed and its pages lie
    product_path: str = "auto"  # auto: an exact one; on a CPU pairs for bf16 checkpoints, fp32 for the others
    quantize: str = ""  # int8 | int4: weights are rounded to it when they are loaded; empty: they stay as they are
    kv_dtype: str = "auto"  # int8 | fp8 | int4: pages hold codes of keys and values; auto: as the model's folder says
    page_tokens: int = 32
    pool_pages: int | None = None  # None: as many as fit into pool_bytes
    pool_bytes: int = 256 * 1024 * 1024
    memory_share: float = 0.0  # share of the device's memory for weights and pages, over pool_bytes; 0: pool_bytes
    chunk_tokens: int = 512  # tokens of one prompt in one step, at most
    threads: int = 0  # 0: this host's cores divided by workers_on_host
    workers_on_host: int = 1
    worker_on_host: int = 0  # this worker's number among them
    pin_threads: bool = False  # each compute thread stays on a core of its own
    prefix_cache: bool = True
    max_loras: int = 16  # adapters in memory at one time; idle ones make room for others
    max_lora_rank: int = 256  # largest rank of an adapter that is loaded
    lora_bytes: int = 1 << 30  # memory of all adapters together
    speculation: str = "auto"  # auto: with the draft if there is one, else prompt lookup; draft | lookup | off
    transports: tuple[str, ...] | None = None  # allowed transports, best first; None: all of the device
    transport_host: str = "127.0.0.1"  # where tcp, rdma and nccl listen; a wildcard: others dial `advertise_host`
    trace_steps: int = 100  # one engine step in this number is recorded for traces; 0: none
    drain_seconds: float = 30.0  # longest time between SIGTERM and the end of its sessions

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address("address", self.address)
        check_behind_sidecar("address", self.address, self.sidecar)
        check_range("advertise_port", self.advertise_port, 0, 65535)
        if not self.advertise_host and split_address(self.address)[0] in WILDCARDS:
            raise ConfigError(
                f"address: {self.address} listens on every interface; set advertise_host to the name or address of "
                "this host that the other services dial"
            )
        if ":" in self.advertise_host and not re.fullmatch(r"\[[^]]+\]", self.advertise_host):
            raise ConfigError(
                f"advertise_host: {self.advertise_host!r} is more than a host; write a name or an address without a "
                "port, an IPv6 address in brackets; the port is advertise_port"
            )
        if not self.gateways:
            raise ConfigError("gateways: name at least one gateway as host:port, for instance 127.0.0.1:50052")
        for gateway in self.gateways:
            check_address("gateways", gateway)
        check_choice("device", self.device, tuple(TRANSPORTS))
        if not self.allowed_transports:
            raise ConfigError(f"transports: allow at least one of {', '.join(TRANSPORTS[self.device])}")
        for transport in self.allowed_transports:
            check_choice_on("transports", transport, TRANSPORTS, self.device)
        check_choice_on("product_path", self.product_path, PRODUCT_PATHS, self.device)
        check_choice_on("kv_dtype", self.kv_dtype, KV_DTYPES, self.device)
        check_choice("quantize", self.quantize, ("", *ROUNDED))
        if self.quantize and (self.device != "cpu" or self.product_path not in ("auto", "auto-amx")):
            problem = (
                f"device {self.device!r} and product_path {self.product_path!r} compute with the weights as they are"
            )
            remedy = 'set device = "cpu" and product_path = "auto" or "auto-amx", or leave it out'
            raise ConfigError(f"quantize: {problem}; {remedy}")
        check_choice("speculation", self.speculation, SPECULATION)
        if self.speculation == "draft" and self.model is not None and self.draft is None:
            raise ConfigError('speculation: "draft" needs a draft model; set `draft` to its folder, or take "auto"')
        if self.page_tokens not in PAGE_TOKENS:
            raise ConfigError(f"page_tokens: {self.page_tokens} is not one of {', '.join(map(str, PAGE_TOKENS))}")
        if self.pool_pages is not None:
            check_range("pool_pages", self.pool_pages, 1, 1 << 31)
        check_range("pool_bytes", self.pool_bytes, 1, 1 << 50)
        if not 0.0 <= self.memory_share <= 1.0:
            raise ConfigError(f"memory_share: {self.memory_share} is not between 0 and 1")
        if self.memory_share and self.pool_pages is not None:
            raise ConfigError("memory_share: pool_pages sets the pool's size too; leave one of them out")
        check_range("max_loras", self.max_loras, 1, 4096)
        check_range("max_lora_rank", self.max_lora_rank, 1, 256)
        check_range("lora_bytes", self.lora_bytes, 1, 1 << 50)
        if self.adapters and self.device != "cpu":
            names = ", ".join(each.name for each in self.adapters)
            raise ConfigError(f'adapters: {names}: device {self.device!r} computes no adapters; set device = "cpu"')
        check_range("chunk_tokens", self.chunk_tokens, 1, 1 << 20)
        check_range("threads", self.threads, 0, most_threads())
        check_range("workers_on_host", self.workers_on_host, 1, 4096)
        check_range("worker_on_host", self.worker_on_host, 0, self.workers_on_host - 1)
        check_range("trace_steps", self.trace_steps, 0, 1_000_000)
        check_seconds("drain_seconds", self.drain_seconds)

    @property
    def draft_folder(self) -> Path | None:
        """The draft model that this worker loads; its layers lie in the pages behind the model's."""
        return self.draft if self.speculation in ("auto", "draft") else None

    @property
    def allowed_transports(self) -> tuple[str, ...]:
        """The transports that the setting names; by default all of the device, but with TLS none in plain text."""
        if self.transports is not None:
            return self.transports
        return tuple(name for name in TRANSPORTS[self.device] if self.tls_ca is None or name not in UNENCRYPTED)

    @property
    def thread_count(self) -> int:
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.workers_on_host)

    @property
    def all_cores(self) -> bool:
        """Whether it computes on every core that its host has for workers."""
        return self.device == "cpu" and self.thread_count >= len(os.sched_getaffinity(0))

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of the compute threads, next to those of the worker before this one; empty: no pinning."""
        if not self.pin_threads:
            return ()
        allowed, count = sorted(os.sched_getaffinity(0)), self.thread_count
        return tuple(allowed[(self.worker_on_host * count + i) % len(allowed)] for i in range(count))

    def pages(self, page_bytes: int, *, memory_bytes: int, weights_bytes: int) -> int:
        """How many pages of `page_bytes` the pool has. Workers of one host share the weights there, which they map, and
        divide what the share leaves; a GPU's share is this worker's alone."""
        room, key = self.pool_bytes, "pool_bytes"
        if self.memory_share:
            workers = self.workers_on_host if self.device == "cpu" else 1
            room, key = (int(self.memory_share * memory_bytes) - weights_bytes) // workers, "memory_share"
        pages = self.pool_pages or room // page_bytes
        if pages < 1:
            raise ConfigError(f"{key}: the pool's {max(room, 0)} bytes hold no page of {page_bytes} bytes; raise {key}")
        return pages


@dataclass(frozen=True, kw_only=True)
class PrefillConfig(WorkerConfig):
    name: str = "prefill"
    step_tokens: int = 512  # rows of one step, of all prompts together
    layer_group: int | None = None  # layers pushed together; None: a quarter, up to a third in steps of few rows

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("step_tokens", self.step_tokens, 1, 1 << 20)
        if self.step_tokens < self.chunk_tokens:
            raise ConfigError(f"step_tokens: {self.step_tokens} is less than chunk_tokens ({self.chunk_tokens})")
        if self.layer_group is not None:
            check_range("layer_group", self.layer_group, 1, 1024)


@dataclass(frozen=True, kw_only=True)
class DecodeConfig(WorkerConfig):
    name: str = "decode"
    max_batch: int = 64  # requests in one step
    itl_target_ms: float = 80.0  # a step with chunks of prompts stays below; 0: chunks have their full size
    draft_tokens: int = 8  # tokens proposed for one request in one step, at most
    may_kill: bool = True  # kill a silent prefill process of this host, so that quarantined pages come back

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("max_batch", self.max_batch, 1, 4096)
        if not 0.0 <= self.itl_target_ms <= 60_000.0:
            raise ConfigError(f"itl_target_ms: {self.itl_target_ms:g} is not between 0 and 60000; 0 sets no target")
        check_range("draft_tokens", self.draft_tokens, 1, 64)
