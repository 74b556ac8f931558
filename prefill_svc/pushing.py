"""Pushes a prompt's pages into decode's landing, layer by layer while steps compute it; then sends Commit.

Steps 4 and 5 of a request's life. A landing counts in pages of decode's size, and so do all indexes here: a page is
pushed when the steps have computed all its tokens, whichever of this worker's own pages they lie in. Commit says that
every span of its round is written and that no write of the ticket is in flight, so it waits for the last write. A write
that outlives its prompt still counts: Quiet waits for it."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from engine.pool.bands import ONE_BAND, LayerBands
from engine.step.batch import Chunk, pages_filled
from engine.step.plan import Plan
from kvtransfer.conversion import pages_under
from kvtransfer.transfer import Span, TransferError
from mesh.messages.kv_messages import Commit, Computing, Written
from mesh.messages.page_shape import PageShape
from mesh.telemetry.logs import trace_fields
from mesh.timing.speed import Speed
from prefill_svc.links import Links
from prefill_svc.prompts import Prompt, PromptPhase, Prompts

log = logging.getLogger("baton.prefill")


class Pushing:
    def __init__(
        self,
        links: Links,
        prompts: Prompts,
        *,
        shape: PageShape,  # shape of this worker's own pages
        bands: LayerBands = ONE_BAND,
        report_seconds: float,  # shortest time between two Computing of one prompt
        speed: Speed,
    ) -> None:
        self._links = links
        self._prompts = prompts
        self._shape, self._bands = shape, bands
        self._report_seconds, self._speed = report_seconds, speed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._committed = self._bytes_resent = 0

    def landed(self, prompt: Prompt) -> None:
        """Push at once the full pages that this worker's prefix cache has and decode lacks. Where steps take long,
        decode learns it before the first one: until then its patience is the least one."""
        assert prompt.landing is not None
        if self._speed.longest_ms >= 1000 * self._report_seconds and prompt.computing:
            self._report(prompt)
        ready = self._bands.count * (prompt.own.ready // self._target(prompt).page_tokens)
        self.push(prompt, range(ready), 0, self._shape.layers)

    def computed(self, plan: Plan, first: int, layers: int) -> None:
        """A step has computed these layers: push them of every page that the step's chunks fill."""
        spans = self._bands.spans(first, layers)
        for piece in plan.pieces:
            if piece.key not in self._prompts:
                continue  # a prompt that is examined here has no landing
            prompt = self._prompts[piece.key]
            if prompt.phase is PromptPhase.PUSHING and prompt.landing is not None:
                begin = prompt.own.ready if piece.start == prompt.own.cached else piece.start
                chunk = Chunk(piece.key, begin, piece.stop - begin, last=piece.sampled > 0)
                filled = pages_filled(chunk, self._target(prompt).page_tokens)
                for bands, begins, count in spans:
                    self.push(prompt, self._bands.indexes(filled, bands), begins, count)
        self._report_computing()

    def _report_computing(self) -> None:
        """Send Computing for every prompt that has landed and is not computed yet, so that no landing times out."""
        now = self._loop.time()
        for prompt in self._prompts:
            reported_seconds = max(prompt.landed_seconds, prompt.reported_seconds)
            if prompt.computing and now - reported_seconds >= self._report_seconds:
                self._report(prompt)

    def _report(self, prompt: Prompt) -> None:
        link = self._links.get(prompt.decode_address)
        if link is not None:
            prompt.reported_seconds = self._loop.time()
            link.send(Computing(prompt.ticket, self._speed.longest_ms))

    def push(self, prompt: Prompt, indexes: Sequence[int], first: int, layers: int, *, again: bool = False) -> None:
        """Begin to write these layers of those of these pages that land; `again`: decode has sent a Resend for them."""
        if indexes := [index for index in indexes if index in prompt.targets]:
            spans = self._spans(prompt, indexes, first, layers)  # raises before the write counts as one
            prompt.in_flight += 1
            prompt.record.writes(self._loop.time())
            task = self._loop.create_task(self._write(prompt, spans, first, layers, again))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _spans(self, prompt: Prompt, indexes: Iterable[int], first: int, layers: int) -> list[Span]:
        spans, pages, count = list[Span](), prompt.own.pages, self._bands.count
        sizes = {"source_tokens": self._shape.page_tokens, "target_tokens": self._target(prompt).page_tokens}
        for index in indexes:
            stretch, band = divmod(index, count)
            source, *behind = (pages[i * count + band] for i in pages_under(stretch, prompt.total, **sizes))
            spans.append(Span(index, source, prompt.targets[index], first, layers, tuple(behind), count))
        return spans

    def _target(self, prompt: Prompt) -> PageShape:
        """The form of the pages that the prompt lands in."""
        return prompt.shape or self._shape

    async def _write(self, prompt: Prompt, spans: list[Span], first: int, layers: int, again: bool) -> None:
        link, round = self._links.to(prompt.decode_address), prompt.round
        size, measures = len(spans) * self._target(prompt).place(first, layers)[1], self._prompts.measures
        writer = link.writer
        try:
            if writer is None:
                raise TransferError("the session with decode has ended")
            began = self._loop.time()
            checksums = await writer.write(prompt.ticket.pack(), spans, round)
        except Exception as error:  # an error of whatever kind: a write that never ends would keep its pages for ever
            ids = trace_fields(prompt.job.traceparent)
            log.warning("request %d: this worker cannot push its pages: %s", prompt.ticket.request, error, extra=ids)
            prompt.in_flight -= 1
            measures.write_failed(prompt.transport, size)
            if prompt.phase is PromptPhase.PUSHING:
                self._prompts.lose(prompt, "write_failed")
            if writer is not None and isinstance(error, TransferError):
                link.broke(writer)
        else:
            prompt.in_flight -= 1
            measures.wrote(prompt.transport, size, self._loop.time() - began)
            prompt.bytes_written += size
            self._bytes_resent += size if again else 0
            if writer.one_sided and prompt.phase is PromptPhase.PUSHING:
                indexes = tuple(span.index for span in spans)
                link.send(Written(prompt.ticket, first, layers, round, indexes, checksums))
            self.commit(prompt)
        self._prompts.settle(prompt)

    def commit(self, prompt: Prompt) -> None:
        """Send Commit if the first token is sampled and all spans of this round are written."""
        if prompt.phase is PromptPhase.PUSHING and prompt.first is not None and not prompt.in_flight:
            prompt.enter(PromptPhase.HELD)
            self._links.to(prompt.decode_address).send(Commit(prompt.ticket, prompt.round, prompt.first))
            if not prompt.committed:
                prompt.committed = True
                self._committed += 1
                self._measure(prompt)
            prompt.record.committed(
                self._loop.time(),
                written=prompt.bytes_written,
                before_first=prompt.bytes_before_first,
                pages=len(prompt.landing.pages) if prompt.landing else 0,
                transport=self._links.transport(prompt.decode_address),
                resends=prompt.round,
            )

    def _measure(self, prompt: Prompt) -> None:
        now, size = self._loop.time(), prompt.bytes_written
        self._prompts.measures.committed(
            prompt.transport,
            now - prompt.landed_seconds,
            exposed_seconds=now - prompt.first_seconds,
            hidden=prompt.bytes_before_first / size if size else 1.0,
        )

    def counts(self) -> dict[str, int]:
        """Since the start: prompts committed to decode, and page bytes that decode asked for again."""
        return {"committed": self._committed, "bytes_resent": self._bytes_resent}
