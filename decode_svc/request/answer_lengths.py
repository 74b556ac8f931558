"""How long answers become, from those that ended here last. Decode admits by it: a request whose pages would be taken
away again before its answer ends had better wait (decode_svc/handoff/room.py).

An answer that was cut at its limit, or lost its pages, says only that its full length is no shorter. The estimate is
that of Kaplan and Meier, which counts such answers for as long as they are seen."""

from bisect import bisect_right
from collections import deque

KEPT = 256  # answers
LATEST = 32  # answers whose time counts: it depends on the load
KNOWN = 8  # with fewer answers nothing is estimated
FRESH = 8  # answers after which the estimate is made anew


class AnswerLengths:
    def __init__(self) -> None:
        self._ended: deque[tuple[int, bool]] = deque(maxlen=KEPT)  # tokens; True: it was cut
        self._seconds: deque[float] = deque(maxlen=LATEST)
        self._added = FRESH  # answers that the curve does not have yet
        # From each of these lengths on: the share of answers that are longer, and the area under the curve before.
        self._lengths, self._shares, self._areas = [0], [1.0], [0.0]

    @property
    def known(self) -> bool:
        return len(self._ended) >= KNOWN

    @property
    def seconds(self) -> float:
        """Time for which an answer keeps its place, from its pages to its end; 0: not known."""
        return sum(self._seconds) / len(self._seconds) if self.known else 0.0

    def add(self, tokens: int, seconds: float, *, cut: bool) -> None:
        self._seconds.append(seconds)
        self._ended.append((tokens, cut))
        self._added += 1

    def left(self, emitted: int, most: int) -> int:
        """Tokens that an answer will still emit, after `emitted` of them, if it may emit `most` in all."""
        if self._added >= FRESH:
            self._draw()
        share = self._shares[bisect_right(self._lengths, emitted) - 1]
        if share <= 0.0:  # longer than all that are known: it goes on for as long again
            return max(1, min(emitted, most - emitted))
        return max(1, round((self._area(most) - self._area(emitted)) / share))

    def _area(self, tokens: int) -> float:
        at = bisect_right(self._lengths, tokens) - 1
        return self._areas[at] + self._shares[at] * (tokens - self._lengths[at])

    def _draw(self) -> None:
        """The curve: at each length at which answers ended by themselves, their share of those still seen leaves."""
        self._added = 0
        lengths, shares, areas, seen = [0], [1.0], [0.0], len(self._ended)
        for length, cut in sorted(self._ended):
            if not cut:
                areas.append(areas[-1] + shares[-1] * (length - lengths[-1]))
                lengths.append(length)
                shares.append(shares[-1] * (1 - 1 / seen))
            seen -= 1
        self._lengths, self._shares, self._areas = lengths, shares, areas
