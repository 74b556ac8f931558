"""Compiles a client's grammar before the request is accepted, in threads of its own and within limits.

Step 1 of a request's life: a wrong regular expression, grammar or schema is refused here, with llguidance's reason.
The limits of mesh/grammar.py bound how long one grammar takes; meanwhile the event loop serves other clients."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.structured.forms import Form
from gateway.structured.schema import MAX_BYTES
from mesh.errors import InvalidRequest
from mesh.grammar import GrammarFault, Grammars

THREADS = 2


class GrammarCheck:
    def __init__(self, definition: Callable[[], str]) -> None:
        """`definition` reads the model's tokenizer.json, when the first request has a grammar."""
        self._grammars = Grammars(definition)
        self._threads = ThreadPoolExecutor(THREADS, "grammar")

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
            return None if self._grammars.begins(grammar) else "no text matches it"
        except GrammarFault as fault:
            return str(fault)
