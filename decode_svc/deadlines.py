"""Drops requests that are late at a decode worker: the client's deadline has passed, or the prompt of a local request
has waited too long for its first step.

Steps 2 and 9 of a request's life. The gateway ends a request by its own timers too; here a late request frees its place
even if no Cancel comes, and before anything of it is computed."""

import asyncio
from collections.abc import Callable

from decode_svc.request.requests import DecodeHost, DecodePhase, DecodeRequest
from mesh.messages.jobs import Reason


def set_deadlines(request: DecodeRequest, expire: Callable[[DecodeRequest], None], host: DecodeHost) -> None:
    """Set the timers of the request's current attempt. `expire` drops it when its deadline passes."""
    loop, job = asyncio.get_running_loop(), request.job
    if request.deadline is not None:
        request.deadline.cancel()
        request.deadline = None
    if job.deadline_seconds is not None and job.deadline_seconds <= 0:  # a timer would come behind the next step
        return expire(request)
    if job.deadline_seconds is not None:
        request.deadline = loop.call_later(job.deadline_seconds, expire, request)
    if job.start_seconds is not None and request.phase is DecodePhase.LOCAL:
        request.start = loop.call_later(job.start_seconds, _give_back, request, host)


def _give_back(request: DecodeRequest, host: DecodeHost) -> None:
    """A prompt that prefill computes waits at the prefill worker, which has a timer of its own."""
    if request.phase is DecodePhase.LOCAL:
        host.lost(request, Reason.LATE)
        host.drop(request)
