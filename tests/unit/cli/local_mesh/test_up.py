"""`up` and `demo` with stand-ins for the three services: real processes, real gRPC and HTTP, no model."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.local_mesh.ports import free_address

ROOT = Path(__file__).resolve().parents[4]
PATIENCE_SECONDS = 120.0  # a guard against hanging: no test depends on how fast the machine starts a process

GATEWAY = """
import asyncio, json, logging
import grpc
from baton.inference.v1 import inference_pb2 as pb, inference_pb2_grpc as rpc

answered = []

class FakeInference(rpc.InferenceServiceServicer):
    async def StreamGenerate(self, request, context):
        await asyncio.sleep(0.05)
        for word in ("hello", " there"):
            yield pb.StreamGenerateResponse(delta=pb.Delta(text=word))
        yield pb.StreamGenerateResponse(finished=pb.Finished(usage=pb.Usage(prompt_tokens=3, completion_tokens=2)))
        times = {"start_ms": 0, "duration_ms": 50}
        root = {"service": "gateway", "name": "rpc", "span_id": "1", "parent_id": "", **times}
        name = {"request_id": "r", "trace_id": "t", "complete": True}
        answered.append({**name, "ttft_seconds": 0.04, "spans": [root]})

async def serve(config, telemetry):
    async def answer(reader, writer):
        path = (await reader.readuntil(b"\\r\\n\\r\\n")).split()[1]
        body = json.dumps({"status": "ok", "prefill": 2, "decode": 2})
        if path.startswith(b"/debug/requests"):
            body = json.dumps(answered[-1] if path == b"/debug/requests/r" else {"requests": answered[::-1]})
        writer.write(f"HTTP/1.1 200 OK\\r\\n\\r\\n{body}".encode())
        writer.close()
    host, port = config.http_address.split(":")
    http = await asyncio.start_server(answer, host, int(port))
    server = grpc.aio.server()
    rpc.add_InferenceServiceServicer_to_server(FakeInference(), server)
    server.add_insecure_port(config.grpc_address)
    await server.start()
    logging.info("gateway ready at %s", config.http_address)
    try:
        await asyncio.Event().wait()
    finally:
        http.close()
        await server.stop(0)
"""

WORKER = """
import asyncio, logging

async def serve(config):
    logging.info("%s ready at %s", config.name, config.gateways[0])
    await asyncio.Event().wait()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Stand-ins that Python finds before the real services, and a model folder that no process reads."""
    for package, source in (("gateway", GATEWAY), ("prefill_svc", WORKER), ("decode_svc", WORKER)):
        (tmp_path / "fake" / package).mkdir(parents=True)
        (tmp_path / "fake" / package / "__init__.py").touch()
        (tmp_path / "fake" / package / "main.py").write_text(source)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    path = [str(tmp_path / "fake"), *(str(ROOT / name) for name in ("", "kernels", "protos"))]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
    counts = {"BATON_MESH_PREFILL_WORKERS": "2", "BATON_MESH_DECODE_WORKERS": "2"}  # as the stand-in's /health says
    fixed = {"BATON_MODEL": str(tmp_path / "model"), "COLUMNS": "100"}
    return clean | counts | fixed | {"PYTHONPATH": os.pathsep.join(path)}


class Up:
    """A running `baton up`: its lines, its process, and the processes under it."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        addresses = ("--http", free_address(), "--grpc", free_address(), "--workers", free_address())
        self.grpc = addresses[3]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli", "up", *addresses, *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self.lines))

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def up(environment: dict[str, str]) -> Iterator[Up]:
    running = Up(environment)
    yield running
    running.process.kill()
    running.process.wait()
    assert running.process.stderr is not None
    running.process.stderr.close()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def all_gone(pids: list[int]) -> bool:
    def gone() -> bool:
        return not any(Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in _status(pid) for pid in pids)

    return eventually(gone)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


def test_up_shows_how_to_use_the_mesh_and_ctrl_c_leaves_nothing_behind(up: Up) -> None:
    up.read_until("Ctrl-C stops it")
    up.read_until("baton chat")
    children = up.children()
    assert len(children) == 5
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(PATIENCE_SECONDS) == 0
    assert all_gone(children)
    ready = {match[1] for line in up.lines if (match := re.match(r"([\w-]+) +.* ready at ", line))}
    assert ready == {"gateway", "prefill-0", "prefill-1", "decode-0", "decode-1"}


def test_killing_up_kills_its_services(up: Up) -> None:
    up.read_until("Ctrl-C stops it")
    children = up.children()
    up.process.kill()
    assert all_gone(children)


def test_a_second_ctrl_c_does_not_wait_for_a_stubborn_service(environment: dict[str, str], tmp_path: Path) -> None:
    stubborn = WORKER.replace(
        "    logging", "    asyncio.get_running_loop().add_signal_handler(15, print)\n    logging"
    )
    (tmp_path / "fake" / "decode_svc" / "main.py").write_text(stubborn)
    patient = "import cli.local_mesh.supervisor\ncli.local_mesh.supervisor.DRAIN_SECONDS = 10_000.0\n"
    (tmp_path / "fake" / "sitecustomize.py").write_text(patient)  # waiting for the workers would outlast the test
    running = Up(environment)
    try:
        running.read_until("baton chat")
        children = running.children()
        running.process.send_signal(signal.SIGINT)
        assert eventually(lambda: len(running.children()) == 2), "all but the decode workers end"
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_SECONDS) == 0
        assert all_gone(children)
    finally:
        running.process.kill()
        running.process.wait()
        assert running.process.stderr is not None
        running.process.stderr.close()


def test_a_killed_worker_is_back_soon(up: Up) -> None:
    up.read_until("Ctrl-C stops it")
    os.kill(up.children()[-1], signal.SIGKILL)
    name = up.read_until("ended (signal 9), starts again").split()[0]
    assert up.read_until(" ready at ").startswith(name)


def test_up_with_trace_answers_and_draws_the_request(environment: dict[str, str]) -> None:
    running = Up(environment, "--trace")
    try:
        running.read_until("baton chat")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cli", "generate", "hi", "--address", running.grpc],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "hello there\n"
        running.read_until("first token")
        running.process.terminate()
        assert running.process.wait(PATIENCE_SECONDS) == 0
    finally:
        running.process.kill()
        assert running.process.stderr is not None
        running.process.stderr.close()
        running.process.wait()


def test_the_demo_answers_draws_and_leaves_nothing_behind(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", "demo", "hi"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer, *picture = done.stdout.splitlines()
    assert answer == "hello there"
    assert any("request" in line and "█" in line for line in picture)
    assert any("first token" in line and "◆" in line for line in picture)


def test_a_broken_service_ends_up_with_its_own_words(environment: dict[str, str], tmp_path: Path) -> None:
    broken = "raise OSError(28, 'no space left for the cache')"
    (tmp_path / "fake" / "decode_svc" / "main.py").write_text(broken)
    running = Up(environment)
    assert running.process.stderr is not None
    words = running.process.stderr.read()
    assert running.process.wait(PATIENCE_SECONDS) == 2  # starting again would not help
    running.process.stderr.close()
    assert re.search(r"decode-\d cannot start", words) and "no space left for the cache" in words
