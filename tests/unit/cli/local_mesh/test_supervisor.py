"""Processes are started, restarted and stopped as promised; small scripts stand in for the services."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.errors import MeshFailed
from cli.local_mesh import supervisor
from cli.local_mesh.priority import stand_back
from cli.local_mesh.supervisor import ProcessState, Service, Supervisor, brief
from mesh.rules import RULES
from mesh.telemetry.lossy_output import WRITER
from tests.harness.waiting import within

READY = "import sys, time\nprint('x ready at 127.0.0.1:1', file=sys.stderr, flush=True)\ntime.sleep(600)"


def service(name: str, script: str) -> Service:
    return Service(name, ("-c", script))


def quiet(name: str, line: str) -> None:
    pass


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


PATIENCE_SECONDS = 120.0  # a guard against hanging: no test depends on how fast the machine starts a process


@pytest.mark.filterwarnings("error")
async def test_a_stop_in_the_middle_of_a_start_leaves_no_process_and_no_pipe() -> None:
    for wait_seconds in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05):
        running = Supervisor([service("a", READY)], quiet)
        running.start()
        await asyncio.sleep(wait_seconds)
        await running.stop()
        process = running.running[0].process
        assert process is None or not alive(process.pid)
        del running, process
        gc.collect()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "prefill ready at 10.0.0.1:7 class model=5b weights=bf16 fingerprint 5d body avx2",
            "prefill ready at 10.0.0.1:7",
        ),
        ("decode 10.0.0.1:7 is up, class model=5b weights=bf16 fingerprint 5d", "decode 10.0.0.1:7 is up"),
        (
            "refused prefill 10.0.0.1:7: its class model=5b differs",
            "refused prefill 10.0.0.1:7: its class model=5b differs",
        ),
        (
            "gateway ready at http://127.0.0.1:8000 grpc 127.0.0.1:50051",
            "gateway ready at http://127.0.0.1:8000 grpc 127.0.0.1:50051",
        ),
    ],
)
def test_the_lines_of_a_start_are_shown_without_the_numerics_class_and_no_other_line_is_cut(
    line: str, shown: str
) -> None:
    assert brief(line) == shown


async def test_a_mesh_is_ready_when_every_service_said_so_and_nothing_is_left_after_stop() -> None:
    lines: list[tuple[str, str]] = []
    mesh = Supervisor([service("a", READY), service("b", READY)], lambda *line: lines.append(line))
    mesh.start()
    await mesh.all_ready(PATIENCE_SECONDS)
    processes = [running.process for running in mesh.running]
    await mesh.stop()
    assert sorted(lines) == [("a", "x ready at 127.0.0.1:1"), ("b", "x ready at 127.0.0.1:1")]
    assert [process.returncode for process in processes if process] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize("niceness", [0, 5])
async def test_a_service_stands_back_for_the_others_as_far_as_it_should(niceness: int) -> None:
    mesh = Supervisor([Service("decode-0", ("-c", READY), niceness=niceness)], quiet)
    mesh.start()
    await mesh.all_ready(PATIENCE_SECONDS)
    process = mesh.running[0].process
    assert process is not None
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + niceness
    group = Path(f"/proc/{process.pid}/autogroup")
    if group.exists():  # Linux weighs whole sessions where it can
        await within(PATIENCE_SECONDS, lambda: group.read_text().split()[-1] == str(niceness))
    await mesh.stop()


async def test_a_kernel_that_changes_one_session_at_a_time_is_asked_again() -> None:
    asked = list[int]()

    def session(pid: int, niceness: int) -> None:
        asked.append(niceness)
        if len(asked) < 3:
            raise BlockingIOError

    with subprocess.Popen(["sleep", "60"]) as sleeping:
        await stand_back(sleeping.pid, 5, session)
        assert asked == [5, 5, 5]
        assert os.getpriority(os.PRIO_PROCESS, sleeping.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5
        sleeping.kill()


async def test_a_process_that_has_ended_or_a_kernel_that_refuses_is_no_failure() -> None:
    def refuses(pid: int, niceness: int) -> None:
        raise PermissionError

    ended = subprocess.Popen(["true"])
    ended.wait()
    await stand_back(ended.pid, 5)
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        await stand_back(sleeping.pid, 5, refuses)
        sleeping.kill()


async def test_a_dead_service_starts_again() -> None:
    lines: list[str] = []
    mesh = Supervisor([service("a", READY)], lambda name, line: lines.append(line))
    mesh.start()
    await mesh.all_ready(PATIENCE_SECONDS)
    first = mesh.running[0].process
    assert first is not None
    first.kill()
    await within(PATIENCE_SECONDS, lambda: mesh.running[0].starts == 2 and mesh.running[0].state is ProcessState.READY)
    await mesh.stop()
    assert "ended (signal 9), starts again in 0.5 s" in lines


async def test_wrong_settings_end_the_start_with_the_services_own_words() -> None:
    broken = "import sys; print('port 1 is taken', file=sys.stderr); sys.exit(2)"
    mesh = Supervisor([service("a", READY), service("b", broken)], quiet)
    mesh.start()
    with pytest.raises(MeshFailed, match=r"b cannot start:\n    port 1 is taken") as failed:
        await mesh.all_ready(PATIENCE_SECONDS)
    assert failed.value.status == 2
    await mesh.stop()


async def test_a_service_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.01,))
    mesh = Supervisor([service("a", "raise ValueError('broken')")], quiet)
    mesh.start()
    with pytest.raises(MeshFailed, match=r"a ended 3 times while it started:(.|\n)*ValueError: broken"):
        await mesh.all_ready(PATIENCE_SECONDS)
    await mesh.stop()


async def test_a_silent_start_runs_out_of_time() -> None:
    mesh = Supervisor([service("a", "import time; time.sleep(600)")], quiet)
    mesh.start()
    with pytest.raises(MeshFailed, match="a is not ready and has logged nothing"):
        await mesh.all_ready(0.3)
    await mesh.stop()


async def test_a_service_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "DRAIN_SECONDS", 0.2)
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY
    mesh = Supervisor([service("a", stubborn)], quiet)
    mesh.start()
    await mesh.all_ready(PATIENCE_SECONDS)
    process = mesh.running[0].process
    await mesh.stop()
    assert process is not None and process.returncode == -signal.SIGKILL


async def test_the_first_service_drains_as_long_as_it_may_and_the_others_outlive_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "DRAIN_SECONDS", 0.2)
    drains = (
        "import pathlib, signal, sys, time\n"
        "def leave(*_):\n"
        "    time.sleep(1.0)\n"
        f"    pathlib.Path({str(tmp_path / 'left')!r}).touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
    )
    mesh = Supervisor([Service("a", ("-c", drains + READY), drain_seconds=60.0), service("b", READY)], quiet)
    mesh.start()
    await mesh.all_ready(PATIENCE_SECONDS)
    first, second = [running.process for running in mesh.running]
    assert first is not None and second is not None
    stopping = asyncio.ensure_future(mesh.stop())
    await within(PATIENCE_SECONDS, lambda: first.returncode is not None or second.returncode is not None)
    assert (first.returncode, (tmp_path / "left").exists()) == (0, True)
    await stopping


async def test_stopping_during_the_start_leaves_nothing_behind() -> None:
    mesh = Supervisor([service(name, READY) for name in "abc"], quiet)
    mesh.start()
    await asyncio.sleep(0)
    await mesh.stop()
    await within(
        PATIENCE_SECONDS, lambda: not any(running.process and alive(running.process.pid) for running in mesh.running)
    )


async def test_a_line_without_end_does_not_stop_the_keeper() -> None:
    script = "import sys\nsys.stderr.write('x' * (3 << 20) + '\\n')\n" + READY
    mesh = Supervisor([service("a", script)], quiet)
    mesh.start()
    await mesh.all_ready(PATIENCE_SECONDS)
    await mesh.stop()


def test_a_service_dies_with_its_parent_even_when_that_is_killed() -> None:
    child = "import os, time\nfrom cli.local_mesh.orphan import die_with\ndie_with(os.getppid())\n"
    child += "print(os.getpid(), flush=True)\ntime.sleep(60)"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert alive(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_a_service_whose_parent_is_gone_already_ends_at_once() -> None:
    script = "from cli.local_mesh.orphan import die_with\ndie_with(1 << 22)\nprint('still here')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[4]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(root / name) for name in ("", "kernels", "protos")))


def test_the_longest_wait_before_a_start_is_far_below_the_time_for_which_requests_wait_for_a_worker() -> None:
    """A slower restart would come after the worker's requests have ended with UNAVAILABLE."""
    assert max(supervisor.BACKOFF_SECONDS) <= RULES.patience_seconds / 4
    assert list(supervisor.BACKOFF_SECONDS) == sorted(supervisor.BACKOFF_SECONDS)


async def test_a_service_is_restarted_though_no_line_of_it_can_be_shown() -> None:
    def full(name: str, line: str) -> None:
        raise OSError(28, "No space left on device")

    before = WRITER.lost
    supervisor = Supervisor([service("a", READY)], full)
    supervisor.start()
    try:
        await supervisor.all_ready(PATIENCE_SECONDS)
        process = supervisor.running[0].process
        assert process is not None
        process.kill()
        await within(PATIENCE_SECONDS, lambda: supervisor.running[0].starts == 2)
        await supervisor.all_ready(PATIENCE_SECONDS)
        await within(PATIENCE_SECONDS, lambda: WRITER.lost - before == 3)  # it is ready, it ended, it is ready again
    finally:
        await supervisor.stop()
