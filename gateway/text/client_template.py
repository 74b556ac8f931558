"""Chat templates that a client sends with its request: rendered in a process that can do nothing else and is killed
when it takes too long.

A template is a program. The sandbox keeps it from the gateway's objects, but not from running for ever or from filling
the memory, and sandboxes have had holes. So each one renders in a fresh process without files, sockets, children and
environment, which no other client's template has run in."""

import json
from collections.abc import Mapping
from typing import Any

from gateway.fairness.client_turns import FairTurns
from gateway.helpers.process import HelperDied, HelperProcess
from gateway.text.jinja import Now
from gateway.text.template_process import prepare
from mesh.errors import InvalidRequest, Unavailable

LONGEST = 65_536  # characters of a template
SECONDS = 10.0  # time that one may take, besides its limit of processor time
AT_ONCE = 2  # processes
WAITING = 16  # requests that may wait for a process, and how long
WAIT_SECONDS = 10.0


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
            answer = await self._run(task, most_bytes=12 * longest + 4096)  # a character is at most \ud83d\ude00
        if "text" in answer:
            return str(answer["text"])
        what = "refuses messages" if "refused" in answer else "cannot render messages"
        raise InvalidRequest("chat_template", f"chat_template {what}: {answer.get('refused', answer.get('error'))}")

    async def _run(self, task: bytes, *, most_bytes: int) -> dict[str, str]:
        helper = HelperProcess(prepare, bare=True)
        try:
            return await helper.ask(task, read=json.loads, seconds=self._seconds, most_bytes=most_bytes)
        except HelperDied as died:
            if died.unread:
                raise Unavailable(
                    "the process that renders chat_template ended before it began; try again", retry_after_seconds=1.0
                ) from None
        except (TimeoutError, ValueError):
            pass
        finally:
            await helper.aclose()
        raise InvalidRequest("chat_template", "chat_template takes too much time or memory")
