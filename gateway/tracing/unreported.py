"""Writes the report of an attempt whose worker sent none, because it died or is late, from what the gateway saw.

The gateway knows when it sent the attempt, when tokens came back, when the worker was last heard, and when it noticed
the end. Between these times the worker's stages are guessed by the rules below, in the form of a report, so that the
span tree has no hole. After the last that came from a dead worker there is `silence`, until the gateway noticed."""

from collections.abc import Sequence

from gateway.tracing.record import AttemptAtWorker
from mesh.messages.jobs import Tier
from mesh.messages.reports import Leg, Phase
from mesh.sessions.legs import to_json
from mesh.telemetry import semconv
from mesh.telemetry.spans import Attribute


def silent_since(attempt: AttemptAtWorker) -> float:
    """When the last of a dead worker came: decode's last token, else anything that the worker sent."""
    heard = attempt.heard_seconds or attempt.sent_seconds
    if attempt.tier is Tier.DECODE and attempt.last_token_seconds is not None:
        heard = attempt.last_token_seconds
    return max(attempt.sent_seconds, heard)


def seen_leg(attempt: AttemptAtWorker, attempts: Sequence[AttemptAtWorker], closed: float) -> Leg:
    """A report about this attempt, made of what the gateway saw; `closed`: when it took the attempt for over."""
    until = min(silent_since(attempt), closed) if attempt.died else closed
    stages = _at_prefill(attempt, until) if attempt.tier is Tier.PREFILL else _at_decode(attempt, attempts, until)
    phases, start = list[Phase](), attempt.sent_seconds
    for name, end in stages:
        end = max(start, min(end, until))
        if end > start:
            phases.append(Phase(name, start, end))
            start = end
    if phases:
        last = phases[-1]
        marks: dict[str, Attribute] = {semconv.DIED: True} if attempt.died else {}
        if last.name == semconv.GENERATE:
            marks[semconv.TOKENS] = attempt.tokens
        phases[-1] = Phase(last.name, last.start_seconds, last.end_seconds, to_json(marks))
    if attempt.died and closed > start:
        phases.append(Phase(semconv.SILENCE, start, closed))
    return Leg(attempt.ticket, attempt.sent_seconds, closed, tuple(phases))


def _at_prefill(attempt: AttemptAtWorker, until: float) -> list[tuple[str, float]]:
    """Stages, and when each ended. The prompt is computed until the first token; then a worker that died sent pages."""
    if attempt.first_token_seconds is None:
        return [(semconv.COMPUTE, until)]
    sent = [(semconv.KV_SEND, until)] if attempt.died else []
    return [(semconv.COMPUTE, attempt.first_token_seconds), *sent]


def _at_decode(attempt: AttemptAtWorker, attempts: Sequence[AttemptAtWorker], until: float) -> list[tuple[str, float]]:
    """Decode waits for pages until prefill has sent them all, then it generates. Without prefill it computes the
    prompt until its first token."""
    first, prefill = attempt.first_token_seconds, None
    for other in attempts:
        if other.ticket == attempt.ticket and other.tier is Tier.PREFILL:
            prefill = other
    if prefill is None:
        return [(semconv.COMPUTE, until if first is None else first), (semconv.GENERATE, until)]
    if first is None:
        return [(semconv.KV_RECEIVE, until)]
    sent = [p.end_seconds for p in prefill.leg.phases if p.name == semconv.KV_SEND] if prefill.leg else []
    received = min(max(sent) + prefill.offset_seconds, first) if sent else first
    return [(semconv.KV_RECEIVE, received), (semconv.GENERATE, until)]
