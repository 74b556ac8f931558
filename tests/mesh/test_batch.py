"""`baton batch run` against a mesh of real processes: kills in mid-run cost no request, and change no answer."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cli.local_mesh.own_mesh import own_mesh

pytestmark = pytest.mark.mesh

ROOT = Path(__file__).resolve().parents[2]
REQUESTS, KILLS, NEW_TOKENS = 200, 4, 12
TIERS = ("PREFILL", "DECODE")
ONE_OF_EACH = {"mesh.prefill_workers": "1", "mesh.decode_workers": "1"}


def write_requests(path: Path, count: int = REQUESTS) -> Path:
    """Chats, completions, responses and embeddings in turn, with temperature 0."""
    with path.open("w") as file:
        for number in range(count):
            text = f"Request {number}: what is the hand-off?"
            limits: dict[str, Any] = {"max_tokens": NEW_TOKENS, "temperature": 0}
            url, body = (
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **limits}),
                ("/v1/completions", {"prompt": text, **limits}),
                ("/v1/responses", {"input": text, "max_output_tokens": NEW_TOKENS, "temperature": 0}),
                ("/v1/embeddings", {"input": text}),
            )[number % 4]
            line = {"custom_id": f"r-{number}", "method": "POST", "url": url, "body": body}
            file.write(json.dumps(line) + "\n")
    return path


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "cli", "batch", "run", *arguments),
        env=os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"} | {f"BATON_MESH_{tier}_WORKERS": "1" for tier in TIERS},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run_to_its_end(*arguments: str) -> str:
    async with command(*arguments) as process:
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def kill_behind(output: Path, more_bytes: int, *arguments: str) -> list[int]:
    """Kill the command once it has written this much; it must not have ended before. The processes that it had."""
    wanted = (output.stat().st_size if output.exists() else 0) + more_bytes
    async with command(*arguments) as process:
        while not output.exists() or output.stat().st_size < wanted:
            assert process.returncode is None, "the run ended before the kill"
            await asyncio.sleep(0.001)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return [int(each) for each in children.read_text().split()]


def answers(output: Path) -> Mapping[str, Any]:
    """The texts or vectors by custom_id. Every line is whole, every status is 200, and no custom_id stands twice."""
    found = dict[str, Any]()
    data = output.read_bytes()
    assert data.endswith(b"\n")
    for line in data.splitlines():
        value = json.loads(line)
        assert value["response"]["status_code"] == 200 and value["custom_id"] not in found, value
        body = value["response"]["body"]
        if "choices" in body:
            found[value["custom_id"]] = [each.get("text", each.get("message")) for each in body["choices"]]
        elif "data" in body:
            found[value["custom_id"]] = body["data"][0]["embedding"]
        else:
            found[value["custom_id"]] = body["output"]
    return found


def without_ids(value: Any) -> Any:
    """The value without the ids that the mesh draws."""
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items() if key != "id"}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


async def test_a_run_that_is_killed_again_and_again_gives_the_answers_of_one_that_is_not(tmp_path: Path) -> None:
    source, random = write_requests(tmp_path / "in.jsonl"), Random(1)
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    async with own_mesh(ONE_OF_EACH) as gateway:
        options = ("--http", gateway.http_address, "--concurrency", "8")
        await run_to_its_end(str(source), str(whole), *options)
        each = whole.stat().st_size // (2 * KILLS)
        for _ in range(KILLS):
            await kill_behind(killed, random.randrange(each // 2, each), str(source), str(killed), *options)
        out = await run_to_its_end(str(source), str(killed), *options)
    assert f"all {REQUESTS} requests have their outcome" in out
    expected, found = answers(whole), answers(killed)
    assert set(expected) == set(found) == {f"r-{number}" for number in range(REQUESTS)}
    assert without_ids(dict(expected)) == without_ids(dict(found))


async def test_a_mesh_of_its_own_ends_with_the_run_and_with_a_kill(tmp_path: Path) -> None:
    source, output = write_requests(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    order = (str(source), str(output), "--model", "built-in", "--concurrency", "4")
    services = await kill_behind(output, 1, *order)
    assert len(services) == 3  # gateway, prefill, decode
    async with asyncio.timeout(60):
        while any(map(lives, services)):
            await asyncio.sleep(0.05)
    out = await run_to_its_end(*order)
    assert "starting a mesh for this run: built-in, 1 prefill + 1 decode workers" in out
    assert "of 40 requests have their outcome already" in out and "the mesh has ended" in out
    assert len(answers(output)) == 40


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
