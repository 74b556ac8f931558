"""A request's spans as a tree on one time axis, with the time that each span has to itself. Pure functions.

Input is the answer of `GET /debug/requests/{request_id}`. At every moment of a request exactly one span gets the time:
among all spans that run and have no child running, work at a model goes first (compute, generate, queue), then moving
pages, then the rest. So a transfer that compute hides costs nothing, and the shares add up to the covered part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mesh.telemetry import semconv

# Who gets a moment that several spans share.
PRECEDENCE = (
    semconv.COMPUTE,
    semconv.GENERATE,
    semconv.QUEUE,
    semconv.SILENCE,
    semconv.KV_SEND,
    semconv.POSTPROCESS,
    semconv.ROUTE,
    semconv.DISPATCH,
    semconv.KV_RESERVE,
    semconv.DELIVER,
    semconv.KV_RECEIVE,  # decode waits for prefill: whatever prefill does meanwhile comes first
    semconv.PREPROCESS,
    semconv.ADMISSION,
)
LATER = len(PRECEDENCE)


@dataclass(slots=True)
class Node:
    """One span in its place in the tree."""

    service: str
    name: str
    span_id: str
    parent_id: str
    start: float  # milliseconds after the request's start
    end: float
    attributes: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    children: list["Node"] = field(default_factory=list)
    depth: int = 0
    own: float = 0.0  # milliseconds that no other span gets

    @property
    def duration(self) -> float:
        return self.end - self.start

    def precedence(self, parents: Mapping[str, "Node"]) -> tuple[int, bool]:
        """Smaller goes first. A blocked event loop stands for the span that it interrupts; of two workers that wait for
        each other the prefill worker goes first."""
        node = self
        if node.name == semconv.LOOP_BLOCKED and node.parent_id in parents:
            node = parents[node.parent_id]
        attempt = parents.get(node.parent_id)
        at_decode = attempt is not None and attempt.name == semconv.DECODE
        return PRECEDENCE.index(node.name) if node.name in PRECEDENCE else LATER, at_decode

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Waterfall:
    root: Node
    orphans: tuple[Node, ...]  # spans whose parent is not among the spans

    @property
    def total(self) -> float:
        return self.root.duration

    @property
    def tiled(self) -> float:
        """Share of the request's time that its stages cover."""
        covered = sum(node.own for node in self.root.walk() if not is_frame(node, self.root))
        return covered / self.total if self.total else 1.0

    def stages(self) -> list[Node]:
        """The spans that have time of their own, the most expensive first."""
        found = [node for node in self.root.walk() if node.own > 0 and not is_frame(node, self.root)]
        return sorted(found, key=lambda node: -node.own)


def waterfall(spans: Sequence[Mapping[str, Any]]) -> Waterfall:
    """The tree of these spans. ValueError without exactly one root."""
    nodes = {span["span_id"]: _node(span) for span in spans}
    tops = [node for node in nodes.values() if node.parent_id not in nodes]
    # The root began first and spans everything; a client's own span may be its parent.
    root = min(tops, key=lambda node: (node.start, -node.end), default=None)
    if root is None:
        raise ValueError("a trace needs a root span")
    for node in nodes.values():
        if node is not root and node.parent_id in nodes:
            nodes[node.parent_id].children.append(node)
    _deepen(root, 0)
    _share_out(nodes)
    return Waterfall(root, tuple(node for node in tops if node is not root))


def is_frame(node: Node, root: Node) -> bool:
    """Whether the span only holds others: the root, `chat {model}`, and the attempts at a worker."""
    generation = node.parent_id == root.span_id
    return node is root or generation or node.name in (semconv.PREFILL, semconv.DECODE)


def _node(span: Mapping[str, Any]) -> Node:
    start = float(span["start_ms"])
    return Node(
        service=span["service"],
        name=span["name"],
        span_id=span["span_id"],
        parent_id=span["parent_id"],
        start=start,
        end=start + max(0.0, float(span["duration_ms"])),
        attributes=span.get("attributes") or {},
        events=span.get("events") or (),
    )


def _deepen(node: Node, depth: int) -> None:
    node.depth = depth
    node.children.sort(key=lambda child: (child.start, child.end))
    for child in node.children:
        _deepen(child, depth + 1)


def _share_out(nodes: Mapping[str, Node]) -> None:
    """Give each moment to one span."""
    borders = sorted({border for node in nodes.values() for border in (node.start, node.end)})
    for start, end in pairwise(borders):
        running = [node for node in nodes.values() if node.start <= start and node.end >= end]
        parents = {node.parent_id for node in running}
        leaves = [node for node in running if node.span_id not in parents]
        if leaves:
            first = min(leaves, key=lambda node: (node.precedence(nodes), -node.depth, node.start))
            first.own += end - start
