"""`baton envoy render | secrets | certificates`: what it takes to put an Envoy in front of every service.

All commands of one mesh are given the same members, `--peer TIER/NAME=HOST:PORT` once for each; docs/envoy.md shows
them together."""

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.envoy.certificates import make_authority, make_certificate
from cli.envoy.members import check_trust_domain, parse_members
from cli.envoy.options import RenderOptions, proxy_of
from cli.envoy.render import render, render_secrets
from cli.errors import readable_errors
from cli.local_mesh.services import parse_settings
from cli.output import say, write
from mesh.config.config_checks import ConfigError
from mesh.config.settings import read_settings

app = typer.Typer(
    no_args_is_help=True,
    help="Put an Envoy in front of every service.\n\nExample: baton envoy render --role gateway --config baton.toml "
    "--peer gateway/gateway=gateway:50051 --peer decode/decode-1=decode-1:7000",
)

Peers = Annotated[
    list[str],
    typer.Option(
        "--peer",
        help="TIER/NAME=HOST:PORT of a member, this one among them: the address that others dial. Repeat it for each.",
    ),
]
TrustDomain = Annotated[str, typer.Option(help="Trust domain of the SPIFFE ids: spiffe://TRUST-DOMAIN/TIER/NAME.")]
Certificate = Annotated[Path, typer.Option(help="PEM file with the member's certificate, as Envoy sees it.")]
Key = Annotated[Path, typer.Option(help="PEM file with its private key.")]
Ca = Annotated[Path, typer.Option(help="PEM file with the authority that signs all members' certificates.")]
ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file of the service beside this Envoy: addresses, certificates.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE: one setting, over the file and the environment.")
]
Secrets = Annotated[
    Path | None, typer.Option(help="Folder of `baton envoy secrets`; with it Envoy takes renewed certificates.")
]


@app.command("render")
def render_command(
    role: Annotated[str, typer.Option(help="edge, gateway, prefill or decode.")],
    peer: Peers,
    name: Annotated[str | None, typer.Option(help="Name of this member; without it, the setting `name`.")] = None,
    config: ConfigFile = None,
    settings: Overrides = None,
    trust_domain: TrustDomain = "baton",
    certificate: Annotated[
        Path | None, typer.Option(help="This member's certificate, as Envoy sees it; without it, `tls_certificate`.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key; without it, `tls_key`.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The authority; without it, `tls_ca`.")] = None,
    secrets: Secrets = None,
    public_certificate: Annotated[
        Path | None, typer.Option(help="Edge: what clients are shown; without it, the member's certificate.")
    ] = None,
    public_key: Annotated[Path | None, typer.Option(help="Edge: the key of --public-certificate.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where others connect; without it, every interface and the port of its --peer.")
    ] = None,
    admin: Annotated[str, typer.Option(help="Envoy's admin port.")] = "127.0.0.1:9901",
    probe: Annotated[
        str | None,
        typer.Option(help="Address of a plain-text listener for health checks and Prometheus; without it, none."),
    ] = None,
    otlp: Annotated[
        str | None, typer.Option(help="OTLP collector over gRPC, host:port; without it, `otlp_endpoint`.")
    ] = None,
    sample_percent: Annotated[float, typer.Option(help="Requests to trace whose caller has not decided.")] = 100.0,
    route: Annotated[
        list[str] | None, typer.Option(help="Edge and gateway: a further path that clients may reach, as /ui.")
    ] = None,
    access_log: Annotated[Path, typer.Option(help="File for the access log.")] = Path("/dev/stdout"),
    heap_mib: Annotated[int, typer.Option(min=64, help="Memory in MiB; nearing it, Envoy refuses requests.")] = 256,
    connections: Annotated[int, typer.Option(min=1, help="Connections that may be open; more are refused.")] = 1024,
    body_mib: Annotated[int, typer.Option(min=1, max=32, help="Edge: MiB of the largest request.")] = 4,
) -> None:
    """Print the configuration of one Envoy.

    Example: baton envoy render --role decode --name decode-1 --config baton.toml --peer gateway/gateway=gateway:50051
    --peer prefill/prefill-1=prefill-1:7000 --peer decode/decode-1=decode-1:7000
    """
    options = RenderOptions(
        role=role,
        name=name,
        peers=peer,
        trust_domain=trust_domain,
        certificate=certificate,
        key=key,
        ca=ca,
        secrets=secrets,
        public_certificate=public_certificate,
        public_key=public_key,
        listen=listen,
        admin=admin,
        probe=probe,
        collector=otlp,
        sampled_percent=sample_percent,
        routes=route or [],
        access_log=access_log,
        heap_mebibytes=heap_mib,
        connections=connections,
        body_mebibytes=body_mib,
    )
    with readable_errors():
        write(render(proxy_of(options, read_settings(config, os.environ, parse_settings(settings or [])))))


@app.command("secrets")
def secrets_command(
    folder: Annotated[Path, typer.Argument(help="Where identity.yaml and authority.yaml are written.")],
    certificate: Certificate,
    key: Key,
    ca: Ca,
) -> None:
    """Write the files of the folder that --secrets names: Envoy then takes renewed certificates without a restart.

    Example: baton envoy secrets /etc/envoy --certificate /tls/certificate.pem --key /tls/key.pem --ca /tls/ca.pem
    """
    with readable_errors():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in render_secrets(str(certificate), str(key), str(ca)).items():
            (folder / name).write_text(text)


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="Where the authority and one folder per member are written.")],
    peer: Peers,
    trust_domain: TrustDomain = "baton",
    host: Annotated[
        list[str] | None, typer.Option(help="A further name or address that the certificates carry. Repeatable.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 30,
) -> None:
    """Make an authority and a certificate for each member, for trying out. An authority that is there is kept.

    Example: baton envoy certificates tls --peer gateway/gateway=gateway:50051 --peer decode/decode-1=decode-1:7000
    """
    with readable_errors():
        check_trust_domain(trust_domain)
        members = parse_members(peer)
        names = [member.name for member in members]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"--peer: two members are called {twice}; their folders need different names")
        make_authority(folder, days)
        for member in members:
            own = make_certificate(folder, member, trust_domain=trust_domain, hosts=host or (), days=days)
            say(f"{member.identity(trust_domain)}  {own}")
