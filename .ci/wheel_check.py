"""Builds the wheel and uses it as a new user would: in empty environments, without a compiler, from a folder without
the sources. `make wheel-check` runs it; --json prints sizes and seconds as one object, --wheel takes a wheel that is
there."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 20_000_000
BODIES = {"plain", "avx2", "avx512", "avx512bf16", "amx"}
TOOLS = ("env", "sh", "uname")  # all that the PATH of the empty environments leads to, beside their own programs
LIBRARY = "baton_kernels/_baton_kernels.so"

_begun = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--wheel", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"seconds": {}}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        wheel = options.wheel.resolve() if options.wheel else timed(report, "build", lambda: build(work))
        report |= facts(wheel, work)
        timed(report, "client", lambda: client(work, wheel))
        server = timed(report, "install", lambda: environment(work, "server", f"{wheel}[serve]"))
        report["installed_bytes"] = folder_bytes(server)
        report["doctor"] = doctor(server, work)
        report["demo_exit"] = timed(report, "demo", lambda: demo(server, work))
    report["ok"] = report["demo_exit"] == 0
    if options.json:
        print(json.dumps(report))
    if not report["ok"]:
        sys.exit("baton demo failed")
    say("the wheel works")


def build(work: Path) -> Path:
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(work / "dist"), str(ROOT)], env=dict(os.environ))
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel


def facts(wheel: Path, work: Path) -> dict[str, Any]:
    """Facts that the file itself shows: its tag, the tag that its library bears, its bodies and sizes."""
    sys.path.insert(0, str(ROOT / "kernels"))
    from baton_kernels import build as kernels
    from baton_kernels import manylinux

    library = Path(zipfile.ZipFile(wheel).extract(LIBRARY, work))
    size, bodies, platform = wheel.stat().st_size, kernels.built(library), manylinux.tag(library)
    check(size <= MOST_BYTES, f"{wheel.name} has {size} bytes, more than {MOST_BYTES}")
    check(set(bodies) == BODIES, f"{wheel.name} holds the bodies {', '.join(bodies)} only")
    check(wheel.stem.endswith(f"-py3-none-{platform}"), f"{wheel.name}: its library bears the tag {platform}")
    return {
        "wheel": wheel.name,
        "bytes": size,
        "library_bytes": library.stat().st_size,
        "bodies": list(bodies),
        "needs": {file: sorted(versions) for file, versions in manylinux.needs(library).items()},
    }


def client(work: Path, wheel: Path) -> None:
    """With the base dependencies the stubs and the help work, and a service says what is missing."""
    folder = environment(work, "client", str(wheel))
    for arguments in (["--help"], ["generate", "--help"]):
        check(baton(folder, work, *arguments).returncode == 0, f"baton {' '.join(arguments)} failed")
    run([str(folder / "bin/python"), "-c", "from baton.inference.v1 import inference_pb2_grpc"], env=bare(folder, work))
    message = baton(folder, work, "demo").stderr
    check("pip install '.[serve]'" in message, f"baton demo without the serve extra says: {message}")


def doctor(folder: Path, work: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(baton(folder, work, "doctor", "--json").stdout)
    check(found["paths"] and not found["not_built"], f"baton doctor: {found['problems']}")
    check(found["compiler"]["path"] is None, "there is a compiler in the empty environment")
    return {"processor": found["processor"]["name"], "paths": {k: v["body"] for k, v in found["paths"].items()}}


def demo(folder: Path, work: Path) -> int:
    done = baton(folder, work, "demo")
    sys.stderr.write(done.stderr + done.stdout)
    return done.returncode


def environment(work: Path, name: str, package: str) -> Path:
    """A new virtual environment in which the package is installed."""
    folder = work / name
    say(f"{name}: an empty environment")
    venv.create(folder, with_pip=True)
    run([str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", package], env=bare(folder, work))
    return folder


def bare(folder: Path, work: Path) -> dict[str, str]:
    """The environment of a machine without compiler and without our sources."""
    tools = work / "tools"
    if not tools.exists():
        tools.mkdir()
        for tool in TOOLS:
            for place in os.get_exec_path():
                if (found := Path(place, tool)).exists():
                    (tools / tool).symlink_to(found)
                    break
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BATON_", "PYTHON", "CXX"))}
    return kept | {"PATH": f"{folder / 'bin'}:{tools}", "XDG_CACHE_HOME": str(work / "cache")}


def baton(folder: Path, work: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(folder / "bin/baton"), *arguments]
    return subprocess.run(command, cwd=work, env=bare(folder, work), capture_output=True, text=True, check=False)


def run(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=tempfile.gettempdir(), env=env, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def timed(report: dict[str, Any], name: str, step: Any) -> Any:
    say(f"{name} …")
    begun = time.monotonic()
    result = step()
    report["seconds"][name] = round(time.monotonic() - begun, 1)
    return result


def check(condition: object, message: str) -> None:
    if not condition:
        sys.exit(message)


def say(text: str) -> None:
    print(f"[{time.monotonic() - _begun:5.1f} s] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
