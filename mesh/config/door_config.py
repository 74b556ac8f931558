"""The limits of the front door: settings of `[gateway]` that bound what one client may send and hold.

`GatewayConfig` in mesh/config/services.py inherits them. A front door takes a `DoorConfig` and nothing else of the
configuration, so a test builds one with a single limit changed."""

import re
from dataclasses import dataclass
from pathlib import Path

from mesh.config.config_checks import MAX_SECONDS, ConfigError, check_range, check_seconds, check_tls

MOST_DAYS = 3650.0


@dataclass(frozen=True, kw_only=True)
class DoorConfig:
    choices: int = 256  # prompts of one request times its n
    queue_seconds: float = 10.0  # a request that would wait longer behind others is refused at once; 0: none is
    prompt_tokens: int = 0  # tokens of one prompt; 0: what the model's context holds
    stop_strings: int = 16  # stop strings of one request
    max_logprobs: int = 20  # likeliest tokens that a request may list at each position; -1: the whole vocabulary
    strict_fields: bool = False  # true: a field that no endpoint knows is an error; false: it is named as ignored
    body_mib: int = 32  # size of one request's body, before and after it is inflated
    header_kib: int = 64  # request line and headers of one request
    header_seconds: float = 10.0  # from the first byte of a request, or of a connection, to the end of its headers
    body_seconds: float = 60.0  # from the end of the headers to the end of the body
    connections: int = 4096  # open HTTP connections
    reader_kib: int = 256  # tokens held for the client of one request, about; with more its generation pauses
    reader_seconds: float = 60.0  # a client that takes nothing for this time is disconnected
    keep_alive_seconds: float = 15.0  # an idle stream gets a comment after this time; 0: never
    drain_seconds: float = 30.0  # time between SIGTERM and the end of streams that still run
    keys_file: Path | None = None  # keys of the tenants, hashed (gateway/tenants/rows.py); None: every client is served
    load_adapters: bool = False  # without keys: every client may load and unload adapters; with keys operators may
    # Read without a key, with all below.
    keys_open_paths: tuple[str, ...] = ("/health", "/v1/health", "/version", "/v1/receipts/key")
    receipts_folder: Path | None = None  # key of the receipts and the receipts themselves; None: in `cache_folder`
    receipt_seconds: float = 3600.0  # for which a receipt can be fetched
    receipts_mib: int = 16  # disk for receipts that can be fetched; 0: none can
    responses_folder: Path | None = None  # responses that are stored; None: in `cache_folder`
    response_days: float = 30.0  # for which a stored response can be fetched and continued
    responses_mib: int = 64  # disk for stored responses; 0: none is stored
    files_folder: Path | None = None  # files of clients and their batches; None: in `cache_folder`
    file_days: float = 30.0  # for which files and batches are kept
    files_mib: int = 1024  # disk for files; 0: there are neither files nor batches
    files_share: float = 0.5  # the part of files_mib that one tenant's files may take
    batch_concurrency: int = 16  # requests of batches that one process has under way
    cors_origins: tuple[str, ...] = ()  # origins whose pages may call the API; "*": all
    http_tls_certificate: Path | None = None  # PEM: what HTTP clients are shown; None, as the next: plain HTTP
    http_tls_key: Path | None = None  # PEM: the certificate's private key
    http_tls_ca: Path | None = None  # PEM: the authority that signs HTTP clients; None: clients need no certificate

    def __post_init__(self) -> None:
        check_range("choices", self.choices, 1, 1_000_000)
        check_range("prompt_tokens", self.prompt_tokens, 0, 1 << 31)
        check_range("stop_strings", self.stop_strings, 0, 1024)
        check_range("max_logprobs", self.max_logprobs, -1, 1 << 24)
        check_range("body_mib", self.body_mib, 1, 1024)
        check_range("header_kib", self.header_kib, 1, 1024)
        check_range("connections", self.connections, 1, 1_000_000)
        check_range("receipts_mib", self.receipts_mib, 0, 1 << 20)
        check_range("responses_mib", self.responses_mib, 0, 1 << 20)
        check_range("files_mib", self.files_mib, 0, 1 << 24)
        check_range("batch_concurrency", self.batch_concurrency, 1, 4096)
        check_range("reader_kib", self.reader_kib, 4, 1 << 20)
        if not 0.0 < self.files_share <= 1.0:
            raise ConfigError(f"files_share: {self.files_share} is not above 0 and at most 1")
        for key in ("header_seconds", "body_seconds", "reader_seconds", "receipt_seconds"):
            if not 0.0 < (seconds := getattr(self, key)) <= MAX_SECONDS:
                raise ConfigError(f"{key}: {seconds} is not above 0 and at most {MAX_SECONDS:g}")
        for key in ("response_days", "file_days"):
            if not 0.0 < (days := getattr(self, key)) <= MOST_DAYS:
                raise ConfigError(f"{key}: {days} is not above 0 and at most {MOST_DAYS:g}")
        for key in ("queue_seconds", "keep_alive_seconds", "drain_seconds"):
            check_seconds(key, getattr(self, key))
        for origin in self.cors_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s,]+", origin):
                raise ConfigError(
                    f"cors_origins: {origin!r} is no origin; write scheme and host as browsers send them, for instance "
                    'https://chat.example.com without a slash at the end, or "*" for every page'
                )
        for path in self.keys_open_paths:
            if not re.fullmatch(r"(/[^/\s?#]+)+", path):
                raise ConfigError(
                    f"keys_open_paths: {path!r} is no path; write it as in a URL, with a slash at the beginning "
                    "and none at the end, for instance /metrics"
                )
        pair = {"http_tls_certificate": self.http_tls_certificate, "http_tls_key": self.http_tls_key}
        check_tls(**pair if self.http_tls_ca is None else pair | {"http_tls_ca": self.http_tls_ca})

    @property
    def body_bytes(self) -> int:
        return self.body_mib * 2**20

    @property
    def reader_bytes(self) -> int:
        return self.reader_kib * 1024

    @property
    def header_bytes(self) -> int:
        return self.header_kib * 1024
