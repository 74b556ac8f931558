"""Builds a Proxy from the mesh's settings and the options of `baton envoy render`, and refuses what cannot work.

The settings are those of the service beside the Envoy: where it listens, which gateways it dials, what it advertises.
They must agree with the list of members, because the mesh finds its peers by exact addresses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cli.envoy.members import TIERS, Member, check_trust_domain, parse_members
from cli.envoy.proxy import Proxy
from mesh.config.config_checks import ConfigError, check_address, split_address
from mesh.config.services import GatewayConfig
from mesh.config.settings import Settings
from mesh.config.worker_config import WorkerConfig

SERVICES: dict[str, Callable[[Settings], GatewayConfig | WorkerConfig]] = {
    "edge": Settings.gateway,  # it has no section of its own; the certificates and the collector are the mesh's
    "gateway": Settings.gateway,
    "prefill": Settings.prefill,
    "decode": Settings.decode,
}
_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """The options as the command line has them; None or empty: not given."""

    role: str
    name: str | None
    peers: list[str]
    trust_domain: str
    certificate: Path | None
    key: Path | None
    ca: Path | None
    secrets: Path | None
    public_certificate: Path | None
    public_key: Path | None
    listen: str | None
    admin: str
    probe: str | None
    collector: str | None
    sampled_percent: float
    routes: list[str]
    access_log: Path
    heap_mebibytes: int
    connections: int
    body_mebibytes: int


def proxy_of(options: RenderOptions, settings: Settings) -> Proxy:
    if options.role not in TIERS:
        raise ConfigError(f"--role: {options.role!r} is not one of {', '.join(TIERS)}")
    check_trust_domain(options.trust_domain)
    config = SERVICES[options.role](_relevant(settings, options))
    members = parse_members(options.peers)
    name = options.name or ("edge" if options.role == "edge" else config.name)
    own = _own(members, options.role, name)
    files = (options.certificate or config.tls_certificate, options.key or config.tls_key, options.ca or config.tls_ca)
    certificate, key, ca = (_file(option, file) for option, file in zip(_FILES, files, strict=True))
    listen = options.listen or f"0.0.0.0:{split_address(own.address)[1]}"
    proxy = Proxy(
        own=own,
        members=members,
        trust_domain=options.trust_domain,
        listen=listen,
        certificate=certificate,
        key=key,
        ca=ca,
        secrets=str(options.secrets or ""),
        public_certificate=str(options.public_certificate or certificate),
        public_key=str(options.public_key or key),
        outbound="" if options.role == "edge" else config.sidecar,
        local_grpc="" if options.role == "edge" else _local_grpc(config),
        local_registry=_local_registry(config) if options.role == "gateway" else "",
        local_http=config.http_address if options.role == "gateway" and isinstance(config, GatewayConfig) else "",
        routes=tuple(options.routes),
        admin=options.admin,
        probe=options.probe or "",
        collector=_collector(options.collector or config.otlp_endpoint),
        sampled_percent=options.sampled_percent,
        access_log=str(options.access_log),
        heap_bytes=options.heap_mebibytes * _MEBIBYTE,
        connections=options.connections,
        body_bytes=options.body_mebibytes * _MEBIBYTE,
    )
    _check(proxy, options)
    if isinstance(config, WorkerConfig):
        _check_worker(proxy, config)
    return proxy


_FILES = ("certificate", "key", "ca")


def _relevant(settings: Settings, options: RenderOptions) -> Settings:
    """The settings without those whose files need not exist where this command runs."""
    ignored = {"model", "draft"}
    if options.certificate and options.key and options.ca:
        ignored |= {f"tls_{name}" for name in _FILES}
    return Settings(tuple(value for value in settings.values if value.key not in ignored))


def _own(members: tuple[Member, ...], role: str, name: str) -> Member:
    for member in members:
        if (member.tier, member.name) == (role, name):
            return member
    known = ", ".join(member.path for member in members) or "none"
    raise ConfigError(
        f"--peer: {role}/{name} itself is not among the members ({known}); add --peer {role}/{name}=HOST:PORT with the "
        "address that others dial"
    )


def _file(option: str, file: Path | None) -> str:
    if file is None:
        raise ConfigError(f"--{option}: is missing; name the PEM file as this Envoy sees it, or set tls_{option}")
    return str(file)


def _local_grpc(config: GatewayConfig | WorkerConfig) -> str:
    if not config.sidecar:
        raise ConfigError(
            "sidecar: is not set; give the service beside this Envoy a loopback address for its calls, for instance "
            'sidecar = "127.0.0.1:15001"'
        )
    if isinstance(config, GatewayConfig):
        return _with_port("grpc_address", config.grpc_address)
    return _with_port("address", config.address)


def _local_registry(config: GatewayConfig | WorkerConfig) -> str:
    assert isinstance(config, GatewayConfig)
    return _with_port("worker_address", config.worker_address)


def _with_port(key: str, address: str) -> str:
    if address.endswith(":0"):
        raise ConfigError(f"{key}: {address} has no port yet; name the one on which the service listens on loopback")
    return address


def _collector(endpoint: str) -> str:
    """host:port of the collector's address, which may be written as a URL."""
    if not endpoint:
        return ""
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    if parts.scheme != "http":
        raise ConfigError(
            f"--otlp: {endpoint} asks for TLS; Envoy sends its spans in plain text, to a collector nearby"
        )
    check_address("--otlp", parts.netloc)
    return parts.netloc


