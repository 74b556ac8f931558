"""Grammars whose cost cannot be told beforehand: a process of their own compiles them, within a bound of its time.

Step 1 of a request's life. Most grammars compile in some milliseconds. Lark of a client, and expressions of many
repeats, may take hours: each terminal that names another one ten times multiplies the cost by a hundred."""

import hashlib
import json
import re
from collections import OrderedDict

from gateway.fairness.client_turns import FairTurns
from gateway.helpers.process import HelperDied, HelperProcess
from gateway.structured.compiling import WHY_NOT, prepare
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
    """Compiles one grammar at a time."""

    def __init__(self) -> None:
        self._helper = HelperProcess(prepare)
        self._turns = FairTurns(
            "grammars that are costly to compile", at_once=1, waiting=MOST_WAITING, longest_seconds=WAIT_SECONDS
        )
        self._known: OrderedDict[bytes, str | None] = OrderedDict()

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
        try:
            found: dict[str, str | None] = await self._helper.ask(raw, read=json.loads)
        except (HelperDied, OSError):
            found = {}
        if WHY_NOT not in found:
            raise Unavailable(NOT_FOUND_OUT)  # the next request asks again
        self._known[key] = found[WHY_NOT]
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)
