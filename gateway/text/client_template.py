"""Chat templates that a client sends with its request: rendered in a process that can do nothing else and is killed
when it takes too long.

A template is a program. The sandbox keeps it from the gateway's objects, but not from running for ever or from filling
the memory, and sandboxes have had holes. So each one renders in a fresh process without files, sockets, children and
environment, which no other client's template has run in."""

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from typing import Any

from gateway.fairness.client_turns import FairTurns
from gateway.text.jinja import Now
from mesh.errors import InvalidRequest, Unavailable

LONGEST = 65_536  # characters of a template
SECONDS = 10.0  # time that one may take, besides its limit of processor time
AT_ONCE = 2  # processes
WAITING = 16  # requests that may wait for a process, and how long
WAIT_SECONDS = 10.0
_MODULE = "gateway.text.template_process"


class ClientTemplates:
    def __init__(self, now: Now | None = None, *, seconds: float = SECONDS) -> None:
        self._now, self._seconds = now, seconds
        what = "requests with a chat_template of their own"
        self._turns = FairTurns(what, at_once=AT_ONCE, waiting=WAITING, longest_seconds=WAIT_SECONDS)

    async def render(self, source: str, variables: Mapping[str, Any], *, longest: int) -> str:
        """The prompt text. `longest`: characters that it may have."""
        if not source:
            raise InvalidRequest("chat_template", "chat_template is empty: leave it out for the model's own")
        if len(source) > LONGEST:
            raise InvalidRequest(
                "chat_template", f"chat_template has {len(source)} characters; at most {LONGEST} are allowed"
            )
        now = "" if self._now is None else self._now().isoformat()
        task = json.dumps({"template": source, "variables": variables, "now": now}).encode()
        async with self._turns.turn():
            output = await self._run(task, most_bytes=12 * longest + 4096)  # a character is at most \ud83d\ude00
        try:
            answer = json.loads(output)
        except ValueError:
            raise InvalidRequest("chat_template", "chat_template takes too much time or memory") from None
        if "text" in answer:
            return str(answer["text"])
        what = "refuses messages" if "refused" in answer else "cannot render messages"
        raise InvalidRequest("chat_template", f"chat_template {what}: {answer.get('refused', answer.get('error'))}")

    async def _run(self, task: bytes, *, most_bytes: int) -> bytes:
        """The output of the process; nothing if it is killed or fails."""
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-s", "-m", _MODULE, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={"PYTHONPATH": path}
        )
        try:
            async with asyncio.timeout(self._seconds):
                found = await _talk(process, task, most_bytes)
                await process.wait()
                return found
        except (TimeoutError, _TooMuch):
            return b""
        except (BrokenPipeError, ConnectionResetError, RuntimeError):  # uvloop raises the last of them
            raise Unavailable(
                "the process that renders chat_template ended before it began; try again", retry_after_seconds=1.0
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


class _TooMuch(Exception):
    """The process writes more than a prompt can have."""


async def _talk(process: asyncio.subprocess.Process, task: bytes, most_bytes: int) -> bytes:
    assert process.stdin is not None and process.stdout is not None, "both are pipes"
    process.stdin.write(task)
    await process.stdin.drain()
    process.stdin.close()
    found = bytearray()
    while piece := await process.stdout.read(65_536):
        found += piece
        if len(found) > most_bytes:
            raise _TooMuch
    return bytes(found)
