"""Facts about this machine, read from /proc and from tools; `cli/doctoring/doctor.py` judges them."""

import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

from mesh.config.host import container_limit_bytes

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16")
TOOL_SECONDS = 10.0  # how long a compiler or driver may take to print its version


def processor() -> dict[str, Any]:
    fields: dict[str, str] = {}
    for line in _text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    return {
        "name": fields.get("model name") or platform.processor() or "unknown",
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "features": [feature for feature in FEATURES if feature in flags],
    }


def compiler() -> dict[str, Any]:
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return {"path": path, "version": _first_line(path, "--version")}
    return {"path": None, "version": None}


def memory() -> dict[str, Any]:
    """Sizes in bytes; None where there is no limit."""
    fields = {name: value.split()[0] for name, _, value in _pairs("/proc/meminfo") if value.split()}
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "total_bytes": int(fields.get("MemTotal", 0)) * 1024,
        "available_bytes": int(fields.get("MemAvailable", 0)) * 1024,
        "container_limit_bytes": container_limit_bytes(),
        "locked_limit_bytes": None if locked == resource.RLIM_INFINITY else locked,
        "open_files_limit": None if files == resource.RLIM_INFINITY else files,
    }


def gpu() -> dict[str, Any]:
    tool = shutil.which("nvidia-smi")
    names = _output(tool, "--query-gpu=name,memory.total", "--format=csv,noheader").splitlines() if tool else []
    return {"devices": [name.strip() for name in names if name.strip()]}


def _pairs(file: str) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in _text(file).splitlines()]


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def _first_line(*command: str) -> str:
    return (_output(*command).splitlines() or [""])[0]


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
