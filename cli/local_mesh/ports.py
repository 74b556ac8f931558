"""Free ports for a mesh on this machine, and early, readable errors for taken ones."""

import socket
from collections.abc import Sequence
from random import SystemRandom

from mesh.config.config_checks import ConfigError, split_address

# Below the ports that systems give to outgoing connections, which could take one before its service listens there.
PORTS = range(10_000, 32_000)
HOST, TRIES = "127.0.0.1", 1000
_drawn: set[int] = set()  # by this process: a service may not listen yet when the next address is drawn


def free_address() -> str:
    """An address of this machine on which no process listens now, and that this process drew never before."""
    for _ in range(TRIES):
        port = SystemRandom().choice(PORTS)
        if port in _drawn:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _drawn.add(port)
        return f"{HOST}:{port}"
    raise ConfigError(f"no free port was found on {HOST}: name the addresses (see docs/configuration.md)")


def check_free(field: str, address: str, option: str = "") -> None:
    """ConfigError when the port is taken; it names `option`, which sets the address, or else --set. Without this check
    a second gRPC server could share the port silently and get half of the connections."""
    check_all_free([(field, address, option)])


def check_all_free(addresses: Sequence[tuple[str, str, str]]) -> None:
    """The same for several addresses, each with its field and option; one error names all that are taken."""
    taken = [(field, address, option, why) for field, address, option in addresses if (why := _taken(address))]
    ways = dict.fromkeys(
        f"{option} HOST:PORT" if option else f"--set {field}=HOST:PORT" for field, _, option, _ in taken
    )
    if len(taken) == 1:
        ((field, address, option, why),) = taken
        remedy = f"choose another address with {option or next(iter(ways))}, or stop the process that listens there"
        raise ConfigError(f"{field}: cannot listen on {address} ({why}); {remedy}")
    if taken:
        where = ", ".join(f"{field} {address} ({why})" for field, address, _, why in taken)
        raise ConfigError(f"cannot listen on {where}; does another mesh run here? Choose others with {' '.join(ways)}")


def _taken(address: str) -> str:
    """Why nobody can listen on the address; empty: it is free."""
    host, port = split_address(address)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def dialable(address: str) -> str:
    """The address that a process of this machine dials to reach a server listening on `address`."""
    host, port = split_address(address)
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "::") else address
