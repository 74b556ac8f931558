"""Pushing a prompt's pages into decode's landing, layer by layer while it computes, and the Commit behind the last one.

Steps 4 and 5 of a request's life. Commit says that every span of its round is written and that no write of the ticket
is in flight, so it waits for the last one. A write that outlives its prompt is still counted: Quiet waits for it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from engine.batch import Chunk, pages_filled
from engine.plan import Plan
from kvtransfer.transfer import PageShape, Span, TransferError
from mesh.messages import Commit, Computing, Written
from mesh.telemetry import Telemetry
from prefill_svc.ledger import Ledger
from prefill_svc.links import Links
from prefill_svc.prompts import Prompt, PromptPhase

log = logging.getLogger("baton.prefill")


class Pushing:
    def __init__(
        self,
        ledger: Ledger,
        links: Links,
        *,
        shape: PageShape,
        page_tokens: int,
        tell_seconds: float,
        telemetry: Telemetry,
        cannot_push: Callable[[Prompt], None],
    ) -> None:
        self._ledger, self._links, self._telemetry, self._cannot_push = ledger, links, telemetry, cannot_push
        self._shape, self._page_tokens = shape, page_tokens
        self._tell_seconds = tell_seconds  # how often decode is told at most that a prompt is still computing
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.committed = self.bytes_resent = 0  # since the start

    def computed(self, plan: Plan, first: int, layers: int, *, longest_step_ms: int) -> None:
        """A group of layers is in the pages: push what this chunk filled of them."""
        prompts = self._ledger.prompts
        for piece in plan.pieces:
            prompt = prompts[piece.key]
            if prompt.phase is PromptPhase.PUSHING and prompt.landing is not None:
                chunk = Chunk(piece.key, piece.start, len(piece.tokens), last=piece.sampled > 0)
                filled = pages_filled(chunk, self._page_tokens)
                self.push(prompt, range(max(filled.start, prompt.landing.first_page), filled.stop), first, layers)
        now = self._loop.time()
        for prompt in prompts.values():
            link = self._links.get(prompt.decode_address)
            told_seconds = max(prompt.landed_seconds, prompt.told_seconds)
            if prompt.computing and link is not None and now - told_seconds >= self._tell_seconds:
                prompt.told_seconds = now
                link.send(Computing(prompt.ticket, prompt.done, longest_step_ms))

    def landed(self, prompt: Prompt) -> None:
        """Pages that this worker's prefix cache has and decode lacks go at once."""
        assert prompt.landing is not None
        ready = range(prompt.landing.first_page, prompt.done // self._page_tokens)
        self.push(prompt, ready, 0, self._shape.layers)

    def push(self, prompt: Prompt, indexes: Sequence[int], first: int, layers: int, *, again: bool = False) -> None:
        """`again`: decode asked for a Resend."""
        if indexes:
            prompt.in_flight += 1
            task = self._loop.create_task(
                self._write(prompt, self._spans(prompt, indexes, first, layers), first, layers, again)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def commit(self, prompt: Prompt) -> None:
        """All spans of this round are written: tell decode, once."""
        if prompt.phase is PromptPhase.PUSHING and prompt.first is not None and not prompt.in_flight:
            prompt.enter(PromptPhase.HELD)
            self._links.to(prompt.decode_address).send(Commit(prompt.ticket, prompt.round, prompt.first))
            if not prompt.committed:
                prompt.committed = True
                self.committed += 1
                self._record(prompt)

    def _spans(self, prompt: Prompt, indexes: Iterable[int], first: int, layers: int) -> list[Span]:
        assert prompt.landing is not None
        base, targets = prompt.landing.first_page, prompt.landing.pages
        return [Span(i, prompt.pages[i], targets[i - base], first, layers) for i in indexes]

    async def _write(self, prompt: Prompt, spans: list[Span], first: int, layers: int, again: bool) -> None:
        link, round = self._links.to(prompt.decode_address), prompt.round
        try:
            if link.writer is None:
                raise TransferError("the session with decode ended")
            one_sided = link.writer.one_sided
            checksums = await link.writer.write(prompt.ticket.pack(), spans, round)
        except TransferError as error:
            log.warning("request %d: cannot push: %s", prompt.ticket.request, error)
            prompt.in_flight -= 1
            self._cannot_push(prompt)
        else:
            prompt.in_flight -= 1
            written = len(spans) * self._shape.place(first, layers)[1]
            prompt.bytes_written += written
            self.bytes_resent += written if again else 0
            if one_sided and prompt.phase is PromptPhase.PUSHING:
                indexes = tuple(span.index for span in spans)
                link.send(Written(prompt.ticket, first, layers, round, indexes, checksums))
            self.commit(prompt)
        self._ledger.settle(prompt)

    def _record(self, prompt: Prompt) -> None:
        assert prompt.compute_seconds is not None
        record, parent = self._telemetry.record, prompt.job.traceparent
        computed = {"tokens": prompt.total, "cached": prompt.cached}
        pushed = {"bytes": prompt.bytes_written, "bytes_before_first": prompt.bytes_before_first}
        record("prefill.compute", parent, prompt.compute_seconds, prompt.first_seconds, **computed)
        record("kv.push", parent, prompt.landed_seconds, self._loop.time(), **pushed)
