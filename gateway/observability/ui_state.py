"""The state of the mesh as the page `/ui` draws it: workers, requests in flight, and those that ended last.

Plain values, read in one pass over what the gateway knows; nothing is changed. There is no prompt and no answer in it:
whoever may open the page may see it."""

import asyncio
from dataclasses import asdict
from typing import Any

from gateway.attaching.service import Gateway
from gateway.attaching.silent_workers import SilentWorker
from gateway.sequencing.ended_requests import EndedRequest, attempts_of, trace_id_of
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.workers.attached import AttachedWorker
from mesh.sessions.page_map import PAGE_STATES, spell

MOST_REQUESTS = 200  # requests in flight that are listed one by one, the oldest first

State = dict[str, Any]


def state_of(gateway: Gateway) -> State:
    """The state without the page maps. It stays equal while nothing happens, so that nothing is sent."""
    requests, tally = gateway.sequencer.requests.values(), gateway.sequencer.tally
    phases = [phase_of(request) for request in requests]
    listed = list(zip(requests, phases, strict=True))[:MOST_REQUESTS]
    return {
        "models": [
            {"name": root, "context_tokens": gateway.facts(root).context_tokens}  # 0: unknown
            for root in gateway.served.roots
        ],
        "healthy": gateway.healthy(),
        "workers": [worker_state(worker) for worker in gateway.workers],
        "silent": [silent_state(each) for each in gateway.silent.now()],
        "phases": {phase: phases.count(phase) for phase in ("waiting", "prefill", "local", "handoff", "decode")},
        "requests": [request_state(request, phase) for request, phase in listed],
        "ended": [ended_state(ended) for ended in tally.last],
        "totals": {
            "paths": {path: tally.paths[path] for path in ("remote", "local", "resumed")},
            "statuses": {status: tally.statuses[status] for status in ("ok", "error", "cancelled")},
            "refused": tally.refused,
            "tokens": tally.tokens + sum(len(request.shown) for request in requests),
        },
    }


def maps_of(gateway: Gateway) -> State:
    """The page map of each worker that has sent one."""
    return {hex_of(w.incarnation): spell(w.page_map) for w in gateway.workers if w.page_map is not None}


def worker_state(worker: AttachedWorker) -> State:
    hello, load = worker.hello, worker.load
    return {
        "id": hex_of(worker.incarnation),
        "name": worker.name,
        "tier": worker.tier.value,
        "address": hello.address,
        "class": hello.numerics,
        "fingerprint": hello.fingerprint,
        "model": worker.model,
        "page_tokens": hello.page_tokens,
        "draining": not worker.takes_requests,
        "waiting": load.waiting + (worker.unreported_requests if worker.tier.value == "prefill" else 0),
        "running": load.running,
        "queued_tokens": load.queued_tokens + worker.unreported_tokens,
        "tokens_per_second": round(load.tokens_per_second, 1),
        "pages": load.total_pages,
        "page_dtype": worker.page_dtype,
        "available": load.free_pages,
        "states": [int(worker.measures.get(f"pages_{state}", 0)) for state in PAGE_STATES] if worker.measures else None,
    }


def silent_state(silent: SilentWorker) -> State:
    return {
        "id": hex_of(silent.incarnation),
        "name": silent.name,
        "tier": silent.tier.value,
        "address": silent.address,
        "since_seconds": round(silent.since_seconds, 3),
        "attached": silent.attached,
    }


def request_state(request: GatewayRequest, phase: str) -> State:
    return {
        "id": name_of(request.id),
        "request_id": request.choice.request_id,
        "trace_id": trace_id_of(request),
        "phase": phase,
        "path": request.path,
        "prefill": name_of(request.prefill),
        "decode": name_of(request.decode),
        "attempt": attempts_of(request),
        "prompt_tokens": len(request.choice.prompt),
        "tokens": len(request.shown),
        "accepted_seconds": round(request.accepted_seconds, 3),
    }


def ended_state(ended: EndedRequest) -> State:
    named = {"id": name_of(ended.id), "prefill": name_of(ended.prefill), "decode": name_of(ended.decode)}
    return asdict(ended) | named


def phase_of(request: GatewayRequest) -> str:
    """Where the request is: waiting, prefill, local (decode prefills), handoff, decode."""
    if request.phase is RequestPhase.WAITING:
        return "waiting"
    if request.handed:
        return "decode"
    if request.prefill is None:
        return "local"
    return "handoff" if request.first_token_seconds is not None and attempts_of(request) == 1 else "prefill"


def hex_of(number: int) -> str:
    """A number of 64 bits as text: browsers round such numbers."""
    return f"{number:016x}"


def name_of(number: int | None) -> str | None:
    return None if number is None else hex_of(number)


def now_seconds() -> float:
    """The clock of `accepted_seconds` and `since_seconds`."""
    return round(asyncio.get_running_loop().time(), 3)
