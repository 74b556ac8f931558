"""RDMA needs of this host the package, a device with an active port that this user may open, and pinned memory.

Each obstacle is one line that says what to do."""

import os
import resource
from importlib.util import find_spec
from pathlib import Path

from kvtransfer.nixl_agent import PACKAGES

LEAST_PINNED_BYTES = 1 << 30
_CAP_IPC_LOCK = 1 << 14  # a process with this capability pins as much as it likes

DEVICES, NODES, STATUS = Path("/sys/class/infiniband"), Path("/dev/infiniband"), Path("/proc/self/status")


def missing_package() -> str:
    """Why NIXL cannot be imported; empty when a package of it is installed."""
    if any(find_spec(package) is not None for package in PACKAGES):
        return ""
    return "the package NIXL is not installed: pip install --no-deps nixl-cu12"


def missing_device(devices: Path = DEVICES, nodes: Path = NODES) -> str:
    """Why no RDMA device can be used; empty when one can."""
    found = sorted(path.name for path in devices.glob("*"))
    if not found:
        return "this host has no RDMA device (/sys/class/infiniband is empty): load its driver, or use tcp"
    if not active_ports(devices):
        return f"no port of {', '.join(found)} is active: check its cable and `rdma link`"
    if not any(os.access(node, os.R_OK | os.W_OK) for node in nodes.glob("uverbs*")):
        return "this user may open no /dev/infiniband/uverbs*: give the container these devices, or the user the right"
    return ""


def active_ports(devices: Path = DEVICES) -> list[str]:
    """Active ports as UCX_NET_DEVICES names them: device:port."""
    states = sorted(devices.glob("*/ports/*/state"))
    return [f"{at.parts[-4]}:{at.parts[-2]}" for at in states if "ACTIVE" in _text(at)]


def provider(device: str, devices: Path = DEVICES) -> str:
    """The kernel's driver of a device, such as mlx5_core or rdma_rxe."""
    driver = devices / device / "device/driver"
    if driver.exists():
        return driver.resolve().name
    return "rdma_rxe" if (devices / device / "parent").exists() else "unknown"


def missing_pinned_memory(status: Path = STATUS) -> str:
    """Why a pool cannot be pinned; empty when it can."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_PINNED_BYTES or _may_lock(status):
        return ""
    return (
        f"this process may pin {soft >> 10} KiB of memory, and RDMA pins the pool once for each connection: "
        "set the memlock limit to unlimited (ulimit -l, LimitMEMLOCK, --ulimit memlock=-1)"
    )


def _may_lock(status: Path) -> bool:
    for line in _text(status).splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _CAP_IPC_LOCK)
    return False


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
