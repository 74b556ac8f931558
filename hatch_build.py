"""Compiles the CPU kernels while the package is installed, so that importing never compiles.

A wheel that carries the library is tagged for its platform. Without a compiler the install succeeds without kernels;
`baton serve` and `baton doctor` then say so, and `python -m baton_kernels.build` makes up for it."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        script = Path(self.root, "kernels", "baton_kernels", "build.py")
        spec = importlib.util.spec_from_file_location("baton_kernels_build", script)
        assert spec is not None and spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        try:
            kernels.build_once()
        except kernels.BuildError as error:
            self.app.display_warning(f"CPU kernels were not built: {error}")
            if not kernels.LIBRARY.exists():
                return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
