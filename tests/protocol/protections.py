"""The protections that can be removed: each is a rule of docs/protocol.md, or a part of one of its tables.

`removed` says what the removal means. `shown_in` names the small configuration whose exploration finds the violation,
with the transport; the last four have none: without them nothing goes wrong in these worlds, and they stay because
they save work."""

from typing import NamedTuple

from tests.protocol.configurations import SMALL, Configuration

UNMODELLED = frozenset({"behind", "kept"})  # rules about what these worlds do not have: windows


class Protection(NamedTuple):
    removed: str
    shown_in: str = ""
    transport: str = "shm"


PROTECTIONS = {
    "fence": Protection(
        "decode goes on accepting the old attempt's writes, frames and Commit after a new Open",
        "prefill crashes or stops",
    ),
    "fresh": Protection("a new attempt gets the same pages as the old one", "prefill crashes or stops"),
    "quarantine": Protection("pages of an ended landing are free at once", "prefill crashes or stops"),
    "proof": Protection("a closed session counts as proof that its writer is dead", "prefill crashes or stops"),
    "key": Protection(
        "RDMA: a dead process counts as proof although its network card may still send",
        "prefill crashes or stops",
        "rdma",
    ),
    "handle": Protection(
        "a pool is reopened by name: a writer reaches the memory of a restarted decode worker",
        "prefill crashes or stops",
        "rdma",
    ),
    "incarnation": Protection(
        "Quiet from a new process at the same address counts for the old process",
        "a stopped prefill is replaced at its address",
    ),
    "requiet": Protection(
        "Abort is not repeated in a new session, and an unknown ticket is not answered Quiet",
        "page damaged and another fault",
    ),
    "resend_count": Protection("a Commit counts as Quiet although a Resend is on its way", "repair before Commit"),
    "one_ready": Protection(
        "prefill asks again before the first Ready was answered", "two requests, a small prefill pool"
    ),
    "sink": Protection(
        "two-sided: a half-received frame goes on into the page after its landing ended",
        "cancel and another fault",
        "tcp",
    ),
    "checksum": Protection(
        "a landing is admitted at Commit without looking at its pages", "page damaged and another fault"
    ),
    "ticket": Protection(
        "tickets are told apart by request and attempt only, without the gateway's random bits", "the gateway restarts"
    ),
    "position": Protection("the gateway forwards any position of the current attempt", "one request, no fault"),
    "attempt": Protection("the gateway forwards the next position of any attempt", "page damaged and another fault"),
    "first": Protection(
        "decode's own tokens begin behind the first one: only prefill sends that", "one request, no fault"
    ),
    "early": Protection("a Ready that overtakes its Open is refused, not put off", "one request, no fault"),
    "lost": Protection("decode does not report that a landing was lost with its session", "any stream breaks"),
    "retire": Protection("the workers do not learn that a request has ended", "cancel and another fault"),
    "later": Protection(
        "prefill waits for the pages of one prompt before it asks for the next", "one decode pool full, another not"
    ),
    "whole": Protection("decode hands out landings page by page", "together they exceed the pool"),
    "count": Protection("a request larger than the whole pool is admitted", "larger than the pool"),
    "preempt": Protection("growth does not preempt", "growth beyond the pool"),
    "ageing": Protection("younger requests may pass an older one without limit", "a big prompt among small ones"),
    "growth": Protection("landings may take the page that a running request needs next"),
    "youngest": Protection("growth preempts the oldest instead of the youngest"),
    "failed": Protection("prefill does not report that it lost the session to decode"),
    "lastproof": Protection("pages that are all valid are admitted without Commit while the writer may still live"),
}


def demonstration(name: str) -> Configuration | None:
    """The small configuration in which the removal of this protection is found; None: no world needs it."""
    shown_in, transport = PROTECTIONS[name].shown_in, PROTECTIONS[name].transport
    found = [c for c in SMALL if (c.name, c.transport) == (shown_in, transport)]
    return found[0] if found else None
