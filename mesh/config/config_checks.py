"""The checks that the settings of `mesh/config/services.py` go through when they are made: each error names the key and
the remedy."""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path

MAX_SECONDS = 86_400.0  # longest time that a setting may name


class ConfigError(ValueError):
    """The message names the field (or file and key) and says what to do; services exit with status 2."""


def split_address(address: str) -> tuple[str, int]:
    """host:port, [v6]:port -> host, port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    host = split_address(address)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


USUAL_PORTS = {"http_address": "8000", "worker_address": "50052", "gateways": "50052"}


def check_address(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        usual = USUAL_PORTS.get(name, "50051")
        example = address if address.isdecimal() and int(address) <= 65535 else usual
        raise ConfigError(f"{name}: {address!r} is not host:port, for instance 127.0.0.1:{example}")
    if ":" in host and not re.fullmatch(r"\[[^\[\]]+\]", host):
        meant = [f"[{host}]:{port}"] if _is_version_6(host) else []
        meant += [f"[{address}]:{USUAL_PORTS.get(name, '50051')}"] if _is_version_6(address) else []
        raise ConfigError(
            f"{name}: {address!r} is not host:port; an IPv6 address stands in brackets, for instance "
            f"{' or '.join(meant) or '[::1]:50051'}"
        )


def _is_version_6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def check_apart(name: str, address: str, **others: str) -> None:
    """Two ports of one process; port 0 is always another one."""
    for other, taken in others.items():
        if address == taken and split_address(address)[1]:
            raise ConfigError(f"{name}: {address} is {other} too; clients and workers need a port each")


def check_processes(processes: int, process: int | None, *, worker_address: str, **shared: str) -> None:
    """Several processes share the addresses `shared`, and have a port each from that of `worker_address` on."""
    check_range("processes", processes, 1, 1024)
    if process is not None:
        check_range("process", process, 0, processes - 1)
    if processes == 1:
        return
    host, first = split_address(worker_address)
    for name, address in ({"worker_address": worker_address} | shared).items():
        other, port = split_address(address)
        if port == 0:
            raise ConfigError(f"{name}: {address} leaves the port open; {processes} processes need a known one")
        if name != "worker_address" and other == host and first <= port < first + processes:
            raise ConfigError(
                f"worker_address: {processes} processes take the ports {first} to {first + processes - 1} of {host}, "
                f"and {name} is one of them; choose another port"
            )
    if first + processes - 1 > 65535:
        raise ConfigError(
            f"worker_address: {worker_address} has no {processes - 1} ports behind it; choose a lower one"
        )


def check_host_names(name: str, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", host):
            raise ConfigError(
                f"{name}: {host!r} is no host name; write the name alone, for instance mesh.example.com, without a "
                "scheme and a port. Addresses and localhost need no entry"
            )


def check_tls(**files: Path | None) -> None:
    """Either all files are given and exist, or none is given."""
    given = [key for key, file in files.items() if file is not None]
    for key, file in files.items():
        if given and file is None:
            raise ConfigError(f"{key}: is missing beside {', '.join(given)}; TLS takes {', '.join(files)}")
        if file is not None:
            _check_file(key, file)


def check_behind_sidecar(key: str, address: str, sidecar: str) -> None:
    if sidecar and not is_loopback(address):
        raise ConfigError(
            f"{key}: {address} would serve plain text past the sidecar; listen on 127.0.0.1, and let the sidecar "
            "listen where others dial"
        )


def _check_file(key: str, file: Path) -> None:
    try:
        if file.is_dir():
            raise ConfigError(f"{key}: {file} is a folder; name the PEM file in it")
        if not file.is_file():
            raise ConfigError(f"{key}: there is no file {file}")
    except PermissionError:
        raise ConfigError(f"{key}: this user may not look into {file.parent}; give the folder's rights to it") from None


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(choices)}")


def check_choice_on(name: str, value: str, choices: Mapping[str, tuple[str, ...]], device: str) -> None:
    elsewhere = [other for other, known in choices.items() if value in known and other != device]
    if value not in choices[device] and elsewhere:
        known = ", ".join(choices[device])
        raise ConfigError(f'{name}: {value!r} goes with device = "{elsewhere[0]}"; on "{device}" take one of {known}')
    check_choice(name, value, choices[device])


def check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}: {value} is not between {low} and {high}")


def check_seconds(name: str, value: float) -> None:
    if not 0.0 <= value <= MAX_SECONDS:
        raise ConfigError(f"{name}: {value} is not between 0 and {MAX_SECONDS:g}")
