"""Room: decides which requests get the pages of a whole prompt now, all or none; running requests' pages go first.

Steps 3 and 6 of a request's life. A request waits if those that run would need its pages before they end, if
answers become as long as they did here: what is admitted shall not be preempted. A request that got Later keeps its
place: a few younger ones may pass it, then none until it has its pages or has left. `allows` changes nothing; `refuse`,
`pass_over` and `ended` record what happened."""

from collections.abc import Callable, Mapping, Sequence

from decode_svc.request.answer_lengths import AnswerLengths
from decode_svc.request.forecast import GrowingRequest, peak_growth
from decode_svc.request.requests import WAITING, DecodePhase, DecodeRequest
from engine.examining.examined import Seniority
from engine.pool.horizon import GONE, Horizon, held
from engine.pool.pages import PagePool
from mesh.messages.hashing import block_hashes
from mesh.messages.jobs import End
from mesh.messages.reports import Load

HAVE_PAGES = (DecodePhase.RUNNING, DecodePhase.LANDING)


def nothing_reserved(younger: Seniority) -> int:
    return 0


class Room:
    def __init__(
        self,
        requests: Mapping[int, DecodeRequest],
        pages: PagePool,
        *,
        horizon: Horizon,
        chunk_tokens: int,  # most rows of a prompt that a step computes here
        numerics: str,
        max_batch: int,
        overtakes: int,
        reserved: Callable[[Seniority], int] = nothing_reserved,  # pages for an older prompt that is examined here
    ) -> None:
        self.horizon, self.page_tokens = horizon, horizon.page_tokens
        self._chunk_tokens = chunk_tokens
        self._requests = requests
        self._pages = pages
        self._numerics = numerics
        self._max_batch = max_batch
        self._overtakes = overtakes
        self._reserved = reserved
        self._lengths = AnswerLengths()

    def take_shared(self, request: DecodeRequest) -> tuple[int, ...]:
        """The pages of this text's beginning that the prefix cache has, with a reference taken on each. GONE stands for
        those that no row behind them reads."""
        salt, size, last = request.job.cache_salt, self.page_tokens, len(request.tokens) - 1
        hashes = block_hashes(request.tokens, page_tokens=size, numerics=self._numerics, salt=salt)
        if self.horizon.window:
            shared = self._pages.match(hashes, lambda count: self.horizon.first_page(min(count * size, last)))
        else:
            shared = self._pages.match(hashes)
        request.hashes = hashes[: len(shared) // self.horizon.bands]
        return shared

    def take_shared_before_landing(self, request: DecodeRequest) -> tuple[tuple[int, ...], int]:
        """The same for a text that prefill computes, and the first stretch that lands whole. Of bands with windows only
        the pages have to land that the last row and later ones read: GONE stands for all before them."""
        shared, first = list(self.take_shared(request)), self.horizon.first_page(len(request.tokens) - 1)
        found = len(shared) // self.horizon.bands
        unread = self.horizon.behind(0, min(first, found))
        self._pages.release(held([shared[index] for index in unread]))
        for index in unread:
            shared[index] = GONE
        if not self.horizon.full and first > found:
            return (*shared, *[GONE] * (first - found)), first
        return tuple(shared), first

    def lands(self, request: DecodeRequest, before: Sequence[int], first_windowed: int) -> list[bool]:
        """For each page of the text behind these ones whether it has to land."""
        return self.horizon.landing(len(before), self.horizon.whole(len(request.tokens)), first_windowed)

    def lacking_here(self, request: DecodeRequest, shared: Sequence[int]) -> int:
        """Pages of the text behind these ones that this worker needs before it computes them, in whole stretches: with
        windows, only as many as it holds at a time."""
        tokens, bands = len(request.tokens), self.horizon.bands
        lacking = self.horizon.whole(tokens) - len(shared)
        most = self.horizon.most_pages(tokens, self._chunk_tokens)
        return min(lacking, -(-max(0, most - len(held(shared))) // bands) * bands)

    def largest_need(self, request: DecodeRequest) -> int:
        """Pages that the request holds at a time when it emits all the tokens that it may."""
        tokens = len(request.job.prompt) + request.job.sampling.max_tokens
        return self.horizon.most_pages(tokens, self._chunk_tokens)

    def places(self) -> int:
        """How many more requests the batch takes."""
        return max(0, self._max_batch - sum(r.phase in HAVE_PAGES for r in self._requests.values()))

    def allows(self, request: DecodeRequest, lacking: int) -> bool:
        """May this request have the `lacking` pages now? Rule [ageing]: not when too many younger ones have passed an
        older one that waits; otherwise small requests could keep a large one out for ever."""
        if any((older.passed or 0) >= self._overtakes for older in self._passed_by(request)):
            return False
        if not self.places():
            return False
        room = self._pages.available - lacking - self._reserved(request.seniority)
        return self.growth() <= room and self.later_growth(request, lacking) <= room

    def refuse(self, request: DecodeRequest) -> None:
        """The request got Later: from now on those that pass it are counted."""
        request.passed = request.passed or 0

    def pass_over(self, request: DecodeRequest) -> None:
        """The request gets its pages: every older one that waits has been passed once more."""
        request.shared = len(request.hashes)
        for older in self._passed_by(request):
            older.passed = (older.passed or 0) + 1

    def growth(self) -> int:
        """Pages that running requests need for their next token."""
        return self.horizon.bands * sum(
            r.phase is DecodePhase.RUNNING and self.horizon.whole(r.filled + max(1, r.pending)) > len(r.pages)
            for r in self._requests.values()
        )

    def later_growth(self, request: DecodeRequest, lacking: int) -> int:
        """Pages that running requests and this one, which takes `lacking`, will need beyond their next ones, as far as
        that can be known."""
        others = [r for r in self._requests.values() if r.phase in HAVE_PAGES]
        if not others or not self._lengths.known:
            return 0
        if self.horizon.window and not self.horizon.full:
            return sum(self._lacking_later(each, _pages(each)) for each in others) + self._lacking_later(
                request, lacking
            )
        own = self.horizon.stretches(len(request.tokens))
        if self.horizon.full and request.phase is DecodePhase.LOCAL:
            own = min(own, len(request.hashes) + lacking // self.horizon.bands)
        growing = [self._growing(each, self._stretches(each), each.shared) for each in others]
        stretches = peak_growth([*growing, self._growing(request, own, own)], self.page_tokens)
        return self.horizon.full * stretches + self.horizon.windowed * self._windowed_growth(
            [*others, request], stretches
        )

    def _windowed_growth(self, requests: Sequence[DecodeRequest], stretches: int) -> int:
        """Stretches of which these requests will need pages in bands with windows, when in other bands they need those
        of `stretches` more: of as many, until one of them has given pages back and so frees fewer at its end."""
        if not any(request.gone for request in requests):
            return stretches
        return sum(
            max(
                0,
                self.horizon.most_stretches(len(each.tokens) + self._left(each), 1) - self._stretches(each) + each.gone,
            )
            for each in requests
        )

    def _growing(self, request: DecodeRequest, stretches: int, shared: int) -> GrowingRequest:
        return GrowingRequest(self._left(request), len(request.tokens), stretches, shared)

    def _left(self, request: DecodeRequest) -> int:
        """Tokens that the request will still emit, as far as that can be known."""
        return self._lengths.left(request.next_position, request.job.sampling.max_tokens)

    def _stretches(self, request: DecodeRequest) -> int:
        """Stretches of which the request has pages, those that prefill writes included."""
        landing = len(request.landing.pages) if request.landing is not None else 0
        return (len(request.pages) + landing) // self.horizon.bands

    def _lacking_later(self, request: DecodeRequest, pages: int) -> int:
        """Pages that the request lacks, which has so many, until it holds the most that it will. It gives one back for
        each that it takes then."""
        tokens, chunk = len(request.job.prompt) + request.job.sampling.max_tokens, 1
        if request.phase is not DecodePhase.LANDING and request.pending > 1:
            chunk = self._chunk_tokens
        return max(0, self.horizon.most_pages(tokens, chunk) - pages)

    def ended(self, request: DecodeRequest, now: float) -> None:
        """The request leaves. Those that ran teach how long answers become."""
        last = request.produced.get(request.next_position - 1)
        if request.phase is DecodePhase.RUNNING and last is not None and not request.preempted:
            began = request.landing_began_seconds or request.running_seconds
            self._lengths.add(request.next_position, now - began, cut=last.end is End.LENGTH)

    def oldest_waiting(self) -> tuple[Seniority, int] | None:
        """The oldest request that got Later and still waits: its seniority, and the pages that its text needs."""
        waiting = [r for r in self._requests.values() if r.phase in WAITING and r.passed is not None]
        first = min(waiting, key=lambda r: r.seniority, default=None)
        return None if first is None else (first.seniority, self.lacking_here(first, ()))

    def load(self, tokens_per_second: float, step_seconds: float = 0.0, local_tokens_per_second: float = 0.0) -> Load:
        """The report that tells gateways how full this worker is."""
        everyone = self._requests.values()
        opened = [r for r in everyone if r.phase in WAITING]
        waiting = sum(r.passed is not None for r in opened)  # it was tried, and there was no room
        running = sum(r.phase in HAVE_PAGES for r in everyone)
        return Load(
            waiting=waiting,
            running=running,
            queued_tokens=sum(r.pending for r in everyone if r.pending > 1 and r.prefill is None),
            free_pages=self._pages.available,
            total_pages=self._pages.pages,
            tokens_per_second=tokens_per_second,
            opened=len(opened),
            free_places=0 if waiting else self.places(),
            place_seconds=self._place_seconds(step_seconds, running if waiting else self._max_batch),
            local_tokens_per_second=local_tokens_per_second,
        )

    def _place_seconds(self, step_seconds: float, places: int) -> float:
        """The time between two places that get free while none is: the time for which answers kept theirs, divided by
        the places. Before answers have ended they count as long as they may become, in a full batch. Two digits: it
        changes seldom."""
        limits = [r.job.sampling.max_tokens for r in self._requests.values()]
        guess = step_seconds * sum(limits) / len(limits) / self._max_batch if limits else 0.0
        seconds = self._lengths.seconds / max(1, places) if self._lengths.known else guess
        return float(f"{seconds:.1e}")

    def _passed_by(self, request: DecodeRequest) -> list[DecodeRequest]:
        """Older requests that got Later and still wait."""
        return [
            r
            for r in self._requests.values()
            if r.passed is not None and r.phase in WAITING and r.seniority < request.seniority
        ]


def _pages(request: DecodeRequest) -> int:
    """Pages that the request has, those that prefill writes included."""
    return len(held(request.pages)) + (len(request.landing.writable) if request.landing is not None else 0)
