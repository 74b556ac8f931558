"""A process that stands still as a whole is found by the signs that it no longer gives; one that starts, or that the
whole machine stops for a while, is left alone."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.local_mesh import signs_of_life
from cli.local_mesh.signs_of_life import LOOK_SECONDS, SILENT_SECONDS, LifeJudge, SignsOfLife, signs_given
from cli.local_mesh.supervisor import BACKOFF_SECONDS, Service, Supervisor
from mesh.rules import RULES

THREAD_SECONDS = 0.3  # in which a thread that gives a sign every 10 ms gives one
PATIENCE_SECONDS = 120.0  # a guard against hanging: no test depends on how fast the machine is
# Stands for a service: it serves, and gives signs from a thread as one does.
SERVICE = """
import asyncio, sys, time
from cli.local_mesh.signs_of_life import signs_given
async def serve():
    print('x ready at 127.0.0.1:1', file=sys.stderr, flush=True)
    await asyncio.sleep(600)
with asyncio.Runner() as runner, signs_given(int(sys.argv[-1]), runner.get_loop()):
    runner.run(serve())
"""


@pytest.fixture
def signs() -> Iterator[SignsOfLife]:
    made = SignsOfLife()
    yield made
    made.close()


def looks(judge: LifeJudge, signs: SignsOfLife, begin: float, end: float) -> float | None:
    """Looks at the usual times; the time of the first at which the process stands still."""
    now = begin
    while now < end:
        now += LOOK_SECONDS
        if judge.look(now, [signs]):
            return now
    return None


def test_a_process_is_judged_from_its_first_sign_on(signs: SignsOfLife) -> None:
    judge = LifeJudge(0.0)
    assert looks(judge, signs, 0.0, 3600.0) is None, "it may load weights for an hour"
    os.write(signs.writer, b".")
    found = looks(judge, signs, 3600.0, 3700.0)
    assert found is not None and 0 < found - 3600.0 - SILENT_SECONDS <= 2 * LOOK_SECONDS


def test_a_process_that_gives_signs_is_never_found_however_late_some_of_them_are(signs: SignsOfLife) -> None:
    judge, now = LifeJudge(0.0), 0.0
    for pause in (1.0, 1.0, SILENT_SECONDS - 1.0, 1.0, SILENT_SECONDS - 1.0):
        os.write(signs.writer, b".")
        assert looks(judge, signs, now, now + pause) is None
        now += pause


def test_time_for_which_the_supervisor_itself_did_not_run_is_excused(signs: SignsOfLife) -> None:
    """Negative control: with the looks in time, the same silence is found."""
    judge = LifeJudge(0.0)
    os.write(signs.writer, b".")
    judge.look(LOOK_SECONDS, [signs])
    assert judge.look(1000.0, [signs]) == [], "the whole machine may have been paused"
    assert looks(judge, signs, 1000.0, 1000.0 + SILENT_SECONDS - 2 * LOOK_SECONDS) is None
    assert looks(judge, signs, 1000.0 + SILENT_SECONDS - 2 * LOOK_SECONDS, 2000.0) is not None


def test_a_process_is_started_again_within_a_lease_and_five_seconds() -> None:
    assert SILENT_SECONDS > RULES.lease_seconds, "its peers have left it before it is killed"
    assert SILENT_SECONDS + LOOK_SECONDS + BACKOFF_SECONDS[0] < RULES.lease_seconds + 5.0


async def test_signs_come_while_the_loop_is_busy_and_end_when_it_has_not_turned_for_too_long(
    signs: SignsOfLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signs_of_life, "SIGN_SECONDS", 0.01)
    now = [0.0]
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now[0])
    with signs_given(os.dup(signs.writer), loop):
        for seconds, gives in ((1.0, True), (59.0, True), (61.0, False)):
            now[0] = seconds  # the loop itself does not turn: this test holds it
            time.sleep(THREAD_SECONDS)
            signs.came()
            time.sleep(THREAD_SECONDS)
            assert signs.came() is gives


def test_a_pipe_that_is_full_or_closed_does_not_hold_or_end_the_service(signs: SignsOfLife) -> None:
    with pytest.raises(BlockingIOError):
        while True:
            os.write(signs.writer, bytes(4096))
    assert signs.came() and not signs.came()


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Supervisor, list[str]]]:
    root = Path(__file__).resolve().parents[4]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(root / name) for name in ("", "kernels", "protos")))
    lines: list[str] = []
    yield Supervisor([Service("a", ("-c", SERVICE))], lambda name, line: lines.append(line)), lines


async def test_a_stopped_process_is_killed_and_starts_again(supervised: tuple[Supervisor, list[str]]) -> None:
    supervisor, lines = supervised
    supervisor.start()
    try:
        await supervisor.all_ready(PATIENCE_SECONDS)
        await stop(supervisor)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while supervisor.running[0].starts < 2:
                await asyncio.sleep(0.05)
        await supervisor.all_ready(PATIENCE_SECONDS)
    finally:
        await supervisor.stop()
    assert any(line.startswith("has stood still for ") for line in lines), lines
    assert "ended (signal 9), starts again in 0.5 s" in lines


HOLDS_THE_LOCK = SERVICE.replace(
    "await asyncio.sleep(600)", "await asyncio.sleep(3)\n    import ctypes\n    ctypes.PyDLL(None).sleep(600)"
)


async def test_a_process_whose_native_code_keeps_pythons_lock_is_killed_and_starts_again(
    supervised: tuple[Supervisor, list[str]],
) -> None:
    lines = list[str]()
    supervisor = Supervisor([Service("a", ("-c", HOLDS_THE_LOCK))], lambda name, line: lines.append(line))
    supervisor.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while supervisor.running[0].starts < 2:
                await asyncio.sleep(0.05)
    finally:
        await supervisor.stop()
    assert any(line.startswith("has stood still for ") for line in lines), lines


async def test_without_a_judge_a_stopped_process_stays_stopped(
    supervised: tuple[Supervisor, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test above."""
    look = LifeJudge.look
    monkeypatch.setattr(LifeJudge, "look", lambda *given: look(*given) and [])
    supervisor, _ = supervised
    supervisor.start()
    try:
        await supervisor.all_ready(PATIENCE_SECONDS)
        await stop(supervisor)
        await asyncio.sleep(RULES.lease_seconds + 6.0)
        process = supervisor.running[0].process
        assert supervisor.running[0].starts == 1 and process is not None and process.returncode is None
        process.kill()
    finally:
        await supervisor.stop()


async def stop(supervisor: Supervisor) -> None:
    """Stop the process as a whole after it has given its first sign."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (running := supervisor.running[0]).signs is None or running.signs.heard_seconds is None:
            await asyncio.sleep(0.05)
    assert running.process is not None
    running.process.send_signal(signal.SIGSTOP)
