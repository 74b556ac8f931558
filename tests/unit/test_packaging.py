"""The wheel holds exactly the rooms that are shipped, with the compiled kernels, and claims nobody else's names."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from baton_kernels import build, manylinux
from engine.model.digest import locked

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {
    "cli",
    "gateway",
    "prefill_svc",
    "decode_svc",
    "kvtransfer",
    "engine",
    "mesh",
    "baton_kernels",
    "baton",
}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """Built from a copy, so that the working tree's own library is neither used nor replaced; once for all processes
    that pytest runs side by side."""
    folder = shared_folder(tmp_path_factory, "wheel")
    with locked(folder / "lock"):
        if not any(folder.glob("*.whl")):
            build_wheel(folder)
    (file,) = folder.glob("*.whl")
    return zipfile.Path(file)


def build_wheel(folder: Path) -> None:
    ignored = shutil.ignore_patterns(".venv", ".git", "__pycache__", "*.so", ".*_cache", "dist", "build")
    shutil.copytree(ROOT, folder / "tree", ignore=ignored, symlinks=True)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(folder / "tree"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stubs_install_alone_and_need_grpc_only(tmp_path: Path) -> None:
    """The distribution baton-client: its client is imported where nothing but its two dependencies can be."""
    shutil.copytree(ROOT / "protos", tmp_path / "protos", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), "protos"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("baton_client-*-py3-none-any.whl")
    names = zipfile.ZipFile(file).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"baton"}
    assert {"baton/client.py", "baton/inference/v1/inference_pb2.pyi"} <= set(names)
    assert not any("worker" in name or "generate" in name for name in names)
    own = tomllib.loads((ROOT / "protos" / "pyproject.toml").read_text())["project"]
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert own["version"] == whole["version"] and set(own["dependencies"]) <= set(whole["dependencies"])
    program = (
        f"import sys; sys.path.insert(0, {str(file)!r}); import baton.client; "
        "print({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in ast.literal_eval(done.stdout) if not name.startswith("_")}
    assert {"baton", "grpc", "google"} <= loaded
    assert not loaded & {"torch", "numpy", "starlette", "tokenizers", "mesh", "cli", "rich", "typer"}


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """One folder for all of pytest's processes: the parent of their own."""
    own = factory.getbasetemp()
    folder = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / name
    folder.mkdir(exist_ok=True)
    return folder


def names(wheel: zipfile.Path) -> list[str]:
    return wheel.root.namelist()


@pytest.mark.wheel
def test_the_wheel_holds_the_shipped_rooms_and_nothing_else(wheel: zipfile.Path) -> None:
    tops = {name.partition("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == SHIPPED


@pytest.mark.wheel
def test_the_wheel_brings_stubs_sources_and_licence(wheel: zipfile.Path) -> None:
    held = names(wheel)
    assert "baton/inference/v1/inference_pb2.py" in held
    assert "baton/inference/v1/inference.proto" in held
    assert any(name.endswith("licenses/LICENSE") for name in held)


@pytest.mark.parametrize("name", ["model", "draft"])
@pytest.mark.wheel
def test_the_wheel_brings_the_built_in_pair(wheel: zipfile.Path, name: str) -> None:
    files = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {f"engine/builtin/pair/{name}/{file}" for file in files} <= set(names(wheel))


@pytest.mark.wheel
def test_the_wheel_brings_the_page_that_shows_the_mesh(wheel: zipfile.Path) -> None:
    page = ROOT / "gateway/observability/page"
    assert {f"gateway/observability/page/{file.name}" for file in page.iterdir()} <= set(names(wheel))


@pytest.mark.wheel
def test_the_wheel_brings_every_body_and_the_tag_that_its_library_bears(wheel: zipfile.Path, tmp_path: Path) -> None:
    (name,) = (name for name in names(wheel) if name.startswith("baton_kernels/") and name.endswith(".so"))
    library = Path(wheel.root.extract(name, tmp_path))
    assert build.built(library) == build.BODIES
    assert Path(str(wheel.root.filename)).stem.endswith(f"-py3-none-{manylinux.tag(library)}")


@pytest.mark.wheel
def test_the_wheel_is_small(wheel: zipfile.Path) -> None:
    assert Path(str(wheel.root.filename)).stat().st_size <= 20_000_000


def test_no_source_root_is_a_package() -> None:
    for folder in ("kernels", "protos", "tests"):
        assert not (ROOT / folder / "__init__.py").exists()
