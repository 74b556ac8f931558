"""Intake: takes the prompts that gateways send.

Step 2 of a request's life: Prefill arrives, and the prompt waits for its turn, while its grammar is compiled. A prompt
that can never fit, and one with a grammar where no masks are made, is refused at once."""

import asyncio
from collections.abc import Callable
from functools import partial

from engine.adapters.held import LACKS, HeldAdapters
from engine.model.floor import Floor
from engine.step.constraint import NO_MASKS, Masker
from mesh.messages.jobs import Reason
from mesh.messages.orders import Cancel, Prefill
from mesh.messages.reports import Lost
from mesh.sessions.legs import Outbox
from mesh.sessions.session import Session
from prefill_svc.links import Links
from prefill_svc.observed import PromptRecord
from prefill_svc.pages import PrefillPages
from prefill_svc.prompts import Prompt, PromptPhase, Prompts


class PromptIntake:
    def __init__(
        self,
        prompts: Prompts,
        links: Links,
        pages: PrefillPages,
        outbox: Outbox,
        *,
        adapters: HeldAdapters,
        wake: Callable[[], None],
        floor: Floor,
        masker: Masker | None,
    ) -> None:
        self._prompts = prompts
        self._links = links
        self._pages = pages
        self._outbox = outbox
        self._adapters = adapters
        self._wake = wake
        self._floor = floor
        self._masker = masker
        self._keys = 0  # prompts so far

    def queue(self, gateway: Session, message: Prefill) -> None:
        """The prompt waits for its turn, and any earlier attempt of its request is dropped."""
        job, now = message.job, asyncio.get_running_loop().time()
        self._prompts.cancel(Cancel(job.ticket.request, job.ticket.attempt - 1))
        self._keys += 1
        record = PromptRecord(self._outbox.recorder(gateway, job, now), self._floor)
        record.queued(now)
        prompt = Prompt(
            self._keys, job, gateway, message.decode_address, message.decode_incarnation, now, record=record
        )
        too_large = self._pages.needed(prompt.total) > self._pages.total
        if too_large or (job.sampling.grammar and self._masker is None):
            why = (Reason.TOO_LARGE, "") if too_large else (Reason.GRAMMAR, NO_MASKS)
            gateway.send(Lost(job.ticket, *why))
            record.stopped(now, 0)
            return
        if (lease := self._adapters.lease(job.adapter)) is None:
            gateway.send(Lost(job.ticket, Reason.ADAPTER, LACKS))
            record.stopped(now, 0)
            return
        prompt.adapter = lease
        self._prompts.add(prompt)
        self._links.to(prompt.decode_address)
        constraint = self._masker.constraint(job.sampling) if self._masker is not None else None
        if constraint is not None:
            prompt.masks = constraint.masks(job.emitted)
            constraint.when_ready(partial(self._masked, prompt))

    def give_up_adapters(self) -> None:
        """Give prompts back whose adapter does not come back into memory."""
        for prompt in self._prompts:
            if prompt.adapter.fault and prompt.phase is not PromptPhase.STOPPING:
                prompt.gateway.send(Lost(prompt.ticket, Reason.ADAPTER, prompt.adapter.fault))
                self._prompts.drop(prompt)

    def _masked(self, prompt: Prompt) -> None:
        """The masks of a prompt are there, or there can be none: then the gateway learns why."""
        over = prompt.phase in (PromptPhase.STOPPING, PromptPhase.ENDED)
        if prompt.masks is not None and (fault := prompt.masks.fault) is not None and not over:
            prompt.gateway.send(Lost(prompt.ticket, Reason.GRAMMAR, fault))
            self._prompts.drop(prompt)
        self._wake()
