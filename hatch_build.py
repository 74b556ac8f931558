"""Compiles the CPU kernels while the package is installed, so that importing never compiles.

In place (`pip install -e .`) it compiles the bodies that this processor runs. A wheel may go to any machine: it gets
all bodies, and the lowest manylinux tag that the library's symbols allow. Without a compiler the install succeeds
without kernels; `baton serve` and `baton doctor` say so, and `python -m baton_kernels.build` makes up for it."""

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        kernels = self._module("build")
        try:
            kernels.build_once(kernels.bodies_here() if version == "editable" else kernels.BODIES)
        except kernels.BuildError as error:
            self.app.display_warning(f"CPU kernels were not built: {error}")
            if not kernels.LIBRARY.exists():
                return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{self._platform(kernels.LIBRARY)}"

    def _platform(self, library: Path) -> str:
        portable = self._module("manylinux")
        try:
            return str(portable.tag(library))
        except portable.NotPortable as error:
            self.app.display_warning(f"the wheel is for this system only: {error}")
            return sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def _module(self, name: str) -> ModuleType:
        """A module of the kernels' package, which is not installed yet."""
        spec = importlib.util.spec_from_file_location(f"baton_kernels_{name}", self._source(name))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def _source(self, name: str) -> Path:
        return Path(self.root, "kernels", "baton_kernels", f"{name}.py")
