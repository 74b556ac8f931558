"""Settings for all tests, and the last resort against a test that hangs.

hypothesis judges no test by its time. It is imported here, before any test runs: some releases of Python 3.11 fail to
compile modules that are imported at the end of a run, and pytest's plugin would import it then. Where pytest runs
several processes, tests that share a mesh, another fixture or a cached result of their file run in one of them, which
makes it once; and so do the tests that read all files of the repository, which are parsed once.

pytest-timeout ends a test by a signal, which Python handles only between two of its own instructions. A test that waits
in C hears none: uvloop's `close` waits there for ever when a test has left a stream open. So a thread looks too: a test
that outlives its limit by a minute ends the whole process, after its name and all stacks are on stderr.

Three costs are avoided. Libraries that compute beside Baton's own do so on one thread: those of several processes
would wait for each other, busily. HTTP clients trust no public authority here, unless a test names one: each
client would read all of the machine's certificates anew, which takes longer than most tests do. And what collecting
thousands of tests leaves is kept from the garbage collector."""

import faulthandler
import gc
import os
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

gc.disable()  # until all tests are collected
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

GRACE_SECONDS = 60.0  # beyond the limit of pytest-timeout


class LastResort:
    """Ends the process of a test that nothing else ends."""

    def __init__(self, stderr: int = 2, end_process: Callable[[int], object] = os._exit) -> None:
        self.stderr, self._end_process = stderr, end_process
        self._over: threading.Event | None = None

    def begin(self, name: str, seconds: float) -> None:
        self._over = over = threading.Event()
        threading.Thread(target=self._watch, args=(over, name, seconds), daemon=True, name="last-resort").start()

    def end(self) -> None:
        if self._over is not None:
            self._over.set()

    def _watch(self, over: threading.Event, name: str, seconds: float) -> None:
        if not over.wait(seconds):
            text = f"\n{name} hangs where no signal reaches it, for {seconds:g} s by now: the process ends\n"
            os.write(self.stderr, text.encode())
            faulthandler.dump_traceback(self.stderr, all_threads=True)
            self._end_process(1)


LAST_RESORT = LastResort()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_configure() -> None:
    LAST_RESORT.stderr = os.dup(2)  # while tests run, pytest redirects the original
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)  # which holds no certificate


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    LAST_RESORT.begin(item.nodeid, settings.timeout + GRACE_SECONDS)
    return (yield)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Any:
    LAST_RESORT.end()
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: a quarter of the time tests wait for processes, sockets and clocks."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        """Gives tests with the same words to one process."""

        def _split_scope(self, nodeid: str) -> str:
            return together(config.rootpath, nodeid)

    return Together(config, log)


def together(root: Path, nodeid: str) -> str:
    """Words that a test shares with those that must run in its process: its own name where there are none."""
    file = nodeid.partition("::")[0]
    if re.fullmatch(r"tests/unit/test_\w+\.py", file):
        return "these read all files of the repository"
    return file if makes_for_all(root / file) else nodeid


@cache
def makes_for_all(file: Path) -> bool:
    """Whether a fixture or a result of this file is made once for all its tests."""
    return re.search(r'scope="module"|^@cache$', file.read_text(), re.MULTILINE) is not None
