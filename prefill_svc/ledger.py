"""Every prompt of this worker and the pages it holds, from its landing to its end.

Own pages are taken whole when decode's Landing has come, cached ones shared. They come back when the prompt is over, no
write of its ticket is in flight and no step computes in them; only then may Quiet be said. Steps 3 and 9 of a request's
life on prefill's side."""

import logging
from collections.abc import Callable

from engine.batch import pages_needed
from engine.pages import PagePool
from mesh.hashing import block_hashes
from mesh.messages import Ticket
from prefill_svc.prompts import Prompt, PromptPhase

log = logging.getLogger("baton.prefill")


class Ledger:
    def __init__(
        self,
        pages: PagePool,
        *,
        page_tokens: int,
        numerics: str,
        say_quiet: Callable[[Prompt], None],
        ended: Callable[[], None],
    ) -> None:
        self.prompts: dict[int, Prompt] = {}  # in the order in which they came
        self.stepping: set[int] = set()  # prompts whose rows are in the step that runs now
        self._pages, self._page_tokens, self._numerics = pages, page_tokens, numerics
        self._say_quiet, self._ended = say_quiet, ended

    def find(self, ticket: Ticket) -> Prompt | None:
        return next((p for p in self.prompts.values() if p.ticket == ticket), None)

    def bound_for(self, address: str) -> list[Prompt]:
        return [p for p in self.prompts.values() if p.decode_address == address]

    # ---- pages

    def pages_of(self, prompt: Prompt) -> int:
        return pages_needed(prompt.total, self._page_tokens)

    def take(self, prompt: Prompt) -> bool:
        """Own pages for the whole prompt: cached ones shared, the rest new; False when there is no room."""
        size = self._page_tokens
        prompt.hashes = block_hashes(prompt.job.tokens, page_tokens=size, numerics=self._numerics, salt=prompt.job.salt)
        shared = self._pages.match(prompt.hashes)
        whole = len(shared) * size == prompt.total  # its last row is computed again, in a copy of the shared page
        if whole and not self._pages.available:  # no page for a copy: compute that page again in its own place
            self._pages.release(shared[-1:])
            shared, whole = shared[:-1], False
        fresh = self._pages.take(self.pages_of(prompt) - len(shared) + whole)
        if fresh is None:
            self._pages.release(shared)
            return False
        prompt.done = prompt.cached = prompt.total - 1 if whole else len(shared) * size
        prompt.copies = ((shared[-1], fresh[0]),) if whole else ()
        prompt.pages = (*shared[:-1], *fresh) if whole else (*shared, *fresh)
        return True

    def copied(self, prompt: Prompt) -> None:
        """The step that made its copies is over."""
        self._pages.release([source for source, _ in prompt.copies])
        prompt.copies = ()

    def publish(self, prompt: Prompt) -> None:
        """Full pages may be found by others from now on."""
        for index, digest in enumerate(prompt.hashes[: prompt.done // self._page_tokens]):
            self._pages.publish(prompt.pages[index], digest)

    # ---- ends

    def forget(self, request: int, attempt: int) -> None:
        for prompt in list(self.prompts.values()):
            if prompt.ticket.request == request and prompt.ticket.attempt <= attempt:
                self.stop(prompt, quiet=prompt.landing is not None)

    def stop(self, prompt: Prompt, *, quiet: bool) -> None:
        """The prompt is over; Quiet and its pages wait for writes in flight, the pages also for the step."""
        prompt.quiet_due |= quiet
        if prompt.phase is not PromptPhase.STOPPING:
            stage, done, total = prompt.phase.value, prompt.done, prompt.total
            log.debug(
                "request %d: stops while %s, %d of %d tokens", prompt.ticket.request, stage, done, total,
                extra={
                    "event": "prompt_stopped", "request": prompt.ticket.request, "phase": stage, "done": done,
                    "total": total,
                },
            )  # fmt: skip
            prompt.enter(PromptPhase.STOPPING)
        self.settle(prompt)

    def settle(self, prompt: Prompt) -> None:
        if prompt.phase is not PromptPhase.STOPPING or prompt.in_flight:
            return
        if prompt.quiet_due:
            prompt.quiet_due = False
            self._say_quiet(prompt)
        if prompt.key not in self.stepping:
            prompt.enter(PromptPhase.ENDED)
            del self.prompts[prompt.key]
            self._pages.release(prompt.pages + tuple(source for source, _ in prompt.copies))
            self._ended()
