"""The rows of a keys file: names of tenants, what each shows when it calls, and how much it may use.

A row is a line `NAME CREDENTIAL LIMIT=VALUE …`. A credential is the hash of a key, `sha256:HEX`, or a name in a client
certificate, `certificate:NAME`; the file never holds a key. A further row with the same name gives the tenant another
credential and no limits. `baton keys` writes rows (cli/keys.py), the gateway reads them (gateway/tenants/keys.py)."""

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mesh.config.config_checks import ConfigError

LEAST_PRIORITY, MOST_PRIORITY = -600, 600
MOST_NUMBER = 10**12
KEY_HASH, CERTIFICATE = "sha256:", "certificate:"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OPERATOR = "operator"
_SHORT_HASH = 8  # bytes of a hash by which rows are found

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    tokens_per_minute: int = 0  # prompts and answers together; 0: no limit
    burst_tokens: int = 0  # tokens that may be spent at once after a pause; 0: those of a minute
    concurrent: int = 0  # choices that run at a time; 0: no limit
    priority: int = 0  # seconds by which each request counts as younger
    priorities: tuple[int, int] = (0, MOST_PRIORITY)  # what a client may add to that by the field `priority`
    operator: bool = False  # may look at the pages that show operations
    salt_key: bytes = field(default=b"", repr=False)  # makes the salts of this tenant's block hashes

    @property
    def bucket_tokens(self) -> int:
        return self.burst_tokens or self.tokens_per_minute


LIMITS = tuple(each.name for each in fields(Tenant) if each.name not in ("name", "operator", "salt_key"))


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One line of the file, well formed."""

    name: str
    credential: str
    limits: tuple[str, ...]  # as they are written


@dataclass(frozen=True, slots=True, repr=False)
class KeyTable:
    """All rows of one file at one moment."""

    tenants: Mapping[str, Tenant]  # by name, in the order of the file
    _by_hash: Mapping[bytes, tuple[tuple[bytes, Tenant], ...]]  # by the beginning of the key's hash
    _by_certificate: Mapping[str, Tenant]

    def by_key(self, key: bytes) -> Tenant | None:
        """The tenant of this key. Time shows nothing of a stored hash: no caller can choose the hash of what it sends,
        and whole hashes are compared in constant time."""
        digest = hashlib.sha256(key).digest()
        for stored, tenant in self._by_hash.get(digest[:_SHORT_HASH], ()):
            if hmac.compare_digest(stored, digest):
                return tenant
        return None

    def by_certificate(self, names: frozenset[str]) -> Tenant | None:
        """The tenant of a verified certificate with these names; None: names of none, or of several."""
        found = {tenant for name in names if (tenant := self._by_certificate.get(name)) is not None}
        return found.pop() if len(found) == 1 else None

    @property
    def takes_certificates(self) -> bool:
        return bool(self._by_certificate)


def hash_of(key: str) -> str:
    """The credential of a key, as rows hold it."""
    return KEY_HASH + hashlib.sha256(key.encode()).hexdigest()


def read_rows(text: str, where: str) -> Iterator[KeyRow | None]:
    """Each line as a row; None: a comment or an empty line. Errors never repeat a credential: it could be a key."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            yield None
            continue
        place = f"{where}, line {number}"
        if not NAME.fullmatch(words[0]):
            raise ConfigError(f"{place}: a name is 1 to 64 letters, digits, dots, dashes and underscores")
        if len(words) < 2 or not _is_credential(words[1]):
            raise ConfigError(
                f"{place}: behind the name stands sha256: with 64 hexadecimal digits, or certificate: with a name; "
                "`baton keys add` writes such a line"
            )
        yield KeyRow(words[0], words[1], tuple(words[2:]))


def parse_table(text: str, where: str) -> KeyTable:
    """All rows, checked. `where` names the file in errors."""
    tenants = dict[str, Tenant]()
    hashes, certificates = dict[bytes, tuple[tuple[bytes, Tenant], ...]](), dict[str, Tenant]()
    for number, row in enumerate(read_rows(text, where), 1):
        if row is None:
            continue
        place = f"{where}, line {number}"
        if row.name not in tenants:
            tenants[row.name] = parse_tenant(row, place)
        elif row.limits:
            raise ConfigError(f"{place}: the limits of {row.name} stand in its first line; leave them out here")
        tenant, value = tenants[row.name], row.credential.partition(":")[2]
        if row.credential.startswith(CERTIFICATE):
            if value in certificates:
                raise ConfigError(f"{place}: an earlier line has this certificate")
            certificates[value] = tenant
            continue
        digest = bytes.fromhex(value)
        near = hashes.get(digest[:_SHORT_HASH], ())
        if any(stored == digest for stored, _ in near):
            raise ConfigError(f"{place}: an earlier line has this key")
        hashes[digest[:_SHORT_HASH]] = (*near, (digest, tenant))
    return KeyTable(tenants, hashes, certificates)


def parse_tenant(row: KeyRow, place: str) -> Tenant:
    """The tenant whose first row this is."""
    values: Json = {}
    for word in row.limits:
        name, given, value = word.partition("=")
        if name in values:
            raise ConfigError(f"{place}: {name} stands there twice")
        if word == OPERATOR:
            values[OPERATOR] = True
        elif name == "priorities":
            values[name] = _priorities(value, place)
        elif name == "priority":
            values[name] = _number(name, value, place, LEAST_PRIORITY, MOST_PRIORITY)
        elif name in LIMITS and given:
            values[name] = _number(name, value, place, 1, MOST_NUMBER)
        else:
            known = ", ".join(f"{limit}=…" for limit in LIMITS)
            raise ConfigError(f"{place}: a word behind the credential is no limit; known: {known}, {OPERATOR}")
    if "burst_tokens" in values and "tokens_per_minute" not in values:
        raise ConfigError(f"{place}: burst_tokens needs tokens_per_minute")
    salt_key = hmac.digest(row.credential.lower().encode(), f"cache salt of {row.name}".encode(), "sha256")
    return Tenant(row.name, **values, salt_key=salt_key)


def _is_credential(word: str) -> bool:
    if word.startswith(CERTIFICATE):
        return len(word) > len(CERTIFICATE)
    return re.fullmatch(KEY_HASH + "[0-9a-fA-F]{64}", word) is not None


def _number(name: str, text: str, place: str, low: int, high: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,16}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{place}: {name} must be a whole number from {low} to {high}")
    return int(text)


def _priorities(text: str, place: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    if not dots:
        raise ConfigError(f"{place}: priorities is a range such as -10..600")
    found = tuple(_number("priorities", end, place, LEAST_PRIORITY, MOST_PRIORITY) for end in (low, high))
    if found[0] > found[1]:
        raise ConfigError(f"{place}: priorities {text} ends before it begins")
    return found[0], found[1]
