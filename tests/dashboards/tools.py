"""Finds prometheus and promtool: in PATH, or unpacked from Debian's package into a folder of the user's cache.

The package is unpacked, not installed, so no service starts and no root is needed."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

from mesh.config.common_config import default_cache_folder


class ToolMissing(Exception):
    """A program is not on this machine; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class PrometheusTools:
    server: Path
    promtool: Path


def prometheus_tools() -> PrometheusTools:
    found = [shutil.which(name) for name in ("prometheus", "promtool")]
    if found[0] and found[1]:
        return PrometheusTools(Path(found[0]), Path(found[1]))
    folder = default_cache_folder() / "prometheus"
    tools = PrometheusTools(folder / "usr/bin/prometheus", folder / "usr/bin/promtool")
    if not (tools.server.exists() and tools.promtool.exists()):
        _unpack(folder)
    return tools


def _unpack(folder: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise ToolMissing(
            "prometheus and promtool are not in PATH: install Prometheus (https://prometheus.io/download)"
        )
    with tempfile.TemporaryDirectory() as download:
        try:
            subprocess.run(("apt-get", "download", "-qq", "prometheus"), cwd=download, check=True, stderr=DEVNULL)
            (package,) = Path(download).glob("prometheus_*.deb")
            subprocess.run(("dpkg-deb", "-x", str(package), str(folder)), check=True)
        except (subprocess.CalledProcessError, ValueError) as error:
            raise ToolMissing(
                "prometheus and promtool are not in PATH and could not be downloaded; as root run "
                "`apt-get update && apt-get install --no-install-recommends prometheus`"
            ) from error
