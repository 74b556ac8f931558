"""A subprocess that starts beside busy gRPC threads starts: gRPC leaves forks alone in our processes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MARK = "fork() handlers"  # gRPC's handlers log it when threads are busy
SPAWNS = """
import asyncio, contextlib, grpc, uvloop
async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    async def calls():
        while True:
            with contextlib.suppress(grpc.RpcError):
                await channel.unary_unary("/x/y")(b"", timeout=0.05)
    busy = [asyncio.ensure_future(calls()) for _ in range(4)]
    found = []
    for _ in range(40):
        process = await asyncio.create_subprocess_exec("/bin/true")
        found.append(await process.wait())
    print(set(found), flush=True)
    for task in busy:
        task.cancel()
    await channel.close()
    await server.stop(None)
uvloop.run(main())
"""


def spawns(code: str, seconds: float) -> tuple[str, str]:
    """Output and log of a process that starts subprocesses beside gRPC calls; it may hang."""
    env = {key: value for key, value in os.environ.items() if key != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", code]
    options = {
        "cwd": ROOT,
        "env": env | {"PYTHONPATH": str(ROOT)},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with subprocess.Popen(command, text=True, **options) as process:  # type: ignore[call-overload]
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    return out, err


def test_subprocesses_start_beside_grpc_calls() -> None:
    out, err = spawns("import mesh" + SPAWNS, 120.0)
    assert out.strip() == "{0}" and MARK not in err


def test_grpc_handlers_would_be_noticed() -> None:
    assert MARK in spawns(SPAWNS, 10.0)[1]
