"""Regenerates the contracts' Python code, stubs and descriptor set from the .proto files beside it.

`make protos` runs it; what it writes is committed, and a test holds the committed files equal to a fresh run. Use the
oldest grpcio-tools that is supported: newer generated code refuses older protobuf runtimes, the reverse works."""

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DESCRIPTORS = "descriptors.binpb"
TOOLS_VERSION = "1.76"


def sources(root: Path = ROOT) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob("baton/*/v*/*.proto"))


def generate(out: Path, root: Path = ROOT) -> None:
    """Write code, stubs and the descriptor set of all contracts under `out`."""
    from importlib.metadata import version

    import grpc_tools
    from grpc_tools import protoc

    if not version("grpcio-tools").startswith(TOOLS_VERSION):
        raise SystemExit(f"protos: grpcio-tools {TOOLS_VERSION} is needed, found {version('grpcio-tools')}")
    out.mkdir(parents=True, exist_ok=True)
    status = protoc.main(
        [
            "protoc",
            f"-I{root}",
            f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
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
