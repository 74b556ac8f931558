"""Regenerates the contracts' Python code, stubs and descriptor set from the .proto files beside it.

`make protos` runs it; what it writes is committed, and a test holds the committed files equal to a fresh run. Use the
oldest grpcio-tools that is supported: newer generated code refuses older protobuf runtimes, the reverse works."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DESCRIPTORS = "descriptors.binpb"
TOOLS_VERSION = "1.76"


def sources(root: Path = ROOT) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob("baton/*/v*/*.proto"))


def generate(out: Path, root: Path = ROOT) -> None:
    """Write code, stubs and the descriptor set of all contracts under `out`. The compiler runs in a process of its own:
    it brings a copy of protobuf's C++ library, as NIXL does, and two of them in one process abort it."""
    tools = find_spec("grpc_tools")
    if tools is None or tools.origin is None:
        raise SystemExit("protos: grpcio-tools is not installed")
    if not version("grpcio-tools").startswith(TOOLS_VERSION):
        raise SystemExit(f"protos: grpcio-tools {TOOLS_VERSION} is needed, found {version('grpcio-tools')}")
    out.mkdir(parents=True, exist_ok=True)
    status = subprocess.call(
        [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            f"-I{root}",
            f"-I{Path(tools.origin).parent / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            f"--descriptor_set_out={out / DESCRIPTORS}",
            *sources(root),
        ]
    )
    if status != 0:
        raise SystemExit(f"protos: protoc failed with status {status}")


def main(arguments: Sequence[str]) -> None:
    generate(Path(arguments[0]) if arguments else ROOT)


if __name__ == "__main__":
    main(sys.argv[1:])
