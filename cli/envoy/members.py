"""The members of a mesh behind sidecars: who they are, where they are dialled, and which of them dials which.

A member's identity is a SPIFFE id, `spiffe://TRUST-DOMAIN/TIER/NAME`: its certificate carries it as a URI. Every Envoy
of a mesh is rendered from the same list of members."""

import re
from dataclasses import dataclass

from mesh.config.config_checks import ConfigError, check_address

TIERS = ("edge", "gateway", "prefill", "decode")
# The tiers that a process of each tier dials: clients' requests, Attach, Register, and the sessions of hand-offs.
DIALS = {
    "edge": ("gateway",),
    "gateway": ("prefill", "decode"),
    "prefill": ("gateway", "decode"),
    "decode": ("gateway",),
}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")  # what stands in a path, a URI and a statistic alike
_TRUST_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Member:
    tier: str
    name: str
    address: str  # host:port that the other members dial, exactly as they write it

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ConfigError(f"--peer {self}: {self.tier!r} is no tier; take one of {', '.join(TIERS)}")
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"--peer {self}: {self.name!r} is no name; use letters, digits, dots and dashes")
        check_address(f"--peer {self.tier}/{self.name}", self.address)
        if self.address.endswith(":0"):
            raise ConfigError(f"--peer {self}: port 0 cannot be dialled; name the port on which its sidecar listens")

    def __str__(self) -> str:
        return f"{self.path}={self.address}"

    @property
    def path(self) -> str:
        """TIER/NAME: unique in a mesh, and the name of the member's cluster."""
        return f"{self.tier}/{self.name}"

    def identity(self, trust_domain: str) -> str:
        return f"spiffe://{trust_domain}/{self.path}"


def parse_member(text: str) -> Member:
    path, equals, address = text.partition("=")
    tier, slash, name = path.partition("/")
    if not equals or not slash:
        raise ConfigError(f"--peer {text}: write TIER/NAME=HOST:PORT, for instance decode/decode-1=decode-1:7000")
    return Member(tier.strip(), name.strip(), address.strip())


def parse_members(texts: list[str]) -> tuple[Member, ...]:
    """The members in the order of their tiers. ConfigError where two share a name or an address."""
    members = sorted((parse_member(text) for text in texts), key=lambda member: TIERS.index(member.tier))
    for what, attribute in (("tier and name", "path"), ("address", "address")):
        seen = dict[str, Member]()
        for member in members:
            value = getattr(member, attribute)
            if value in seen:
                raise ConfigError(f"--peer {member}: {seen[value]} has the same {what}; each member needs its own")
            seen[value] = member
    return tuple(members)


def check_trust_domain(trust_domain: str) -> None:
    if not _TRUST_DOMAIN.fullmatch(trust_domain):
        raise ConfigError(f"--trust-domain: {trust_domain!r} is none; use small letters, digits, dots and dashes")
