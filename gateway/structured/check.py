"""Compiles a client's grammar before the request is accepted, in threads of its own and within limits.

Step 1 of a request's life: a wrong regular expression, grammar or schema is refused here, with llguidance's reason.
The limits of mesh/grammar.py bound how long one grammar takes; meanwhile the event loop serves other clients."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.structured.forms import Added, Form
from gateway.structured.schema import MAX_BYTES
from mesh.errors import InvalidRequest
from mesh.grammar import GrammarFault, Grammars

THREADS = 2


class GrammarCheck:
    def __init__(self, added: Added) -> None:
        """`added`: ids of the tokens that the tokenizer adds to its vocabulary. The check itself takes bytes for
        tokens: which texts a grammar has does not depend on the tokenizer, and reading a large one stops the
        gateway for seconds."""
        self._names = re.compile("|".join([*map(re.escape, sorted(filter(_is_name, added))), r"<\[[0-9,^*-]+\]>"]))
        self._grammars = Grammars()
        self._threads = ThreadPoolExecutor(THREADS, "grammar")

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
        why = await asyncio.get_running_loop().run_in_executor(self._threads, self._why_not, grammar)
        if why is not None:
            raise InvalidRequest(form.field, f"{form.field} cannot be followed: {why}")
        return grammar

    def _why_not(self, grammar: str) -> str | None:
        try:
            return None if self._grammars.begins(self._names.sub("<[0]>", grammar)) else "no text matches it"
        except GrammarFault as fault:
            return str(fault)


def _is_name(token: str) -> bool:
    return token.startswith("<") and token.endswith(">")
