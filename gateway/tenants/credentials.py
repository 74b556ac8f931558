"""The credentials that a caller shows: a key in a header or in gRPC's metadata, or a client certificate.

Each request carries at most one key. A second header with another one is refused, since a proxy in front may have
checked the first and the gateway would bill the second."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mesh.errors import Unauthenticated

AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
MOST_BYTES = 4096  # length of the longest key


@dataclass(frozen=True, slots=True)
class CallerCredentials:
    key: bytes | None  # None: the request carries none
    certificate: frozenset[str] = frozenset()  # names in the client's verified certificate


def key_in(headers: Iterable[tuple[bytes, bytes]], *, basic: bool = False) -> bytes | None:
    """The one key that the headers carry; their names are in lower case. `basic`: it may be a browser's password."""
    found = dict[bytes, bytes]()
    for name, value in headers:
        if name not in (AUTHORIZATION, API_KEY):
            continue
        if name in found:
            raise Unauthenticated(f"the request has several headers {name.decode()}; send one")
        found[name] = value.strip() if name == API_KEY else _bearer(value, basic=basic)
    keys = set(found.values())
    if len(keys) > 1:
        raise Unauthenticated("authorization and x-api-key hold different keys; send one of them")
    key = keys.pop() if keys else None
    if key is not None and not 0 < len(key) <= MOST_BYTES:
        raise Unauthenticated(f"the key is empty or longer than {MOST_BYTES} bytes")
    return key


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Names in a verified certificate, as Python's ssl shows it: its common name, DNS names and URIs."""
    if not certificate:
        return frozenset()
    subject = [pair for parts in certificate.get("subject", ()) for pair in parts]
    names = {value for kind, value in subject if kind == "commonName"}
    names |= {value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")}
    return frozenset(names)


def _bearer(value: bytes, *, basic: bool) -> bytes:
    scheme, _, rest = value.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if basic and scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            raise Unauthenticated("the header authorization is not valid: its Basic value is no base64") from None
    raise Unauthenticated("the header authorization must be `Bearer KEY`")
