"""The messages that are under way between two workers, each with the session over which it was sent.

Sessions have a number at either end, and no message tells which two belong together. The first message that is received
in a session pairs it with the sender's. What a session leaves behind when a newer one carries messages is lost."""

from collections import defaultdict
from collections.abc import Collection

from tests.protocol.traces.projecting import ObservedStep

FACTS = ("Written",)  # messages that the model does not know; the phase of their prompt must allow them
Way = tuple[int, int]  # sender, receiver


class UnderWay:
    """It is the same in all states: the model's own messages stand in the same places of their streams."""

    def __init__(self) -> None:
        self._sessions: dict[Way, list[int]] = defaultdict(list)  # the sender's stream of each message, in order
        self._pairs: dict[tuple[int, int, int], int] = {}  # worker, peer, stream of the worker -> stream of the peer

    def sent(self, step: ObservedStep) -> None:
        self._sessions[step.worker, step.peer].append(step.event.stream)

    def next_places(self, step: ObservedStep) -> list[int]:
        """Places of the messages that may be the next one of the receiver's session: the first of the session at the
        sender's end. Until a message has shown which that is, every one is possible that belongs to no other session
        here, the newest first."""
        sessions = self._sessions[step.peer, step.worker]
        if (paired := self._pairs.get((step.worker, step.peer, step.event.stream))) is not None:
            return [sessions.index(paired)] if paired in sessions else []
        free = [s for s in set(sessions) if (step.peer, step.worker, s) not in self._pairs]
        return [sessions.index(session) for session in sorted(free, reverse=True)]

    def kept(self, step: ObservedStep, place: int) -> set[int]:
        """Places of what is still under way behind the receipt of this message."""
        sessions = self._sessions[step.peer, step.worker]
        return {p for p, session in enumerate(sessions) if p != place and session >= sessions[place]}

    def received(self, step: ObservedStep, place: int) -> None:
        way, kept = (step.peer, step.worker), self.kept(step, place)
        session = self._sessions[way][place]
        self._pairs[step.worker, step.peer, step.event.stream] = session
        self._pairs[step.peer, step.worker, session] = step.event.stream
        self._sessions[way] = [s for p, s in enumerate(self._sessions[way]) if p in kept]

    def overdue(self, steps: Collection[ObservedStep], seconds: float) -> str:
        """A message that has not arrived after so long, though its session goes on at both ends; empty: none."""
        over = {(s.worker, s.event.stream) for s in steps if s.what in ("close", "end")}
        for (sender, receiver), sessions in self._sessions.items():
            lives = max(s.event.seconds for s in steps if s.worker == receiver)
            for session in set(sessions):
                there = self._pairs.get((sender, receiver, session))
                if there is None or (sender, session) in over or (receiver, there) in over:
                    continue
                end = sender, receiver, "send", session
                sent = [s for s in steps if (s.worker, s.peer, s.what, s.event.stream) == end]
                first = [s for s in sent if s.form[0] not in FACTS][-sessions.count(session)]
                if lives - first.event.seconds > seconds:
                    return f"{first.form}, worker {sender} to {receiver}"
        return ""
