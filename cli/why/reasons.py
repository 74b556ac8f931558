"""Says in plain sentences why a request took its time: what dominated, how far that is from the hardware's floor, and
what would help. Pure functions over a request's waterfall."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cli.why.waterfall import Node, Waterfall
from mesh.telemetry import semconv

WORTH_SAYING = 0.15  # a stage below this share of the request is not mentioned
FAR_FROM_FLOOR = 3.0  # a stage that took more than this many times its floor
BLOCKED_SHARE = 0.1  # a blocked loop below this share of a stage is no cause
WORKER_ENDED = "worker_ended"  # why an attempt was lost: one of its workers died
DOING = {
    semconv.COMPUTE: " while it computed the prompt",
    semconv.GENERATE: " while it generated",
    semconv.KV_SEND: " while it sent pages",
    semconv.KV_RECEIVE: " while it waited for pages",
}


def reasons(trace: dict[str, Any], fall: Waterfall) -> list[str]:
    """At least one sentence; the most important ones first."""
    out = [*_failures(trace, fall), *_attempts(fall)]
    if refused_at_once(trace, fall):
        return out
    stages = fall.stages()
    if stages and fall.total:
        chief = [node for node in _merged(stages) if node.own / fall.total >= WORTH_SAYING][:3]
        out += [_sentence(node, fall) for node in chief or stages[:1]]
    out += _hidden(fall)
    if fall.tiled < 0.98:
        out.append(f"{100 * (1 - fall.tiled):.0f}% of the time belongs to no stage.")
    if fall.orphans:
        out.append(f"{len(fall.orphans)} spans have lost their parents: a worker's report is missing.")
    return out or ["Nothing to explain: the request took no time."]


def _failures(trace: dict[str, Any], fall: Waterfall) -> list[str]:
    if trace["status"] == "cancelled":
        return [f"The client left after {fall.total:.0f} ms."]
    if trace["status"] == "error":
        why = (
            f"{error_of(trace, fall)}: {trace['message'].rstrip('.')}."
            if trace.get("message")
            else trace["error"] + "."
        )
        if refused_at_once(trace, fall):
            return [f"The gateway refused the request with {why}"]
        stages = [node for node in fall.stages() if node.name != semconv.POSTPROCESS]  # it sent the error
        last = max(stages, key=lambda node: node.end, default=fall.root)
        return [f"The request failed with {why} The last stage was {last.name} at {last.service}."]
    return []


def refused_at_once(trace: dict[str, Any], fall: Waterfall) -> bool:
    """Whether the gateway refused the request before it asked for a worker."""
    return trace["status"] == "error" and all(node.name != semconv.ADMISSION for node in fall.root.walk())


def error_of(trace: dict[str, Any], fall: Waterfall) -> str:
    """The status that the client got and the reason, such as HTTP 400 INVALID_REQUEST."""
    grpc, http = fall.root.attributes.get(semconv.RPC_STATUS), trace.get("http_status")
    return " ".join(filter(None, (f"gRPC {grpc}" if grpc else f"HTTP {http}" if http else "", trace["error"])))


def _attempts(fall: Waterfall) -> list[str]:
    """A sentence for each attempt that was lost, with its cost."""
    out = []
    for node in fall.root.walk():
        why = node.attributes.get(semconv.LOST)
        if node.name in (semconv.PREFILL, semconv.DECODE) and node.attributes.get(semconv.DIED):
            out.append(_death(node))
        elif why and why != WORKER_ENDED and node.name == semconv.DECODE:
            worker = node.attributes.get(semconv.WORKER, node.service)
            out.append(
                f"Attempt {node.attributes.get(semconv.ATTEMPT, '?')} at {worker} ended early ({why}) after "
                f"{node.duration:.0f} ms; another attempt went on from the tokens that the client had."
            )
    return out


def _death(attempt: Node) -> str:
    """A sentence on the attempt whose worker died: what the worker did, and what resuming cost."""
    worker, number = attempt.attributes.get(semconv.WORKER, "a worker"), attempt.attributes.get(semconv.ATTEMPT, "?")
    stage = next((node for node in attempt.children if node.attributes.get(semconv.DIED)), None)
    doing = DOING.get(stage.name, "") if stage else ""
    tokens = stage.attributes.get(semconv.TOKENS) if stage else None
    after = f", {tokens} tokens after it began" if tokens else ""
    noticed = sum(node.duration for node in attempt.children if node.name == semconv.SILENCE)
    cost = attempt.attributes.get(semconv.RESUME)
    resumed = (
        "No token came to the client after that."
        if cost is None
        else f"Resuming cost {1000 * cost:.0f} ms, from the last that came from it until the client's next token; no "
        "token was lost or sent twice."
    )
    return (
        f"Attempt {number}: {worker} died{doing}{after}. The gateway noticed {noticed:.0f} ms after the last that came "
        f"from it. {resumed}"
    )


def _merged(stages: list[Node]) -> list[Node]:
    """One node for each stage of a service: its own time is the sum. Waits for different things stay apart."""
    found: dict[tuple[str, str, str], Node] = {}
    for node in stages:
        key = node.service, node.name, str(node.attributes.get(semconv.WAITS_FOR, ""))
        kept = found.get(key)
        found[key] = replace(node, own=node.own + (kept.own if kept else 0.0))
    return sorted(found.values(), key=lambda node: -node.own)


def _sentence(node: Node, fall: Waterfall) -> str:
    share = f"{node.own:.0f} ms ({100 * node.own / fall.total:.0f}%)"
    text = SENTENCES.get(node.name)
    return text(node, share) if text else f"{node.name} at {node.service} took {share}."


def _compute(node: Node, share: str) -> str:
    tokens, cached = node.attributes.get(semconv.TOKENS), node.attributes.get(semconv.CACHED)
    what = f"{tokens - (cached or 0)} of {tokens} tokens" if isinstance(tokens, int) else "the prompt"
    return f"{node.service} computed {what} for {share}{_floor(node)}. A prefix that is cached needs no computing."


def _generate(node: Node, share: str) -> str:
    steps = node.attributes.get(semconv.STEPS)
    per = f", {node.duration / steps:.1f} ms a step" if isinstance(steps, int) and steps else ""
    return f"{node.service} generated tokens for {share}{per}{_floor(node)}."


def _floor(node: Node) -> str:
    seconds = node.attributes.get(semconv.FLOOR)
    if not seconds:
        return ""
    times = node.duration / 1000 / float(seconds)
    far = _causes(node) if times > FAR_FROM_FLOOR else ""
    return f", {times:.1f} times the least that its hardware needs for this request alone{far}"


def _causes(node: Node) -> str:
    """The causes of a slow stage that the trace has measured; without any it says so."""
    shared, steps = node.attributes.get(semconv.SHARED_STEPS), node.attributes.get(semconv.STEPS)
    blocked = sum(child.duration for child in node.children if child.name == semconv.LOOP_BLOCKED)
    found = []
    if shared:
        of = f" of its {steps}" if steps else ""
        found.append(f"{shared}{of} steps computed other requests too, up to {node.attributes[semconv.BATCH]} in one")
    if blocked > BLOCKED_SHARE * node.duration:
        found.append(f"the event loop of {node.service} stood still for {blocked:.0f} ms")
    if found:
        return ": " + ", and ".join(found)
    alone = "no other request was in its steps, and " if shared == 0 else ""
    return f"; {alone}the cause is not known from the trace"


def _admission(node: Node, share: str) -> str:
    waits_for = node.attributes.get(semconv.WAITS_FOR)
    if waits_for in ("decode worker", "prefill worker"):
        return f"It waited {share} while no {waits_for} was attached: start one, or look why it does not attach."
    if waits_for:
        return f"It waited {share} until a worker had room for it: the mesh was full."
    return f"It waited {share} until it was routed."


SENTENCES: dict[str, Callable[[Node, str], str]] = {
    semconv.QUEUE: lambda node, share: (
        f"It waited {share} for its turn at {node.service}: earlier requests were computed first. More workers of that "
        "tier, or less load, shorten this."
    ),
    semconv.COMPUTE: _compute,
    semconv.GENERATE: _generate,
    semconv.KV_RESERVE: lambda node, share: (
        f"It waited {share} for pages at decode, or for decode's answer. A larger pool_bytes or another decode worker "
        "helps where pools are full."
    ),
    semconv.KV_RECEIVE: lambda node, share: (
        f"{node.service} waited {share} for pages that compute did not hide. A faster transport or link helps."
    ),
    semconv.KV_SEND: lambda node, share: (
        f"{node.service} still wrote pages for {share} after the prompt was computed. A faster transport or link helps."
    ),
    semconv.ADMISSION: _admission,
    semconv.SILENCE: lambda node, share: f"The gateway took {share} to notice that a worker had died.",
    semconv.DISPATCH: lambda node, share: (
        f"Its way to a worker took {share}: the network is slow, or the worker's event loop was busy."
    ),
    semconv.DELIVER: lambda node, share: (
        f"A token's way back to the gateway took {share}: the network is slow, or the gateway was busy."
    ),
    semconv.PREPROCESS: lambda node, share: f"AnswerFormat, templating and tokenizing the prompt took {share}.",
    semconv.POSTPROCESS: lambda node, share: (
        f"Sending took {share} after the last token: the client reads slowly, or the gateway was busy."
    ),
    semconv.ROUTE: lambda node, share: f"Choosing workers took {share}.",
    semconv.LOOP_BLOCKED: lambda node, share: (
        f"The event loop of {node.service} stood still for {share}: that process, or its machine, was overloaded."
    ),
}


def _hidden(fall: Waterfall) -> list[str]:
    """How much of the hand-off compute hid."""
    out = []
    for node in fall.root.walk():
        share = node.attributes.get(semconv.KV_HIDDEN)
        if node.name == semconv.KV_SEND and isinstance(share, int | float):
            size, how = node.attributes.get(semconv.KV_BYTES, 0), node.attributes.get(semconv.KV_TRANSPORT, "?")
            out.append(
                f"The hand-off moved {size / 2**20:.1f} MiB over {how}; {100 * share:.0f}% of it was hidden behind the "
                "computation of the prompt."
            )
    return out
