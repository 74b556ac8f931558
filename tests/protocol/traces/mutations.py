"""Negative controls of the check of traces: each changes one thing in a trace, which the check must then refuse.

A message changes where it was sent and where it was received, unless the loss of one is the point."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.protocol.traces.reading import Line, ProcessTrace

Where = tuple[ProcessTrace, int]  # a process and the index of one of its lines
Mutation = Callable[[list[ProcessTrace]], bool]  # changes the trace; False: it has no place for it


def lines(traces: list[ProcessTrace], what: str, kind: str) -> Iterator[tuple[ProcessTrace, int, Line]]:
    for each in traces:
        for at, line in enumerate(each.lines):
            if line["what"] == what and line.get("kind") == kind:
                yield each, at, line


def of_ticket(found: list[Line], kind: str, ticket: list[Any]) -> list[Line]:
    return [line for line in found if line.get("kind") == kind and line["ticket"] == ticket]


def body(line: Line) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("number", "seconds", "what", "stream")}


def arrival(traces: list[ProcessTrace], sent: Line) -> tuple[ProcessTrace, int] | None:
    """Where this message was received; None: it was lost, or the trace has several of the same."""
    found = [(e, at) for e, at, line in lines(traces, "receive", sent["kind"]) if body(line) == body(sent)]
    same = [line for _, _, line in lines(traces, "send", sent["kind"]) if body(line) == body(sent)]
    return found[0] if len(found) == len(same) == 1 else None


def pairs(traces: list[ProcessTrace], kind: str) -> Iterator[tuple[Where, Where]]:
    """Each message of this kind that arrived: where it was sent, and where it was received."""
    for each, at, line in lines(traces, "send", kind):
        if (there := arrival(traces, line)) is not None:
            yield (each, at), there


def remove(*places: Where) -> None:
    for each, at in sorted(places, key=lambda place: -place[1]):
        del each.lines[at]


def repeat(*places: Where) -> None:
    for each, at in places:
        each.lines.insert(at + 1, copy.deepcopy(each.lines[at]) | {"seconds": each.lines[at]["seconds"] + 0.25})


def old_attempt_of_a_token(traces: list[ProcessTrace]) -> bool:
    """Decode sends a token under the ticket of the attempt before."""
    tickets = {
        (other["ticket"][0], other["ticket"][1]): other["ticket"] for _, _, other in lines(traces, "send", "Open")
    }
    for (sender, at), (receiver, there) in pairs(traces, "Tokens"):
        request, attempt = sender.lines[at]["tokens"][0][:2]
        if sender.tier == "decode" and attempt > 1 and (request, attempt - 1) in tickets:
            for each, place in ((sender, at), (receiver, there)):
                each.lines[place]["tokens"][0][:3] = tickets[request, attempt - 1]
            return True
    return False


def token_of_an_old_attempt_counts(traces: list[ProcessTrace]) -> bool:
    """The gateway has shown a token that it had to drop: its next attempt begins one position too late."""
    for (sender, at), (receiver, there) in pairs(traces, "Open"):
        if sender.lines[at]["ticket"][1] > 1:
            sender.lines[at]["base"] += 1
            receiver.lines[there]["base"] += 1
            return True
    return False


def commit_without_landing(traces: list[ProcessTrace]) -> bool:
    committed = {tuple(line["ticket"]) for _, _, line in lines(traces, "send", "Commit")}
    for sent, received in pairs(traces, "Landing"):
        if tuple(sent[0].lines[sent[1]]["ticket"]) in committed:
            remove(sent, received)
            return True
    return False


def ready_twice(traces: list[ProcessTrace]) -> bool:
    for sent, received in pairs(traces, "Ready"):
        repeat(sent, received)
        return True
    return False


def one_sided(traces: list[ProcessTrace]) -> bool:
    """Do pages wait for proof here? Frames need none."""
    return any(line["chosen"] == "one" for _, _, line in lines(traces, "send", "KvHello"))


def quiet_never_sent(traces: list[ProcessTrace]) -> bool:
    """Quiet is missing at both ends, and the pages that it freed are used again."""
    if not one_sided(traces):
        return False
    for sent, received in pairs(traces, "Quiet"):
        decode, after = received[0], received[0].lines[received[1] :]
        ticket = sent[0].lines[sent[1]]["ticket"]
        landings = of_ticket(decode.lines[: received[1]], "Landing", ticket)
        pages = {page for line in landings for page in line["pages"]}
        if any(pages & set(other["pages"]) for other in after if other.get("kind") == "Landing"):
            remove(sent, received)
            return True
    return False


def quarantined_page_handed_out(traces: list[ProcessTrace]) -> bool:
    """A Landing names a page of the landing before, whose writer has not proven anything."""
    if not one_sided(traces):
        return False
    for sent, received in pairs(traces, "Landing"):
        kinds = "Landing", "Landed", "Quiet", "Commit"
        others = [line for line in sent[0].lines[: sent[1]] if line.get("kind") in kinds]
        before = others[-1] if others else {"kind": ""}
        if before["kind"] == "Landing" and before["ticket"] != sent[0].lines[sent[1]]["ticket"] and before["pages"]:
            for each, at in (sent, received):
                each.lines[at]["pages"] = before["pages"]
            return True
    return False


def message_removed(traces: list[ProcessTrace]) -> bool:
    """A message of a session never arrives, though later ones do."""
    for _, received in pairs(traces, "Ready"):
        remove(received)
        return True
    return False


def unsent_message(traces: list[ProcessTrace]) -> bool:
    for sent, _ in pairs(traces, "Landed"):
        remove(sent)
        return True
    return False


def events_swapped(traces: list[ProcessTrace]) -> bool:
    """Decode answers a Ready before it comes."""
    for each, at, line in lines(traces, "receive", "Ready"):
        following = each.lines[at + 1]
        if following.get("kind") == "Landing" and following["ticket"] == line["ticket"]:
            each.lines[at], each.lines[at + 1] = following, line
            line["seconds"], following["seconds"] = following["seconds"], line["seconds"]
            return True
    return False


def attempt_jumps(traces: list[ProcessTrace]) -> bool:
    """The second attempt of a request has number 3, everywhere."""
    for _, _, line in list(lines(traces, "send", "Open")):
        request, attempt, _ = line["ticket"]
        if attempt == 2:
            for each in traces:
                for other in each.lines:
                    jump(other, request)
            return True
    return False


def jump(line: Line, request: int) -> None:
    if line.get("ticket", [0, 0])[:2] == [request, 2]:
        line["ticket"][1] = 3
    if (line.get("request"), line.get("attempt")) == (request, 2):
        line["attempt"] = 3
    for token in line.get("tokens", ()):
        if token[:2] == [request, 2]:
            token[1] = 3


def position_twice(traces: list[ProcessTrace]) -> bool:
    for sent, received in pairs(traces, "Tokens"):
        if sent[0].tier == "decode":
            repeat(sent, received)
            return True
    return False


def written_after_quiet(traces: list[ProcessTrace]) -> bool:
    """Prefill says that it has written, after it has said that it writes no more."""
    for each, at, line in lines(traces, "send", "Quiet"):
        written = of_ticket(each.lines[:at], "Written", line["ticket"])
        if written and written[-1]["stream"] == line["stream"]:
            each.lines.insert(at + 1, written[-1] | {"seconds": line["seconds"] + 0.25})
            return True
    return False


def lost_after_running(traces: list[ProcessTrace]) -> bool:
    """Decode reports a landing as lost whose request runs."""
    for (each, at), (receiver, there) in pairs(traces, "Tokens"):
        if each.tier == "decode":
            ticket = each.lines[at]["tokens"][0][:3]
            for process, place in ((each, at), (receiver, there)):
                line = process.lines[place]
                lost = {"kind": "Lost", "ticket": ticket, "reason": "landing_lost", "seconds": line["seconds"] + 0.25}
                process.lines.insert(place + 1, {"what": line["what"], "stream": line["stream"], **lost})
            return True
    return False


MUTATIONS: tuple[Mutation, ...] = (
    old_attempt_of_a_token, token_of_an_old_attempt_counts, commit_without_landing, ready_twice, quiet_never_sent,
    quarantined_page_handed_out, message_removed, unsent_message, events_swapped, attempt_jumps, position_twice,
    written_after_quiet, lost_after_running,
)  # fmt: skip
