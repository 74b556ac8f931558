"""Where a receiver listens, and what its writers dial: the two differ when it listens on every interface."""

import ipaddress
import re

_MOST_HOST_LETTERS = 255  # length of the longest name, as the domain name system bounds it
_PORT = re.compile("[0-9]{1,5}")


def bare(host: str) -> str:
    """The host without the brackets that keep an IPv6 address apart from its port."""
    return host.strip("[]")


def is_wildcard(host: str) -> bool:
    """Does a socket bound to this host listen on every interface?"""
    try:
        return host == "" or ipaddress.ip_address(bare(host)).is_unspecified
    except ValueError:
        return False  # a name


def obstacle(name: str, host: str, advertise_host: str) -> str:
    """Why writers cannot dial a receiver that listens on this host; empty when they can."""
    if is_wildcard(host) and not advertise_host:
        return (
            f"{name} listens on {host!r}, which no writer can dial: set transport_host to this host's address, "
            "or advertise_host to the name that others dial"
        )
    return ""


def dialled_address(host: str, advertise_host: str, bound: tuple[str, int]) -> str:
    """Address that a handle carries, for the peer to dial. `bound` is the address that the socket got."""
    return f"{advertise_host if is_wildcard(host) else bound[0]}:{bound[1]}"


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of an address that a handle carries, as a socket takes them; ValueError for what none takes."""
    host, _, port = address.rpartition(":")
    name = bare(host)
    if not (name and len(host) <= _MOST_HOST_LETTERS and host.isprintable()):
        raise ValueError(f"the host in the address {address[:_MOST_HOST_LETTERS]!r} is no name")
    if not (_PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise ValueError(f"the port in the address {address[:_MOST_HOST_LETTERS]!r} is no number from 1 to 65535")
    return name, int(port)
