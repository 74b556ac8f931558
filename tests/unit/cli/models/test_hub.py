"""Models named by their hub id: downloaded once, from a hub of the test's own, and then found without the network."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.models import hub as cli_hub
from engine.builtin import tiny
from mesh.config.config_checks import ConfigError
from mesh.config.model_folder import is_hub_id
from mesh.config.settings import read_settings
from tests.harness.hub import TOKEN, FakeHub, HubRepository, serve_hub
from tests.unit.engine.gguf_files import gguf_bytes, mixed, of_folder, wide

ROOT = Path(__file__).resolve().parents[4]
NAME, COMMIT, NEWER = "acme/tiny-chat", "1" * 40, "2" * 40
# The library reads its settings when it is imported, so downloads run in processes of their own.
PROGRAM = """
import contextlib, io, json, sys
from cli.errors import readable_errors
from cli.models.hub import with_models
from mesh.config.settings import read_settings
found = []
for overrides in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), readable_errors():
            config = with_models(read_settings(overrides=overrides)).decode()
            found.append({"model": str(config.model), "draft": str(config.draft), "name": config.model_name})
    except SystemExit as end:
        found.append([end.code, said.getvalue()])
print(json.dumps(found))
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serve_hub() as hub:
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> dict[str, bytes]:
    folder = tiny(tmp_path / "made", "llama2", shards=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {"pytorch_model.bin": b"PK", "onnx/model.onnx": b"o" * 1000, "README.md": b"# tiny"}


def environment(hub: FakeHub, tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "BATON_"))}
    own = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": "5",
        "HF_HUB_DOWNLOAD_TIMEOUT": "3",
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos")),
    }
    return kept | own | more


