"""Attributes of the two outer spans: the SERVER span (what was called, how it ended) and the generation in it."""

from gateway.routing.router import Route
from gateway.tracing.record import CANCELLED, RequestRecord
from gateway.tracing.slo_limits import Limits
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier
from mesh.telemetry import semconv
from mesh.telemetry.spans import Attribute


def root_attributes(record: RequestRecord, limits: Limits) -> dict[str, Attribute]:
    found = dict(record.attributes)
    found |= {semconv.REQUEST_ID: record.request_id, semconv.STATUS: record.status}
    if record.path:
        found[semconv.PATH] = record.path
    if record.admission.tenant:
        found[semconv.TENANT] = record.admission.tenant
    if record.error:
        found[semconv.ERROR_TYPE] = record.error
    if missed := limits.missed(record):
        found[semconv.SLO_VIOLATED] = missed
    return found


def chat_attributes(record: RequestRecord) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        semconv.OPERATION: record.operation or semconv.CHAT,
        semconv.PROVIDER: semconv.PROVIDER_NAME,
        semconv.OUTPUT_TYPE: "text",
        semconv.RESPONSE_ID: record.request_id,
        **record.asked,
    }
    if record.model:
        found |= {semconv.REQUEST_MODEL: record.model, semconv.RESPONSE_MODEL: record.root or record.model}
    if record.choices:
        sampling = record.choices[0].sampling
        found |= {
            semconv.REQUEST_CHOICES: sum(not choice.examined for choice in record.choices) or 1,
            semconv.REQUEST_MAX_TOKENS: sampling.max_tokens,
            semconv.REQUEST_TEMPERATURE: sampling.temperature,
            semconv.REQUEST_TOP_P: sampling.top_p,
            semconv.REQUEST_TOP_K: sampling.top_k,
            semconv.INPUT_TOKENS: record.prompt_tokens,
            semconv.OUTPUT_TOKENS: record.completion_tokens,
            semconv.CACHED_TOKENS: max(choice.cached_tokens for choice in record.choices),
            semconv.ATTEMPTS: sum(len(choice.routes) for choice in record.choices),
        }
        if sampling.seed < 2**63:  # attributes are signed
            found[semconv.REQUEST_SEED] = sampling.seed
        # A choice that ends at a stop string is cancelled behind it.
        found[semconv.FINISH_REASONS] = tuple(
            "stop" if record.status == "ok" and choice.finish == CANCELLED else choice.finish
            for choice in record.choices
            if choice.finish
        )
    if record.ttft_seconds is not None:
        found[semconv.TIME_TO_FIRST_CHUNK] = record.ttft_seconds
    if record.error:
        found[semconv.ERROR_TYPE] = record.error
    return found


def route_attributes(chosen: Route, *, resumed: bool) -> dict[str, Attribute]:
    """The decision, what it was made of, and what it costs by the router's own estimate, part by part."""
    has, sent = chosen.cached
    found: dict[str, Attribute] = {
        semconv.DECISION: "resumed" if resumed else "remote" if chosen.prefill is not None else "local",
        semconv.REASON: chosen.decision.value,
        semconv.CANDIDATES: chosen.candidates,
        semconv.COST: chosen.cost.seconds,
        semconv.COST_QUEUE: chosen.cost.queue,
        semconv.COST_PREFILL: chosen.cost.prefill,
        semconv.COST_TRANSFER: chosen.cost.transfer,
        semconv.COST_INTERFERENCE: chosen.cost.interference,
        semconv.COST_ROOM: chosen.cost.room,
        semconv.CHOSEN_DECODE: chosen.decode.name,
        semconv.PREFIX_DECODE: has,
    }
    if chosen.prefill is not None:
        found |= {semconv.CHOSEN_PREFILL: chosen.prefill.name, semconv.PREFIX_PREFILL: sent}
    return found


def examining_attributes(
    worker: AttachedWorker, cost_seconds: float, candidates: int, *, resumed: bool
) -> dict[str, Attribute]:
    """The same for an examination, which has one worker."""
    prefills = worker.tier is Tier.PREFILL
    return {
        semconv.DECISION: "resumed" if resumed else "remote" if prefills else "local",
        semconv.CANDIDATES: candidates,
        semconv.COST: cost_seconds,
        semconv.CHOSEN_PREFILL if prefills else semconv.CHOSEN_DECODE: worker.name,
    }
