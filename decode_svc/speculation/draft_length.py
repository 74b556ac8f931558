"""How many drafts a step should verify: its expected tokens against its expected time, both measured.

Step 7 of a request's life. The model of cost is small: a plain step of n requests takes what such steps took lately; a
draft for each of them adds a share of that, measured where drafts ran, else guessed from how plain steps grow with n.
At a batch whose steps are bound by arithmetic that share is so large that drafting stops by itself. Nothing here reads
a clock or draws a number: equal measurements give equal lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

PLAIN_STEPS = 3  # plain steps of a batch size before it drafts: there must be a time to compare with
REFRESH_STEPS = 256  # drafted steps until a plain one is measured again, since contexts grow
GAIN = 1.03  # tokens per time against plain steps; a smaller gain is not worth the trouble
KNEE_ROWS = 12  # rows from which on arithmetic costs time, until it is measured
DRAFT_SHARE = 0.15  # time of one proposal for a lone request as a share of a plain step, until it is measured
FIRST_WAIT, LAST_WAIT = 16, 512  # steps until a request whose drafts were refused tries one again
PROBE_ROWS = 512  # rows that the draft model may have to read for such a try, all requests of the batch together
LATEST = 0.2  # weight of a new measurement
FORGET = 0.001  # share of an excessive measured cost that each plain step takes back, so that it fades
TRIAL_STEPS = 4  # steps with one draft each, at a batch size whose cost of drafts is unknown
PRIOR_WEIGHT = 4.0  # drafts of a request that must be verified before they outweigh the average


@dataclass(slots=True)
class Acceptance:
    """How many of one request's drafts were accepted; the latest count most."""

    accepted: float = 0.0
    looked_at: float = 0.0  # drafts up to and including the first refused one of each step
    idle_steps: int = 0  # steps since it drafted last
    wait_steps: int = FIRST_WAIT  # idle steps until it tries again

    def note(self, drafts: int, accepted: int, *, keep: float = 0.9) -> None:
        self.accepted = keep * self.accepted + accepted
        self.looked_at = keep * self.looked_at + min(accepted + 1, drafts)

    def rate(self, common: float) -> float:
        return (self.accepted + PRIOR_WEIGHT * common) / (self.looked_at + PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request in decode, before a step."""

    acceptance: Acceptance
    most: int  # drafts that it could use
    unread: int = 0  # tokens that the draft model must read first


class DraftLengths:
    def __init__(self, *, longest: int, prior: float, draft_share: float = DRAFT_SHARE) -> None:
        """`prior` is the acceptance that is assumed before any draft was verified. With `draft_share` 0 proposals cost
        nothing."""
        self._longest = longest
        self._prior = prior
        self._draft_share = draft_share
        self._common = Acceptance()
        self._plain: dict[int, float] = {}  # batch -> seconds of a plain step
        self._seen: dict[int, int] = {}  # batch bucket -> plain steps measured
        self._extra: dict[int, float] = {}  # batch bucket -> what one draft for each request adds, as a share
        self._drafted: dict[int, int] = {}  # batch bucket -> drafted steps since the last plain one
        self._tried: dict[int, int] = {}  # batch bucket -> trial steps so far
        self._warm: set[int] = set()  # batch buckets that drafted before
        self._since_probe = 0

    def lengths(self, candidates: Sequence[Candidate]) -> list[int]:
        """How many drafts each of these requests should get in the next step."""
        batch, bucket = len(candidates), len(candidates).bit_length()
        if self._seen.get(bucket, 0) < PLAIN_STEPS or self._drafted.get(bucket, 0) >= REFRESH_STEPS:
            return [0] * batch
        extra, common = self.extra(batch), self._common.rate(self._prior)
        pays = best_length(1.0, extra, self._longest) > 0
        if not pays and not self._may_try(candidates):
            return [0] * batch  # even perfect drafts would not pay
        chosen = [best_length(c.acceptance.rate(common), extra, min(c.most, self._longest)) for c in candidates]
        if not any(chosen) and self._may_try(candidates):
            self._tried[bucket] = self._tried.get(bucket, 0) + 1
            return [min(1, candidate.most) for candidate in candidates]
        self._since_probe += 1
        for index, (candidate, length) in enumerate(zip(candidates, chosen, strict=True)):
            if length:
                candidate.acceptance.idle_steps, candidate.acceptance.wait_steps = 0, FIRST_WAIT
            elif pays and self._probes(candidate, batch):
                chosen[index], self._since_probe = 1, 0
        return chosen

    def note(self, acceptance: Acceptance, drafts: int, accepted: int) -> None:
        """Record that the model has verified a request's drafts."""
        acceptance.note(drafts, accepted)
        self._common.note(drafts, accepted, keep=0.99)

    def measure(self, batch: int, drafts: int, seconds: float) -> None:
        """Record the time of a step of `batch` requests, all in decode, that verified `drafts` and proposed as many."""
        bucket = batch.bit_length()
        if drafts == 0:
            seen, known = self._seen.get(bucket, 0), self._plain.get(batch)
            self._seen[bucket], self._drafted[bucket] = seen + 1, 0
            if known is None or seen < PLAIN_STEPS:
                self._plain[batch] = min(seconds, known or seconds)  # a first step may warm caches up
            else:
                self._plain[batch] += LATEST * (min(seconds, 2 * known) - known)
            if (extra := self._extra.get(bucket, 0.0)) > (guess := self._guess(batch)):
                self._extra[bucket] = extra - FORGET * (extra - guess)
            return
        self._drafted[bucket] = self._drafted.get(bucket, 0) + 1
        if bucket not in self._warm:  # a first step may warm caches up; on a GPU it compiles and captures
            return self._warm.add(bucket)
        each, plain = drafts / batch, self.plain_seconds(batch)
        if each >= 0.5 and plain > 0:
            share = min(max(0.0, (seconds / plain - 1) / each), 4.0)
            before = self._extra.get(bucket)
            self._extra[bucket] = share if before is None else before + LATEST * (min(share, 2 * before + 0.1) - before)

    def plain_seconds(self, batch: int) -> float:
        """How long a step of this batch without drafts takes; 0 where no such step was measured."""
        if batch in self._plain:
            return self._plain[batch]
        below = max((n for n in self._plain if n < batch), default=None)
        above = min((n for n in self._plain if n > batch), default=None)
        if below is None or above is None:
            return self._plain[below or above or 0] if self._plain else 0.0
        low, high = self._plain[below], self._plain[above]
        return low + (high - low) * (batch - below) / (above - below)

    def extra(self, batch: int) -> float:
        """Share of the plain step's time that one draft for every request of this batch adds."""
        measured = self._extra.get(batch.bit_length())
        return self._guess(batch) if measured is None else measured

    def _guess(self, batch: int) -> float:
        plain, smaller = self.plain_seconds(batch), self._smaller(batch)
        if plain <= 0 or smaller is None:
            rows = batch / (batch + KNEE_ROWS)
        else:
            rows = max(0.0, plain - self._plain[smaller]) / (batch - smaller) * batch / plain
        return rows + self._draft_share

    def _smaller(self, batch: int) -> int | None:
        """The largest measured batch of at most half the size: the difference in time is what rows cost."""
        return max((n for n in self._plain if 2 * n <= batch), default=None)

    def _may_try(self, candidates: Sequence[Candidate]) -> bool:
        """True: drafts do not pay by a guess only, and the draft model has little to catch up, so they are tried."""
        batch, bucket = len(candidates), len(candidates).bit_length()
        tried, rows = self._tried.get(bucket, 0), sum(candidate.unread for candidate in candidates)
        guessed = bucket not in self._extra and self._smaller(batch) is None
        return guessed and tried < TRIAL_STEPS and rows <= PROBE_ROWS

    def _probes(self, candidate: Candidate, batch: int) -> bool:
        """A request whose drafts were refused tries one again now and then; seldom more than one of a batch, so that
        tries cost a large batch nothing that shows."""
        acceptance = candidate.acceptance
        acceptance.idle_steps += 1
        if not candidate.most or acceptance.idle_steps < acceptance.wait_steps or self._since_probe < FIRST_WAIT:
            return False
        if candidate.unread * batch > PROBE_ROWS:
            return False
        acceptance.idle_steps, acceptance.wait_steps = 0, min(LAST_WAIT, 2 * acceptance.wait_steps)
        return True


def best_length(rate: float, extra: float, most: int) -> int:
    """The draft length with the most expected tokens per time; 0 where drafting gains too little.

    With acceptance `rate` a step with k drafts yields 1 + rate + ... + rate^k tokens in the time of 1 + k * extra plain
    steps."""
    return _best_length(round(rate, 2), round(extra, 2), most)


@lru_cache(4096)
def _best_length(rate: float, extra: float, most: int) -> int:
    best = 0
    best_gain = GAIN
    tokens = 1.0
    for length in range(1, most + 1):
        tokens += rate**length
        gain = tokens / (1 + length * extra)
        if gain > best_gain:
            best, best_gain = length, gain
    return best
