"""The settings of a gateway and of a whole mesh: frozen values, checked when they are made.

`mesh/config/settings.py` fills them, and those of workers (mesh/config/worker_config.py), from one TOML file and
BATON_* variables; tests and benchmarks build them by hand. Every error names the field and the remedy. Nothing here
opens a file or a port, and protocol rules are not configurable."""

from dataclasses import KW_ONLY, dataclass, field

from mesh.config.common_config import CommonConfig
from mesh.config.config_checks import (
    ConfigError,
    check_address,
    check_apart,
    check_behind_sidecar,
    check_choice,
    check_host_names,
    check_processes,
    check_range,
)
from mesh.config.door_config import DoorConfig
from mesh.config.model_config import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ServedModelConfig,
    check_models,
)
from mesh.config.worker_config import DecodeConfig, PrefillConfig

LOCAL_MODES = ("auto", "never", "always")
METRICS_COMPAT = ("vllm", "none")


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
    tool_format: str = "auto"  # how the model writes tool calls: auto | none | hermes | mistral | llama3 | harmony
    reasoning_format: str = "auto"  # how it marks its reasoning: auto | none | think | mistral | harmony
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
        own = ("model", "served_name", "adapters", "context_tokens", "tool_format", "reasoning_format")
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


@dataclass(frozen=True)
class MeshConfig:
    """A whole mesh on this host: what `baton up` starts. `mesh/config/arrangement.py` chooses numbers that are not
    set."""

    prefill_workers: int = 2
    decode_workers: int = 2
    _: KW_ONLY
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    prefill: PrefillConfig = field(default_factory=PrefillConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    further: tuple["MeshConfig", ...] = ()  # the workers of each further model, at the same gateway
    by_machine: bool = False  # no setting says how many workers there are

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
        if self.prefill.draft != self.decode.draft:
            raise ConfigError(
                f"draft: prefill has {self.prefill.draft}, decode has {self.decode.draft}; pages go from one to the "
                "other, so set it in [worker], for both"
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
