"""gateway/helpers: a child answers one task after the other, is killed when it takes too long, and is replaced."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.helpers import child
from gateway.helpers.child import read_message, write_message
from gateway.helpers.process import HelperDied, HelperProcess


def prepare() -> Callable[..., bytes]:
    return answer


def answer(what: bytes, *more: bytes) -> bytes:
    if what == b"sleep":
        time.sleep(float(more[0]))
    if what == b"die":
        os._exit(1)
    if what == b"environment":
        return b" ".join(sorted(name.encode() for name in os.environ))
    return str(os.getpid()).encode() if what == b"pid" else b"".join((what, *more))


@pytest.fixture
async def helper() -> AsyncIterator[HelperProcess]:
    made = HelperProcess(prepare)
    yield made
    await made.aclose()
    assert not made._running


async def test_one_child_answers_one_task_after_the_other(helper: HelperProcess) -> None:
    assert not helper._running, "it starts with the first task"
    first = await helper.ask(b"pid", read=int)
    assert first == await helper.ask(b"pid", read=int) == helper._running[0].pid != os.getpid()
    large = os.urandom(3_000_000)
    assert await helper.ask(b"a\n", large, b"", b"z", read=bytes) == b"a\n" + large + b"z"


async def test_a_child_that_died_since_its_last_task_is_replaced_unseen(helper: HelperProcess) -> None:
    first = await helper.ask(b"pid", read=int)
    os.kill(first, signal.SIGKILL)
    assert await helper.ask(b"pid", read=int) != first


async def test_a_task_that_ends_its_child_gets_no_answer_and_the_next_one_does(helper: HelperProcess) -> None:
    for _ in range(2):
        with pytest.raises(HelperDied) as died:
            await helper.ask(b"die", read=bytes)
        assert not died.value.unread
        assert await helper.ask(b"a", read=bytes) == b"a"


async def test_after_its_time_a_child_is_killed_and_its_task_does_not_begin_again(helper: HelperProcess) -> None:
    first, began = await helper.ask(b"pid", read=int), time.monotonic()
    with pytest.raises(TimeoutError):
        await helper.ask(b"sleep", b"30", read=bytes, seconds=0.2)
    assert time.monotonic() - began < 10, "a second child would sleep for as long"
    assert not helper._running
    assert await helper.ask(b"pid", read=int, seconds=30.0) != first


async def test_a_caller_that_leaves_ends_a_task_with_a_limit_and_waits_for_one_without(helper: HelperProcess) -> None:
    first = await helper.ask(b"pid", read=int)
    for seconds, stays in ((None, True), (30.0, False)):
        sleeps = b"0.3" if stays else b"30"
        task = asyncio.create_task(helper.ask(b"sleep", sleeps, read=bytes, seconds=seconds))
        await asyncio.sleep(0.1)
        task.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait((task,))
        assert task.cancelled() and ([each.pid for each in helper._running] == [first]) == stays


async def test_closing_ends_a_task_that_runs() -> None:
    helper = HelperProcess(prepare)
    await helper.ask(b"a", read=bytes)
    task = asyncio.create_task(helper.ask(b"sleep", b"30", read=bytes))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(10):
        await helper.aclose()
    with pytest.raises(HelperDied):
        await task
    assert not helper._running


async def test_an_answer_that_is_too_long_is_none(helper: HelperProcess) -> None:
    assert await helper.ask(b"12345", read=bytes, most_bytes=5) == b"12345"
    with pytest.raises(HelperDied):
        await helper.ask(b"123456", read=bytes, most_bytes=5)
    assert not helper._running


async def test_a_bare_child_has_no_environment(helper: HelperProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    bare = HelperProcess(prepare, bare=True)
    assert b"SECRET" not in await bare.ask(b"environment", read=bytes)
    await bare.aclose()
    assert b"SECRET" in await helper.ask(b"environment", read=bytes)


async def test_the_child_ends_with_its_owner() -> None:
    helper = HelperProcess(prepare)
    await helper.ask(b"a", read=bytes)
    process = helper._running[0]
    del helper  # the helper's thread lets go of it in a moment
    assert await asyncio.to_thread(process.wait, 10) == -signal.SIGKILL


def test_a_child_that_has_needed_much_memory_ends_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = b"1\na1\nb"
    for kept, answers in ((1 << 40, b"1\na1\nb"), (0, b"1\na")):
        monkeypatch.setattr(child, "KEPT_KIB", kept)
        target = io.BytesIO()
        child.serve(lambda what: what, io.BytesIO(tasks), target)
        assert target.getvalue() == answers


def test_the_memory_of_the_process_that_starts_a_child_does_not_count() -> None:
    program = (
        "import subprocess, sys\n"
        "large = b'x' * (700 << 20)\n"
        "run = [sys.executable, '-m', 'gateway.helpers.child', 'gateway.text.template_process:prepare']\n"
        "print(subprocess.run(run, input=sys.argv[1].encode() * 2, stdout=subprocess.PIPE).stdout.count(b'text'))\n"
    )
    task = '{"template": "a", "variables": {}, "now": ""}'
    path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-c", program, f"{len(task)}\n{task}"]
    assert subprocess.run(run, env=path, capture_output=True, check=True, timeout=60).stdout == b"2\n"


@pytest.mark.parametrize(
    "sent", [b"", b"\n", b"-1\nabc", b"x\n", b"3\nab", b"9" * 100 + b"\n", b"1 9\nabc", b"7\nabcdefg"]
)
def test_what_is_no_whole_message_is_none(sent: bytes) -> None:
    assert read_message(io.BytesIO(sent), most_bytes=6) is None


def test_a_message_keeps_its_parts() -> None:
    pipe = io.BytesIO()
    write_message(pipe, b"a\n", b"", b"bc")
    write_message(pipe, b"")
    pipe.seek(0)
    assert [read_message(pipe) for _ in range(3)] == [[b"a\n", b"", b"bc"], [b""], None]
