"""Requests that no worker can take now: they wait for a worker or for room, and end with an error after a while, or at
once if waiting cannot help.

Step 2 of a request's life. What a request lacks is named in its trace while it waits, and in the error that ends it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.sequencing.candidates import class_missing, hopeless, never_fits
from gateway.sequencing.ended_requests import Tally
from gateway.sequencing.reasons import gave_up, lacking
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.errors import BatonError


class PatienceHost(Protocol):
    """The sequencer."""

    def end(self, request: GatewayRequest, error: BatonError | None = None) -> None: ...


class Patience:
    def __init__(self, host: PatienceHost, workers: Workers, tally: Tally, *, local: Local, seconds: float) -> None:
        self._host = host
        self._workers = workers
        self._tally = tally
        self._local = local
        self._seconds = seconds

    def wait_or_fail(self, request: GatewayRequest, *, settled: bool) -> None:
        """No worker can take the request now. It fails if that cannot change; else it waits for a worker or room.
        `settled`: every worker that runs has had the time to attach."""
        if (error := hopeless(request, self._workers, self._local, settled=settled)) is not None:
            return self._host.end(request, error)
        request.prefill = request.decode = None
        self.wait(request, lambda: lacking(self._workers.of(request.choice.model), self._local))

    def wait(self, request: GatewayRequest, lacks: Callable[[], str]) -> None:
        """The request waits for a worker; `lacks` says what keeps it waiting. After a while it ends."""
        loop = asyncio.get_running_loop()
        request.trace.waits_for_worker(loop.time(), lacks())
        if request.phase is not RequestPhase.WAITING:
            request.enter(RequestPhase.WAITING)
        if request.patience is None:
            request.patience = loop.call_later(self._seconds, self._give_up, request, lacks)

    def _give_up(self, request: GatewayRequest, lacks: Callable[[], str]) -> None:
        """The request has waited long enough for a worker."""
        retry = self._tally.wait_seconds(asyncio.get_running_loop().time())
        error = class_missing(request, self._workers) or never_fits(request, self._workers, self._local)
        self._host.end(request, error or gave_up(lacks(), self._seconds, retry))
