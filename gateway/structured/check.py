"""Compiles a client's grammar before the request is accepted, in threads of its own and within limits.

Step 1 of a request's life: a wrong regular expression, grammar or schema is refused here, with llguidance's reason.
Meanwhile the event loop serves other clients. Grammars that may take long go to gateway/structured/costly.py."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.structured.compiling import why_not
from gateway.structured.costly import CostlyGrammars, is_costly
from gateway.structured.forms import Added, Form
from gateway.structured.schema import MAX_BYTES
from mesh.errors import InvalidRequest
from mesh.messages.grammar import Grammars

THREADS = 2


class GrammarCheck:
    def __init__(self, added: Added) -> None:
        """`added`: ids of the tokens that the tokenizer adds to its vocabulary. The check itself takes bytes for
        tokens: which texts a grammar has does not depend on the tokenizer, and reading a large one stops the
        gateway for seconds."""
        self._names = re.compile("|".join([*map(re.escape, sorted(filter(_is_name, added))), r"<\[[0-9,^*-]+\]>"]))
        self._grammars = Grammars()
        self._threads, self._costly = ThreadPoolExecutor(THREADS, "grammar"), CostlyGrammars()

    async def built(self, build: Callable[[], Form | None]) -> Form | None:
        """The form that `build` makes of a request: many large schemas take longer than the event loop may stand."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, build)

    async def compiled(self, form: Form | None) -> str:
        """The grammar of the form, which workers can follow; empty without a form."""
        if form is None:
            return ""
        grammar = form.whole
        if len(grammar) > MAX_BYTES:
            raise InvalidRequest(form.field, f"{form.field}: its grammar exceeds {MAX_BYTES} bytes")
        plain = self._names.sub("<[0]>", grammar)
        if is_costly(grammar):
            why = await self._costly.why_not(plain)
        else:
            why = await asyncio.get_running_loop().run_in_executor(self._threads, why_not, self._grammars, plain)
        if why is not None:
            raise InvalidRequest(form.field, f"{form.field} cannot be followed: {why}")
        return grammar


def _is_name(token: str) -> bool:
    return token.startswith("<") and token.endswith(">")
