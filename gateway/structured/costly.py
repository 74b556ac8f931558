"""Grammars whose cost cannot be told beforehand: a process of their own compiles them, within a bound of its time.

Step 1 of a request's life. Most grammars compile in some milliseconds. Lark of a client, and expressions of many
repeats, may take hours: each terminal that names another one ten times multiplies the cost by a hundred."""

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gateway.fairness.client_turns import FairTurns
from gateway.structured.compiling import WHY_NOT
from mesh.errors import Unavailable
from mesh.messages.grammar import is_of_client

PLAIN_REPEATS = 100  # repeats in a grammar that is compiled in some milliseconds; the cost may be their square
PLAIN_CHARACTERS = 16_384
MOST_WAITING = 16  # grammars, and how long one may wait
WAIT_SECONDS = 10.0
KNOWN = 1024  # verdicts that are kept
NOT_FOUND_OUT = "the machine of this gateway had no time or memory to compile the request's grammar; try again later"
_REPEAT = re.compile(r"[*+?]|\{\d*,\d*\}")


def is_costly(grammar: str) -> bool:
    """Whether the grammar may take long to compile."""
    if is_of_client(grammar) or len(grammar) > PLAIN_CHARACTERS:
        return True
    return sum(1 for _ in _REPEAT.finditer(grammar)) > PLAIN_REPEATS


class CostlyGrammars:
    """Compiles one grammar at a time. The process starts with the first of them and ends with this object."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "costly-grammar")
        self._turns = FairTurns(
            "grammars that are costly to compile", at_once=1, waiting=MOST_WAITING, longest_seconds=WAIT_SECONDS
        )
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        self._running: list[subprocess.Popen[bytes]] = []  # none or one
        weakref.finalize(self, _end, self._running)

    async def why_not(self, grammar: str) -> str | None:
        """Why no worker could follow the grammar; None: workers can."""
        raw = grammar.encode("utf-8", "surrogatepass")
        key = hashlib.blake2b(raw, digest_size=16).digest()
        if key not in self._known:
            async with self._turns.turn():
                if key not in self._known:  # another request may have asked the same meanwhile
                    await self._find_out(key, raw)
        self._known.move_to_end(key)
        return self._known[key]

    async def _find_out(self, key: bytes, raw: bytes) -> None:
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._ask, raw)
        try:
            self._known[key] = await asyncio.shield(work)
        finally:
            await asyncio.wait((work,))  # the thread is not free before
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)

    # ---- in the thread

    def _ask(self, raw: bytes) -> str | None:
        for _ in range(2):  # the process may have been ended from outside since the last grammar
            with suppress(OSError):
                process = self._process()
                assert process.stdin is not None and process.stdout is not None, "both are pipes"
                process.stdin.write(b"%d\n%b" % (len(raw), raw))
                process.stdin.flush()
                if line := process.stdout.readline():
                    found: dict[str, str | None] = json.loads(line)
                    if WHY_NOT in found:
                        return found[WHY_NOT]
                    break
            _end(self._running)
        raise Unavailable(NOT_FOUND_OUT)  # the next request asks again

    def _process(self) -> subprocess.Popen[bytes]:
        if not self._running:
            command = [sys.executable, "-P", "-m", "gateway.structured.compiling"]
            path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            started = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=path, start_new_session=True
            )
            self._running.append(started)
        return self._running[0]


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    while running:
        process = running.pop()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None, "both are pipes"
            with suppress(OSError):  # bytes that the process has not read
                pipe.close()
        process.wait()