def run(hub: FakeHub, tmp_path: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    env = environment(hub, tmp_path, **more)
    return subprocess.run([sys.executable, "-P", *arguments], env=env, capture_output=True, text=True, timeout=120)


def resolve_all(hub: FakeHub, tmp_path: Path, *settings: dict[str, str], **more: str) -> list[Any]:
    """For each of these settings what their models became, or the status and the message of the error."""
    done = run(hub, tmp_path, "-c", PROGRAM, json.dumps(settings), **more)
    assert TOKEN not in done.stderr + done.stdout and done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def resolve(hub: FakeHub, tmp_path: Path, model: str = NAME, **more: str) -> Any:
    return resolve_all(hub, tmp_path, {"model": model}, **more)[0]


def test_a_name_of_the_hub_becomes_a_folder_with_what_serving_reads(
    hub: FakeHub, model: dict[str, bytes], tmp_path: Path
) -> None:
    hub.repositories[NAME] = HubRepository(model)
    found = resolve(hub, tmp_path)
    folder = Path(found["model"])
    assert folder.name == COMMIT and found["name"] == NAME
    wanted = {name for name in model if name.endswith((".json", ".jinja", ".safetensors"))}
    assert {path.name for path in folder.iterdir()} == wanted
    assert all((folder / name).read_bytes() == model[name] for name in wanted)

    asked = len(hub.requests)
    hub.down = True
    assert resolve(hub, tmp_path) == found and len(hub.requests) == asked  # from the cache, without a request
    overrides = {"model": NAME, "served_name": "mine", "draft": f"{NAME}@main"}
    (served,) = resolve_all(hub, tmp_path, overrides, HF_HUB_OFFLINE="1")
    assert served == {"model": str(folder), "draft": str(folder), "name": "mine"}


def test_a_name_with_a_type_becomes_the_folder_of_that_gguf_file(hub: FakeHub, tmp_path: Path) -> None:
    content = gguf_bytes(*of_folder(wide(tmp_path / "made"), kinds=mixed, arch="llama", heads=4, kv_heads=2))
    hub.repositories["acme/gguf"] = HubRepository({"tiny-Q4_K_M.gguf": content, "tiny-Q8_0.gguf": b"another"})
    hub.repositories["acme/one"] = HubRepository({"tiny.gguf": content, "README.md": b""})
    found = resolve(hub, tmp_path, "acme/gguf:q4_k_m")
    folder = Path(found["model"])
    assert folder.name == "tiny-Q4_K_M" and found["name"] == "acme/gguf"
    assert (folder / "model.gguf").read_bytes() == content and (folder / "tokenizer.json").exists()
    assert Path(resolve(hub, tmp_path, "acme/one")["model"]).name == "tiny"
    asked = len(hub.requests)
    assert resolve(hub, tmp_path, "acme/gguf:Q4_K_M", HF_HUB_OFFLINE="1") == found and len(hub.requests) == asked


def test_a_list_of_models_may_name_some_of_the_hub_and_a_worker_downloads_only_its_own(
    hub: FakeHub, model: dict[str, bytes], tmp_path: Path
) -> None:
    hub.repositories[NAME] = HubRepository(model)
    both = f"chat={NAME},acme/absent"
    mine, by_its_name = resolve_all(
        hub, tmp_path, {"models": both, "model": "chat"}, {"models": f"{NAME}@main,acme/absent", "model": NAME}
    )
    assert (mine["name"], by_its_name["name"]) == ("chat", NAME)
    assert mine["model"] == by_its_name["model"] and Path(mine["model"]).name == COMMIT
    assert not any("absent" in request for request in map(str, hub.requests))


def test_a_name_stands_for_its_commit_until_it_is_fetched_again(
    hub: FakeHub, model: dict[str, bytes], tmp_path: Path
) -> None:
    hub.repositories[NAME] = repository = HubRepository(model)
    first = resolve(hub, tmp_path)
    repository.revisions = {"main": NEWER, "v1": COMMIT}
    repository.files = model | {"generation_config.json": b'{"temperature": 0.5}'}
    fetched = run(hub, tmp_path, "-m", "cli", "model", "fetch", NAME, "--json")
    assert json.loads(fetched.stdout)["commit"] == NEWER, fetched.stderr
    names = [NAME, f"{NAME}@v1", f"{NAME}@{COMMIT}", NAME]
    newer, tagged, exact, again = resolve_all(hub, tmp_path, *({"model": name} for name in names))
    assert Path(newer["model"]).name == NEWER and newer == again
    assert tagged["model"] == exact["model"] == first["model"]


def test_a_download_that_breaks_goes_on_where_it_was_and_finished_files_are_kept(
    hub: FakeHub, model: dict[str, bytes], tmp_path: Path
) -> None:
    """The library writes 10 MiB at a time."""
    first, second = sorted(name for name in model if name.endswith(".safetensors"))
    model[first] = random.Random(1).randbytes(12 << 20)
    hub.repositories[NAME], hub.breaks, hub.lost = HubRepository(model), [11 << 20], {second}
    status, message = resolve(hub, tmp_path)
    assert status == 1 and "the hub answered 404: try again; finished files are kept" in message
    assert hub.ranges == [f"bytes={10 << 20}-"] and hub.sent < 3 << 20
    hub.lost, hub.requests = set(), []
    folder = Path(resolve(hub, tmp_path)["model"])
    assert all((folder / name).read_bytes() == model[name] for name in (first, second))
    assert [line for line in hub.requests if line.startswith("GET") and "resolve" in line] == [
        f"GET /{NAME}/resolve/{COMMIT}/{second}"
    ]


def killed_in_mid_file(hub: FakeHub, tmp_path: Path, model: dict[str, bytes], had: int) -> str:
    """A fetch that SIGKILL ends when so many bytes of the first weights are there; the file's name."""
    name = min(name for name in model if name.endswith(".safetensors"))
    model[name] = random.Random(2).randbytes(32 << 20)
    hub.repositories[NAME], hub.stalls = HubRepository(model), [had + (1 << 20)]
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, json.dumps([{"model": NAME}])],
        env=environment(hub, tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as fetching:
        while sum(path.stat().st_size for path in (tmp_path / "hf").rglob("*.partial")) < had:
            assert fetching.poll() is None
            time.sleep(0.02)
        fetching.kill()
    hub.stalled.set()
    return name


def test_a_download_that_is_killed_goes_on_where_it_was(hub: FakeHub, model: dict[str, bytes], tmp_path: Path) -> None:
    name = killed_in_mid_file(hub, tmp_path, model, 20 << 20)
    before = hub.sent
    folder = Path(resolve(hub, tmp_path)["model"])
    assert hub.ranges == [f"bytes={20 << 20}-"] and hub.sent - before < 13 << 20
    assert (folder / name).read_bytes() == model[name]
    assert not list((tmp_path / "hf").rglob("*.partial"))


def test_a_killed_download_whose_bytes_are_wrong_begins_anew(
    hub: FakeHub, model: dict[str, bytes], tmp_path: Path
) -> None:
    """Negative control: without the comparison of hashes the damaged file would be used."""
    name = killed_in_mid_file(hub, tmp_path, model, 10 << 20)
    (partial,) = (tmp_path / "hf").rglob("*.partial")
    with partial.open("r+b") as content:
        content.write(b"damaged")
    folder = Path(resolve(hub, tmp_path)["model"])
    assert len(hub.ranges) == 1 and (folder / name).read_bytes() == model[name]


ERRORS = {
    "unknown": ("acme/unknown", "acme/unknown on the hub does not exist, or is private, and there is no folder"),
    "gated": ("acme/gated", r"asks for consent: accept its terms at http.*acme/gated, then set HF_TOKEN"),
    "revision": (f"{NAME}@v9", r"has no revision 'v9'"),
    "bins": ("acme/bins", r"holds \.bin files only.*python -c .*M\.from_pretrained\('acme/bins'"),
    "adapter": ("acme/adapter", "holds an adapter, no whole model"),
    "gguf": ("acme/gguf", r"holds several GGUF files, of the types Q4_0, Q8_0; name one, as acme/gguf:Q4_0"),
    "gguf_type": ("acme/gguf:Q6_K", r"acme/gguf on the hub holds no GGUF file of the type Q6_K, but Q4_0, Q8_0"),
    "no_gguf": ("acme/adapter:Q6_K", "holds no GGUF file"),
    "nothing": ("acme/nothing", "holds no config.json with safetensors beside it"),
}


def test_what_cannot_be_downloaded_is_named_with_a_remedy(
    hub: FakeHub, model: dict[str, bytes], tmp_path: Path
) -> None:
    config = {"config.json": b"{}"}
    hub.repositories |= {
        NAME: HubRepository(model),
        "acme/gated": HubRepository(model, gated=True),
        "acme/bins": HubRepository(config | {"pytorch_model.bin": b"PK"}),
        "acme/adapter": HubRepository({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}),
        "acme/gguf": HubRepository({"tiny-Q4_0.gguf": b"GGUF", "tiny.Q8_0.gguf": b"GGUF"}),
        "acme/nothing": HubRepository({"README.md": b""}),
    }
    refused = resolve_all(hub, tmp_path, *({"model": name} for name, _ in ERRORS.values()))
    for (_, message), (code, text) in zip(ERRORS.values(), refused, strict=True):
        assert code == 2 and len(text.strip().splitlines()) == 1, text
        assert text.startswith("baton: ") and re.search(message, text), text
    assert Path(resolve(hub, tmp_path, "acme/gated", HF_TOKEN=TOKEN)["model"]).name == COMMIT
    for trouble in ({"HF_ENDPOINT": "http://127.0.0.1:1"}, {"HF_HUB_OFFLINE": "1"}):
        code, text = resolve(hub, tmp_path, "acme/other", **trouble)
        assert "acme/other" in text and "is not in the cache" in text and len(text.strip().splitlines()) == 1, text
        assert code == (1 if "HF_ENDPOINT" in trouble else 2)


def test_a_disk_without_room_is_noticed_before_the_download(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model: acme/tiny-chat needs .* MiB free; free disk space, or set HF_HOME"):
        cli_hub._check_room(cli_hub.HubModel.parse(NAME), "model", 1 << 60, tmp_path / "not" / "yet")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", True),
        ("meta-llama/Llama-3.1-8B@main", True),
        ("org/name@refs/pr/1", True),
        ("org/name:Q4_K_M", True),
        ("org/name@main:q8_0", True),
        ("org/name:", False),
        ("/models/qwen", False),
        ("./models/qwen", False),
        ("../qwen", False),
        ("~/models/qwen", False),
        ("qwen", False),
        ("a/b/c", False),
        ("org/..", False),
    ],
)
def test_names_of_the_hub_are_told_from_paths(text: str, is_one: bool) -> None:
    assert is_hub_id(text) is is_one


def test_a_folder_that_exists_is_never_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(tmp_path / "acme" / "tiny-chat", "llama2")
    monkeypatch.chdir(tmp_path)
    settings = read_settings(overrides={"model": NAME})
    assert cli_hub.with_models(settings) == settings
    assert settings.decode().model == tmp_path / NAME and settings.decode().model_name == "tiny-chat"