def _check(proxy: Proxy, options: RenderOptions) -> None:
    taken = dict[int, str]()
    for name, address in (
        ("--listen", proxy.listen),
        ("--admin", proxy.admin),
        ("--probe", proxy.probe),
        ("sidecar", proxy.outbound),
        ("the service's own port", proxy.local_grpc),
        ("worker_address", proxy.local_registry),
        ("http_address", proxy.local_http),
    ):
        if not address:
            continue
        check_address(name, address)
        port = split_address(address)[1]
        if port in taken:
            raise ConfigError(
                f"{name}: {address} takes the port of {taken[port]}; all of one host need different ports"
            )
        taken[port] = f"{name} {address}" if name.startswith("--") else name
    if not proxy.tier("gateway"):
        raise ConfigError("--peer: no member is a gateway; add --peer gateway/gateway=HOST:PORT")
    if proxy.routes and proxy.own.tier not in ("edge", "gateway"):
        raise ConfigError(f"--route: {proxy.routes[0]} is for the edge and the gateways; workers serve no clients")
    for path in proxy.routes:
        if not path.startswith("/"):
            raise ConfigError(f"--route: {path!r} does not begin with a slash")
    if (options.public_certificate is None) != (options.public_key is None):
        raise ConfigError("--public-certificate and --public-key go together")
    if options.public_certificate and not proxy.is_edge:
        raise ConfigError(f"--public-certificate: clients meet the edge only, not {proxy.own.path}")
    if not 0 <= proxy.sampled_percent <= 100:
        raise ConfigError(f"--sample-percent: {proxy.sampled_percent} is not between 0 and 100")


def _check_worker(proxy: Proxy, config: WorkerConfig) -> None:
    gateways = [member.address for member in proxy.tier("gateway")]
    for address in config.gateways:
        if address not in gateways:
            raise ConfigError(
                f"gateways: {address} is the address of no --peer gateway/NAME ({', '.join(gateways)}); the sidecar "
                "would refuse it"
            )
    host, port = config.address.rpartition(":")[0], config.address.rpartition(":")[2]
    advertised = f"{config.advertise_host or host}:{config.advertise_port or port}"
    if advertised != proxy.own.address:
        raise ConfigError(
            f"advertise_host: the worker would advertise {advertised}, but --peer says {proxy.own}; set "
            "advertise_host and advertise_port to that address"
        )
