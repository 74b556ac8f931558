"""The settings of each service: one frozen value per service, checked when it is made.

`mesh/settings.py` fills them from one TOML file and BATON_* variables; tests and benchmarks build them by hand. Every
error names the field and the remedy. Nothing here opens a file or a port, and protocol rules are not configurable."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from mesh.config_checks import (
    ConfigError,
    check_address,
    check_apart,
    check_behind_sidecar,
    check_choice,
    check_choice_on,
    check_host_names,
    check_processes,
    check_range,
    check_tls,
    is_loopback,
    split_address,
)
from mesh.door_config import DoorConfig
from mesh.model_config import (
    BUILTIN_NAME,
    REASONING_FORMATS,
    TOOL_FORMATS,
    ServedModelConfig,
    check_folder,
    check_models,
    names_of,
)

__all__ = ["BUILTIN_NAME", "ConfigError", "split_address"]  # of other files, for everyone who reads settings

LOG_FORMATS = ("text", "json")
LOCAL_MODES = ("auto", "never", "always")
METRICS_COMPAT = ("vllm", "none")
SPECULATION = ("auto", "draft", "lookup", "off")
PRODUCT_PATHS = {"cpu": ("auto", "fp32", "pairs", "amx"), "cuda": ("auto", "fast")}  # by device
PAGE_TOKENS = (16, 32, 64)
TRANSPORTS = {"cpu": ("shm", "tcp"), "cuda": ("cuda_ipc", "nccl")}
UNENCRYPTED = ("nccl",)  # transports between hosts that cannot use TLS
WILDCARDS = ("0.0.0.0", "::")


def default_cache_folder() -> Path:
    """The folder for packed weights; every process of the host should use the same one."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton"


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Settings of every process that dials or serves a port of the mesh; its clients have no others."""

    tls_certificate: Path | None = None  # PEM: what this process shows its peers; None, as the next two: plain text
    tls_key: Path | None = None  # PEM: the certificate's private key
    tls_ca: Path | None = None  # PEM: the authority that signs every peer's certificate
    tls_name: str = ""  # name that every server's certificate carries; empty: the host that was dialled

    def __post_init__(self) -> None:
        check_tls(tls_certificate=self.tls_certificate, tls_key=self.tls_key, tls_ca=self.tls_ca)


@dataclass(frozen=True, kw_only=True)
class CommonConfig(TlsConfig):
    """Settings of every service: the top-level keys of the file."""

    name: str = "baton"  # name of this process in logs and traces
    mesh_token_file: Path | None = None  # the secret of this mesh, which its services show each other; None: none
    sidecar: str = ""  # where this process's own Envoy takes its gRPC calls to peers; empty: it dials them itself
    model: Path | None = None  # Hugging Face folder; None: the built-in pair
    draft: Path | None = None  # Hugging Face folder of a small model with the same tokenizer; None: no draft
    context_tokens: int = 0  # tokens of a prompt and its answer, at most; 0: as many as the model allows
    served_name: tuple[str, ...] = ()  # the model's names for clients; empty: the folder's name
    cache_folder: Path = field(default_factory=default_cache_folder)
    otlp_endpoint: str = ""  # OTLP gRPC collector of the gateway, http://host:4317; empty: traces stay at the gateway
    metrics: bool = True  # workers measure for their gateways; the gateway serves /metrics
    log_format: str = "text"  # text | json: JSON lines with the ids of traces

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sidecar:
            check_address("sidecar", self.sidecar)
            if not is_loopback(self.sidecar):
                raise ConfigError(
                    f"sidecar: {self.sidecar} is not on the loopback of this host; calls to the sidecar are plain "
                    "text, so it must listen on 127.0.0.1"
                )
        check_folder("model", self.model)
        check_folder("draft", self.draft)
        check_range("context_tokens", self.context_tokens, 0, 1 << 27)
        check_choice("log_format", self.log_format, LOG_FORMATS)

    @property
    def own_name(self) -> str:
        """The name of this process, which no other one of the mesh has."""
        return self.name

    @property
    def model_name(self) -> str:
        """The model's first name: for logs and metrics, and by which a worker presents it."""
        return names_of(self.model, self.served_name)[0]


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(DoorConfig, CommonConfig):
    name: str = "gateway"
    http_address: str = "127.0.0.1:8000"
    http_hosts: tuple[str, ...] = ()  # names that the HTTP API answers to; empty: see gateway/http/hosts.py
    grpc_address: str = "127.0.0.1:50051"  # where clients call the gRPC API
    worker_address: str = "127.0.0.1:50052"  # where workers register; clients have no business here
    processes: int = 1  # gateway processes that share the ports of clients; each has a port for workers, one after one
    process: int | None = None  # number of this process among them, from 0; None: it starts and keeps all of them
    grpc_message_bytes: int = 4 * 1024 * 1024  # largest message of a client; a larger one is refused unread
    grpc_streams: int = 1024  # calls of one connection at a time; further ones wait in the client
    local: str = "auto"  # whether decode workers prefill by themselves: auto | never | always
    max_waiting: int = 1024  # choices without their first token; a request that brings more is refused at once
    ui: bool = True  # serve the page /ui, which shows the mesh at work
    metrics_compat: str = "vllm"  # vllm: /metrics has the names of vLLM besides our own | none
    tracing: bool = True  # record a trace of each request; false: nothing is recorded
    trace_share: float = 1.0  # share of the requests without an incoming trace context that are recorded
    slo_ttft_ms: int = 0  # limit of the time to the first token; traces flag requests that miss it; 0: none
    slo_itl_ms: int = 0  # limit of the 99th percentile of the time between tokens, likewise
    log_content: bool = False  # write prompts and outputs into the log
    tool_format: str = "auto"  # how the model writes tool calls: auto | none | hermes | mistral | llama3
    reasoning_format: str = "auto"  # how it marks its reasoning: auto | none | think | mistral
    client_templates: bool = True  # render chat templates that clients send, each in a process of its own
    models: tuple[ServedModelConfig, ...] = ()  # empty: the one that `model` names; else that is the first of these

    def __post_init__(self) -> None:
        DoorConfig.__post_init__(self)
        CommonConfig.__post_init__(self)
        check_address("http_address", self.http_address)
        check_address("grpc_address", self.grpc_address)
        check_address("worker_address", self.worker_address)
        check_apart("worker_address", self.worker_address, grpc_address=self.grpc_address)
        check_processes(
            self.processes,
            self.process,
            worker_address=self.worker_address,
            grpc_address=self.grpc_address,
            http_address=self.http_address,
        )
        check_host_names("http_hosts", self.http_hosts)
        if not 0.0 <= self.trace_share <= 1.0:
            raise ConfigError(f"trace_share: {self.trace_share} is not between 0 and 1")
        check_range("slo_ttft_ms", self.slo_ttft_ms, 0, 86_400_000)
        check_range("slo_itl_ms", self.slo_itl_ms, 0, 86_400_000)
        check_behind_sidecar("grpc_address", self.grpc_address, self.sidecar)
        check_behind_sidecar("worker_address", self.worker_address, self.sidecar)
        check_range("grpc_message_bytes", self.grpc_message_bytes, 1024, 64 * 1024 * 1024)
        check_range("grpc_streams", self.grpc_streams, 1, 1_000_000)
        check_choice("local", self.local, LOCAL_MODES)
        check_choice("metrics_compat", self.metrics_compat, METRICS_COMPAT)
        check_choice("tool_format", self.tool_format, TOOL_FORMATS)
        check_choice("reasoning_format", self.reasoning_format, REASONING_FORMATS)
        check_range("max_waiting", self.max_waiting, 0, 1_000_000)
        check_models(self.served)

    @property
    def served(self) -> tuple[ServedModelConfig, ...]:
        own = ("model", "served_name", "context_tokens", "tool_format", "reasoning_format")
        return self.models or (ServedModelConfig(**{key: getattr(self, key) for key in own}),)

    @property
    def worker_addresses(self) -> tuple[str, ...]:
        """Where workers register with each of the processes: one port behind the other."""
        host, _, port = self.worker_address.rpartition(":")
        return tuple(f"{host}:{int(port) + number}" for number in range(self.processes))

    @property
    def own_name(self) -> str:
        return self.name if self.processes == 1 or self.process is None else f"{self.name}-{self.process}"

    @property
    def own_worker_address(self) -> str:
        """Where workers register with this process."""
        return self.worker_addresses[self.process or 0]


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(CommonConfig):
    """Settings of both tiers: `[worker]` in the file. The section of a tier overrides them."""

    address: str = "127.0.0.1:0"  # port 0: any free one; the gateways learn it when the worker registers
    advertise_host: str = ""  # what others dial instead of the host of `address`; empty: that host
    advertise_port: int = 0  # what others dial instead of the port of `address`; 0: that port
    gateways: tuple[str, ...] = ("127.0.0.1:50052",)  # their worker_address
    device: str = "cpu"  # cpu | cuda: where the model is computed and its pages lie
    product_path: str = "auto"  # auto: an exact one; on a CPU pairs for bf16 checkpoints, fp32 for the others
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
    speculation: str = "auto"  # auto: with the draft if there is one, else prompt lookup; draft | lookup | off
    transports: tuple[str, ...] | None = None  # allowed transports, best first; None: all of the device
    transport_host: str = "127.0.0.1"  # where tcp and nccl listen; a wildcard: others dial `advertise_host`
    trace_steps: int = 100  # one of so many engine steps is recorded for traces; 0: none

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
        check_range("chunk_tokens", self.chunk_tokens, 1, 1 << 20)
        check_range("threads", self.threads, 0, 4096)
        check_range("workers_on_host", self.workers_on_host, 1, 4096)
        check_range("worker_on_host", self.worker_on_host, 0, self.workers_on_host - 1)
        check_range("trace_steps", self.trace_steps, 0, 1_000_000)

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
    draft_tokens: int = 8  # tokens proposed for one request in one step, at most
    may_kill: bool = True  # kill a silent prefill process of this host, so that quarantined pages come back

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("max_batch", self.max_batch, 1, 4096)
        check_range("draft_tokens", self.draft_tokens, 1, 64)


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """A whole mesh on this host: what `baton up` starts."""

    prefill_workers: int = 2
    decode_workers: int = 2
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    prefill: PrefillConfig = field(default_factory=PrefillConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    further: tuple["MeshConfig", ...] = ()  # the workers of each further model, at the same gateway

    def __post_init__(self) -> None:
        check_range("prefill_workers", self.prefill_workers, 0, 256)
        check_range("decode_workers", self.decode_workers, 1, 256)
        if self.prefill_workers == 0 and self.gateway.local == "never":
            raise ConfigError('prefill_workers: 0 with local = "never" leaves no worker to prefill; allow one of them')
        encrypted = {
            tier: config.tls_ca is not None
            for tier, config in (("gateway", self.gateway), ("prefill", self.prefill), ("decode", self.decode))
            if tier != "prefill" or self.prefill_workers
        }
        if len(set(encrypted.values())) == 2:
            with_tls, without = (" and ".join(t for t in encrypted if encrypted[t] is has) for has in (True, False))
            raise ConfigError(
                f"tls_ca: {with_tls} would speak TLS, {without} plain text; set tls_certificate, tls_key and tls_ca at "
                "the top of the file, for all services"
            )
        if len({each.mesh_token_file for each in (self.gateway, self.prefill, self.decode)}) > 1:
            raise ConfigError(
                "mesh_token_file: gateway and workers would show each other different tokens; set it at the top of the "
                "file, for all services"
            )
        if self.prefill_workers == 0:
            return
        for key in ("page_tokens", "draft"):
            prefill, decode = getattr(self.prefill, key), getattr(self.decode, key)
            if prefill != decode:
                raise ConfigError(
                    f"{key}: prefill has {prefill}, decode has {decode}; pages go from one to the other, so set it in "
                    f"[worker], for both"
                )

    @property
    def all_prefill_workers(self) -> int:
        return self.prefill_workers + sum(each.prefill_workers for each in self.further)

    @property
    def all_decode_workers(self) -> int:
        return self.decode_workers + sum(each.decode_workers for each in self.further)

    @property
    def workers(self) -> int:
        """Workers of all models."""
        return self.all_prefill_workers + self.all_decode_workers
