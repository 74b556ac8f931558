"""The command as a user runs it, with real processes, files and sockets: kills, Ctrl-C, restarts, full disks."""

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import build
from tests.unit.cli.batch.batch_files import EchoServer, entry, numbered, outcomes, write_lines
from tests.unit.cli.load.fake_server import Answers, FakeRequest, listening, whole

ROOT = Path(__file__).resolve().parents[4]
MAIN = "from cli.main import main; main()"


async def start(*arguments: object, code: str = MAIN, **environment: str) -> asyncio.subprocess.Process:
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-c", code, "batch", "run", *map(str, arguments)),
        env=clean | {"PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"} | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def batch(*arguments: object, **options: str) -> tuple[int, str, str]:
    return await finish(await start(*arguments, **options))


def slow(server: EchoServer, seconds: float) -> Answers:
    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        if request.path != "/v1/models":
            await asyncio.sleep(seconds)
        async for piece in server.answers(request):
            yield piece

    return answers


async def test_a_run_ends_with_all_outcomes_and_one_json_object(tmp_path: Path) -> None:
    source, output, server = numbered(tmp_path / "in", 12), tmp_path / "out", EchoServer(whole(400, {"error": {}}))
    async with listening(server.answers) as address:
        order = (source, output, "--http", address, "--concurrency", 3, "--json")
        status, out, err = await batch(*order, BATON_API_KEY="baton-key")
        again = await batch(*order)
    assert status == 1, err  # one failed
    totals = json.loads(out)
    assert {key: totals[key] for key in ("requests", "found", "answered", "failed", "missing", "tried_again")} == {
        "requests": 12, "found": 0, "answered": 11, "failed": 1, "missing": 0, "tried_again": 0,
    }  # fmt: skip
    assert totals["completion_tokens"] == 22 and totals["tokens_per_second"] > 0 and not totals["interrupted"]
    assert set(outcomes(output)) == {f"r-{n}" for n in range(12)}
    assert f"{output} says why 1 failed" in err and "3 at a time" in err
    assert {each.headers["authorization"] for each in server.requests} == {"Bearer baton-key"}
    assert {each.fields["priority"] for each in server.requests} == {300}
    assert again[0] == 1 and "12 of 12 requests have their outcome already, 1 of them failed" in again[2]
    assert len(server.requests) == 12


async def test_failed_requests_have_a_file_of_their_own_if_it_is_named(tmp_path: Path) -> None:
    source, output, errors = numbered(tmp_path / "in", 3), tmp_path / "out", tmp_path / "errors"
    async with listening(EchoServer(whole(400, {"error": {}})).answers) as address:
        order = (source, output, "--http", f"http://{address}/v1", "--errors", errors, "--concurrency", 1)
        status, _, err = await batch(*order)
    assert status == 1 and f"in {output} and {errors}" in err
    assert set(outcomes(errors)) == {"r-0"} and set(outcomes(output)) == {"r-1", "r-2"}


async def killed_until_done(order: tuple[object, ...], output: Path, seed: int, kills: int, **options: str) -> None:
    """Run the command, kill it after some more outcomes each time, and let it end after the last kill."""
    random = Random(seed)
    for _ in range(kills):
        process = await start(*order, **options)
        reading = asyncio.ensure_future(process.communicate())
        wanted = (output.stat().st_size if output.exists() else 0) + random.randrange(1, 4000)
        while not reading.done() and (not output.exists() or output.stat().st_size < wanted):
            await asyncio.sleep(0.002)
        if not reading.done():
            process.kill()
        await reading
    status, _, err = await batch(*order, **options)
    assert status == 0, err


async def test_after_any_number_of_kills_every_request_stands_in_the_output_once(tmp_path: Path) -> None:
    source, output, server = numbered(tmp_path / "in", 90), tmp_path / "out", EchoServer()
    async with listening(slow(server, 0.01)) as address:
        await killed_until_done((source, output, "--http", address, "--concurrency", 4), output, seed=1, kills=3)
    found = outcomes(output)
    assert set(found) == {f"r-{n}" for n in range(90)}
    assert all(each["response"]["body"]["choices"][0]["text"] == name for name, each in found.items())
    assert len(server.requests) < 90 + 3 * 5  # only what was under way is asked again


