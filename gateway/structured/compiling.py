"""The process that compiles costly grammars for gateway/structured/costly.py, one after the other
(gateway/helpers/child.py).

Nothing can interrupt llguidance while it compiles, and some short grammars take hours. So each is compiled in a fork of
this process, which the kernel ends when its processor time or its memory is used up."""

import json
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from mesh.messages.grammar import NO_TEXT, GrammarFault, Grammars

MOST_SECONDS = 1.0  # processor time for one grammar
PATIENCE_SECONDS = 60.0  # time by the clock for one grammar, on a machine whose processors are busy
MOST_BYTES = 1 << 29  # memory that one grammar may take
TOO_COSTLY = (
    f"it takes more than {MOST_SECONDS:g} s or {MOST_BYTES >> 20} MiB of memory to compile: write it with fewer "
    "repeats (*, +, ?, {m,n})"
)
WHY_NOT = "why_not"  # key of an answer; an answer without it says that nothing was found out
# How a bound ends the fork of a costly grammar: its time, its memory or its stack is used up.
BY_A_BOUND = (signal.SIGPROF, signal.SIGABRT, signal.SIGSEGV)


def why_not(grammars: Grammars, grammar: str) -> str | None:
    """Why no worker could follow the grammar; None: workers can."""
    try:
        return None if grammars.begins(grammar) else NO_TEXT
    except GrammarFault as fault:
        return str(fault)


def prepare() -> Callable[[bytes], bytes]:
    grammars = Grammars()
    _ = grammars.tokenizer  # so that no fork has to make it
    return partial(answer, grammars)


def answer(grammars: Grammars, grammar: bytes) -> bytes:
    """The reason against the grammar, as JSON."""
    try:
        found = verdict(*_in_fork(grammars, grammar.decode()))
    except OSError:  # the system has no process or no descriptor left
        found = {}
    return json.dumps(found).encode()


def verdict(answer: bytes, status: int) -> dict[str, str | None]:
    """The finding of a fork that ended like this; empty: the machine may have ended it, or left it no time."""
    if status == 0 and answer:
        return {WHY_NOT: json.loads(answer)}
    return {WHY_NOT: TOO_COSTLY} if os.WIFSIGNALED(status) and os.WTERMSIG(status) in BY_A_BOUND else {}


def _in_fork(grammars: Grammars, grammar: str) -> tuple[bytes, int]:
    """The answer of a fork, and how it ended."""
    reader, writer = os.pipe()
    with open(reader, "rb") as answers:
        try:
            child = os.fork()
            if not child:
                _answer(grammars, grammar, writer)
        finally:
            os.close(writer)
        answer = answers.read()
    return answer, os.waitpid(child, 0)[1]


def _answer(grammars: Grammars, grammar: str, writer: int) -> NoReturn:
    """The life of a fork."""
    status = 1
    try:
        _bound()
        os.write(writer, json.dumps(why_not(grammars, grammar)).encode())
        status = 0
    except MemoryError:
        os.abort()
    finally:
        os._exit(status)


def _bound() -> None:
    """The kernel ends this process when it takes too much, whatever code runs then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what llguidance writes when its memory is used up
    with open("/proc/self/statm") as sizes:
        now = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, now + MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
