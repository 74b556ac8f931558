"""The options by which `baton chat` and `baton generate` reach a mesh with TLS.

They are the settings of the same names: an option wins over the environment (BATON_TLS_CA ...), and that over the file
of --config, whose other settings a client does not read."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from mesh.config.common_config import TlsConfig
from mesh.config.settings import read_settings

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file of the mesh: its tls_* settings count.")]
TlsCertificate = Annotated[
    Path | None, typer.Option(help="Certificate (PEM) to show to a gateway with TLS; needs --tls-key and --tls-ca too.")
]
TlsKey = Annotated[Path | None, typer.Option(help="Private key (PEM) of the certificate.")]
TlsCa = Annotated[Path | None, typer.Option(help="Authority (PEM) that signs the certificates of the mesh.")]
TlsName = Annotated[
    str | None, typer.Option(help="Name in the gateway's certificate, if that is not the host of --address.")
]


def client_config(
    file: Path | None, certificate: Path | None, key: Path | None, authority: Path | None, name: str | None
) -> TlsConfig:
    """The checked settings of a client: options, environment, file."""
    flags = {"tls_certificate": certificate, "tls_key": key, "tls_ca": authority, "tls_name": name}
    # As the gateway's: they win over its own section of the file.
    overrides = {f"gateway.{key}": str(value) for key, value in flags.items() if value is not None}
    return read_settings(file, os.environ, overrides).client()


def tls_arguments(config: TlsConfig) -> str:
    """The options for a client of this gateway, as a shell takes them; empty without TLS."""
    options: list[str] = []
    for key in ("tls_certificate", "tls_key", "tls_ca", "tls_name"):
        if value := getattr(config, key):
            options += [f"--{key.replace('_', '-')}", str(value)]
    return f" {shlex.join(options)}" if options else ""
