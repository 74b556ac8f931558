"""The settings that every service of the mesh has, checked when they are made: names, model, TLS, logs.

mesh/config/services.py and mesh/config/worker_config.py add what only gateways and only workers have."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from mesh.config.adapter_config import AdapterFolder, check_adapters
from mesh.config.config_checks import (
    ConfigError,
    check_address,
    check_choice,
    check_range,
    check_tls,
    is_loopback,
)
from mesh.config.model_config import (
    check_folder,
    names_of,
)

LOG_FORMATS = ("text", "json")


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
    adapters: tuple[AdapterFolder, ...] = ()  # LoRA adapters of the model, by the names that clients write
    cache_folder: Path = field(default_factory=default_cache_folder)
    otlp_endpoint: str = ""  # OTLP gRPC collector of the gateway, http://host:4317; empty: traces stay at the gateway
    metrics: bool = True  # workers measure for their gateways; the gateway serves /metrics
    log_format: str = "text"  # text | json: JSON lines with the ids of traces
    message_log: Path | None = None  # folder in which this process logs the protocol's messages; None: it does not

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
        check_adapters(self.adapters, names_of(self.model, self.served_name))
        check_choice("log_format", self.log_format, LOG_FORMATS)

    @property
    def own_name(self) -> str:
        """The name of this process, which no other one of the mesh has."""
        return self.name

    @property
    def model_name(self) -> str:
        """The model's first name: for logs and metrics, and by which a worker presents it."""
        return names_of(self.model, self.served_name)[0]
