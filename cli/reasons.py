"""Says in plain sentences why a request took its time: what dominated, how far that is from the hardware's floor, and
what would help. Pure functions over a request's waterfall."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cli.waterfall import Node, Waterfall
from mesh import semconv

WORTH_SAYING = 0.15  # a stage below this share of the request is not mentioned
FAR_FROM_FLOOR = 3.0  # a stage that took more than this many times its floor


def reasons(trace: dict[str, Any], fall: Waterfall) -> list[str]:
    """At least one sentence; the most important ones first."""
    out = [*_failures(trace, fall), *_attempts(fall)]
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
        last = max(fall.stages(), key=lambda node: node.end, default=fall.root)
        return [f"The request failed with {trace['error']!r}; the last stage was {last.name} at {last.service}."]
    return []


def _attempts(fall: Waterfall) -> list[str]:
    """A sentence for each attempt that was lost, with its cost."""
    out = []
    for node in fall.root.walk():
        why = node.attributes.get(semconv.LOST)
        if why and node.name == semconv.DECODE:
            worker = node.attributes.get(semconv.WORKER, node.service)
            out.append(
                f"Attempt {node.attributes.get(semconv.ATTEMPT, '?')} at {worker} ended early ({why}) after "
                f"{node.duration:.0f} ms; another attempt went on from the tokens that the client had."
            )
    return out


def _merged(stages: list[Node]) -> list[Node]:
    """One node for each stage of a service: its own time is the sum."""
    found: dict[tuple[str, str], Node] = {}
    for node in stages:
        kept = found.get((node.service, node.name))
        found[node.service, node.name] = replace(node, own=node.own + (kept.own if kept else 0.0))
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
    far = " because it shared its steps with other requests, or the machine was busy" if times > FAR_FROM_FLOOR else ""
    return f", {times:.1f} times the least that its hardware needs for this request alone{far}"


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
    semconv.ADMISSION: lambda node, share: f"It waited {share} until a worker could take it: the mesh was full.",
    semconv.DISPATCH: lambda node, share: (
        f"Its way to a worker took {share}: the network is slow, or the worker's event loop was busy."
    ),
    semconv.DELIVER: lambda node, share: (
        f"A token's way back to the gateway took {share}: the network is slow, or the gateway was busy."
    ),
    semconv.PREPROCESS: lambda node, share: f"Reading, templating and tokenizing the prompt took {share}.",
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