DEAF = "from gateway.batches.ledger import BatchLedger; BatchLedger.has = lambda self, key: False; "


async def test_negative_control_without_the_ledger_kills_leave_requests_twice(tmp_path: Path) -> None:
    source, output, server = numbered(tmp_path / "in", 60), tmp_path / "out", EchoServer()
    async with listening(slow(server, 0.01)) as address:
        order = (source, output, "--http", address, "--concurrency", 4)
        with pytest.raises(AssertionError):
            await killed_until_done(order, output, seed=1, kills=1, code=DEAF + MAIN)
            outcomes(output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_cancels_what_runs_and_says_how_to_go_on(number: int, tmp_path: Path) -> None:
    source, output, server, stuck = numbered(tmp_path / "in", 9), tmp_path / "out", EchoServer(), asyncio.Event()
    waiting = gone = 0

    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        nonlocal waiting, gone
        if len(server.requests) >= 5 and request.path != "/v1/models":
            waiting += 1
            if waiting == 2:
                stuck.set()
            try:
                while True:  # until the client is gone
                    await asyncio.sleep(0.01)
                    yield b"HTTP/1.1 102 Processing\r\n\r\n"
            finally:
                gone += 1
        async for piece in server.answers(request):
            yield piece

    async with listening(answers) as address:
        order = (source, output, "--http", address, "--concurrency", 2, "--json")
        process = await start(*order)
        await stuck.wait()
        process.send_signal(number)
        status, out, err = await finish(process)
        async with asyncio.timeout(60):
            while gone < 2:
                await asyncio.sleep(0.01)
    assert status == 130 and json.loads(out)["interrupted"] and json.loads(out)["missing"] == 4, err
    assert "4 of 9 requests have no outcome yet" in err and "The same command goes on" in err
    assert set(outcomes(output)) == {f"r-{n}" for n in range(5)}
    assert "Traceback" not in err
    async with listening(server.answers) as address:
        assert (await batch(source, output, "--http", address))[0] == 0
    assert len(outcomes(output)) == 9


async def test_a_gateway_that_restarts_costs_no_request(tmp_path: Path) -> None:
    """The server ends in the middle of its answers, refuses connections for a while, and listens there again."""
    source, output, server = numbered(tmp_path / "in", 40), tmp_path / "out", EchoServer()
    async with listening(slow(server, 0.05)) as address:
        process = await start(source, output, "--http", address, "--concurrency", 4, "--json")
        while len(server.requests) < 10:
            await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    host, _, port = address.rpartition(":")
    async with listening(server.answers, host, port=int(port)):
        status, out, err = await finish(process)
    assert status == 0, err
    assert json.loads(out)["tried_again"] >= 4 and json.loads(out)["failed"] == 0
    assert set(outcomes(output)) == {f"r-{n}" for n in range(40)}


async def test_negative_control_with_one_try_a_restart_costs_requests(tmp_path: Path) -> None:
    source, output, server = numbered(tmp_path / "in", 20), tmp_path / "out", EchoServer()
    async with listening(slow(server, 0.05)) as address:
        process = await start(source, output, "--http", address, "--concurrency", 4, "--tries", 1)
        while len(server.requests) < 5:
            await asyncio.sleep(0.01)
    status, _, err = await finish(process)
    assert status == 1, err
    lost = [each for each in outcomes(output).values() if each["error"]]
    assert lost and {each["error"]["code"] for each in lost} <= {"connection_lost", "cannot_connect"}


async def test_a_full_disk_ends_the_run_by_name_and_tears_no_line(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: the kernel writes a part of a line, then fails."""
    source, output, server = numbered(tmp_path / "in", 50), tmp_path / "out", EchoServer()
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, {resource.RLIM_INFINITY})); "
    async with listening(server.answers) as address:
        order = (source, output, "--http", address, "--concurrency", 3)
        status, _, err = await batch(*order, code=limit + MAIN)
        assert status == 1 and f"{output} cannot be written: File too large. It holds whole lines only" in err
        assert "requests have no outcome yet" in err and "Traceback" not in err
        assert 5 < len(outcomes(output)) < 50
        assert (await batch(*order))[0] == 0
    assert set(outcomes(output)) == {f"r-{n}" for n in range(50)}


async def test_a_faulty_input_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", [entry("a"), entry("a"), entry("b", method="GET"), "no JSON"])
    server = EchoServer()
    async with listening(server.answers) as address:
        status, _, err = await batch(source, tmp_path / "out", "--http", address)
    assert status == 2 and server.requests == [] and not (tmp_path / "out").exists()
    assert (
        "3 lines are no request of a batch" in err and "line 2: custom_id" in err and "line 4: this is no JSON" in err
    )


def busy_output(folder: Path) -> tuple[object, ...]:
    numbered(folder / "old", 2, first=7)
    (folder / "out").write_text(
        json.dumps({"id": "batch_req_1", "custom_id": "r-7", "response": {"status_code": 200}, "error": None}) + "\n"
    )
    return (folder / "in", folder / "out")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (lambda folder: (folder / "in", folder / "in"), 2, "the output and the input are the same file"),
        (lambda folder: (folder / "in", folder / "none/out"), 2, "cannot be written: No such file or directory"),
        (lambda folder: (folder / "none", folder / "out"), 2, "cannot be read: No such file or directory"),
        (lambda folder: (folder / "in", folder / "out", "--http", "a b"), 2, "--http 'a b' is no address"),
        (lambda folder: (folder / "in", folder / "out", "--http", "x", "--model", "y"), 2, "exclude each other"),
        (lambda folder: (folder / "in", folder / "out", "--model", "/none"), 2, "is not a Hugging Face model folder"),
        (busy_output, 2, "outcomes of 1 requests that the input lacks ('r-7') stand there"),
    ],
)
def test_wrong_usage_ends_with_one_message(arguments: Any, status: int, message: str, tmp_path: Path) -> None:
    numbered(tmp_path / "in", 2)
    result = CliRunner().invoke(build("batch"), ["batch", "run", *map(str, arguments(tmp_path))])
    assert (result.exit_code, message in result.output) == (status, True), result.output


def test_no_mesh_is_said_before_anything_is_asked(tmp_path: Path, refusing_address: str) -> None:
    order = ("batch", "run", str(numbered(tmp_path / "in", 2)), str(tmp_path / "out"), "--http", refusing_address)
    result = CliRunner().invoke(build("batch"), order)
    assert result.exit_code == 1 and f"no mesh answers at http://{refusing_address}" in result.output
    assert "`baton up`" in result.output


async def test_a_wrong_key_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    source, output = numbered(tmp_path / "in", 2), tmp_path / "out"

    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        yield whole(401, {"error": {"message": "this gateway wants a key"}})

    async with listening(answers) as address:
        status, _, err = await batch(source, output, "--http", address)
    assert status == 1 and "status 401: this gateway wants a key" in err and outcomes(output) == {}


async def test_a_failure_of_an_earlier_run_is_told_again(tmp_path: Path) -> None:
    source, output, server = numbered(tmp_path / "in", 3), tmp_path / "out", EchoServer(whole(400, {"error": {}}))
    async with listening(server.answers) as address:
        runs = [await batch(source, output, "--http", address, "--json") for _ in range(2)]
    assert [status for status, _, _ in runs] == [1, 1]
    again = json.loads(runs[1][1])
    assert (again["found"], again["failed"], again["failed_before"]) == (3, 0, 1) and "1 failed" in runs[1][2]


async def test_an_output_that_is_removed_and_an_input_that_is_cut_end_the_run_with_the_reason(tmp_path: Path) -> None:
    async with listening(slow(EchoServer(), 0.1)) as address:
        for name, meddle, words in (
            ("out", lambda source, output: output.unlink(), "was moved or removed during the run"),
            ("in", lambda source, output: os.truncate(source, 0), "was changed during the run"),
        ):
            source, output = numbered(tmp_path / f"{name}-in", 400), tmp_path / f"{name}-out"
            running = await start(source, output, "--http", address, "--concurrency", 8)
            while not output.exists() or not output.stat().st_size:
                await asyncio.sleep(0.01)
            meddle(source, output)
            status, _, said = await finish(running)
            assert status == 1 and words in said, said


def test_a_pipe_as_input_is_refused_though_nobody_writes_into_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in")
    done = CliRunner().invoke(build("batch"), ["batch", "run", str(tmp_path / "in"), str(tmp_path / "out")])
    assert done.exit_code == 2 and "is no regular file" in done.output
