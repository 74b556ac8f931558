"""Free ports for a mesh on this machine, and early, readable errors for taken ones."""

import socket

from mesh.config import ConfigError, split_address


def free_address(host: str = "127.0.0.1") -> str:
    """An address on which no process listens now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def check_free(field: str, address: str, option: str = "") -> None:
    """ConfigError when the port is taken; it names `option`, which sets the address, or else --set. Without this check
    a second gRPC server could share the port silently and get half of the connections."""
    host, port = split_address(address)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        how = option or f"--set {field}=HOST:PORT"
        remedy = f"choose another address with {how}, or stop the process that listens there"
        raise ConfigError(f"{field}: cannot listen on {address} ({error.strerror}); {remedy}") from None


def dialable(address: str) -> str:
    """The address that a process of this machine dials to reach a server listening on `address`."""
    host, port = split_address(address)
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "::") else address
