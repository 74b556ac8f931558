"""One Envoy of the mesh, as `baton envoy render` understood its options and the settings of the service beside it."""

from dataclasses import dataclass

from cli.envoy.members import DIALS, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    own: Member
    members: tuple[Member, ...]  # all of the mesh, this one among them
    trust_domain: str
    listen: str  # where clients or the other members' Envoys connect
    certificate: str  # the identity: PEM files as Envoy sees them
    key: str
    ca: str
    secrets: str = ""  # folder of `baton envoy secrets`; with it Envoy takes renewed certificates without a restart
    outbound: str = ""  # the service's `sidecar`; empty at the edge, which has no service beside it
    local_grpc: str = ""  # where the service itself listens
    local_registry: str = ""  # where workers register; gateways only
    local_http: str = ""  # gateways only
    public_certificate: str = ""  # what the edge shows to clients
    public_key: str = ""
    routes: tuple[str, ...] = ()  # further paths that clients may reach, beside the API
    admin: str = "127.0.0.1:9901"
    probe: str = ""  # plain-text listener for health checks and scrapes; empty: none
    collector: str = ""  # host:port of an OTLP collector over gRPC; empty: no spans
    sampled_percent: float = 100.0
    access_log: str = "/dev/stdout"
    heap_bytes: int = 256 * 2**20
    connections: int = 1024
    body_bytes: int = 4 * 2**20  # the edge takes no larger request

    @property
    def is_edge(self) -> bool:
        return self.own.tier == "edge"

    def tier(self, *tiers: str) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.tier in tiers)

    def peers(self) -> tuple[Member, ...]:
        """The members that the process beside this Envoy dials."""
        return tuple(member for member in self.tier(*DIALS[self.own.tier]) if member != self.own)

    def identities(self, *tiers: str) -> tuple[str, ...]:
        return tuple(member.identity(self.trust_domain) for member in self.tier(*tiers))
