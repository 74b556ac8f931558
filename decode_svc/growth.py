"""Growth: gives running requests the pages of their next slots, and a copy of a shared page before they write to it.

Step 7 of a request's life. A request that finds no free page preempts the youngest request that is younger than itself.
The gateway begins another attempt of that one, which replays its emitted tokens, so none is lost. The oldest request is
never preempted, so at least one always moves on. Drafts get pages that no request needs, and give them back first.
Where layers have windows, a request gives the pages behind them back."""

from collections.abc import Iterable, Mapping

from decode_svc.request.requests import DecodeHost, DecodePhase, DecodeRequest
from engine.pool.horizon import GONE, Horizon, held
from engine.pool.pages import PagePool
from mesh.messages.hashing import block_hashes
from mesh.messages.jobs import Reason

Copies = list[tuple[int, int]]  # (shared page, own copy), made at the start of the step


class Growth:
    def __init__(
        self,
        requests: Mapping[int, DecodeRequest],
        pages: PagePool,
        *,
        horizon: Horizon,
        numerics: str,
        host: DecodeHost,
    ) -> None:
        self._requests = requests
        self._pages = pages
        self._horizon, self._page_tokens = horizon, horizon.page_tokens
        self._numerics = numerics
        self._host = host

    def grow(self, request: DecodeRequest, slots: int, copies: Copies) -> bool:
        """Give the request pages for `slots` slots, and its own copies of the pages that it writes next if these are
        shared. False: no page is free, and the request waits."""
        bands = self._horizon.bands
        for _ in range(len(request.pages) // bands, self._horizon.stretches(slots)):
            taken = self._take(request, bands)
            if taken is None:
                return False
            request.pages.extend(taken)
        first = request.filled // self._page_tokens * bands
        for index in range(first, first + bands):
            if not self._pages.writable(request.pages[index]):
                taken = self._take(request, 1)
                if taken is None:
                    return False
                copies.append((request.pages[index], taken[0]))
                request.pages[index] = taken[0]
        return True

    def spare(self, request: DecodeRequest, slots: int) -> int:
        """Give the request free pages for up to `slots` slots, and return how many of these its pages cover. No request
        is preempted for them."""
        bands = self._horizon.bands
        for _ in range(len(request.pages) // bands, self._horizon.stretches(slots)):
            taken = self._pages.take(bands, request.job.salt)
            if taken is None:
                break
            request.pages.extend(taken)
        return min(slots, len(request.pages) // bands * self._page_tokens)

    def publish(self, request: DecodeRequest) -> range:
        """Let other requests find the full pages of accepted tokens; returns the indexes of their stretches."""
        full = request.filled // self._page_tokens
        known = len(request.hashes)
        size = self._page_tokens
        if full > known:
            tokens, salt = request.tokens[: full * size], request.job.cache_salt
            request.hashes = block_hashes(
                tokens, page_tokens=size, numerics=self._numerics, salt=salt, known=request.hashes
            )
            bands = self._horizon.bands
            for index in range(known * bands, full * bands):
                if request.pages[index] != GONE:
                    self._pages.publish(request.pages[index], request.hashes[index // bands], index % bands)
        return range(known, full)

    def behind(self, request: DecodeRequest) -> tuple[int, ...]:
        """Take the pages out of the request that no later row reads. The caller releases them."""
        first = self._horizon.first_page(request.filled)
        if first <= request.gone:
            return ()
        indexes = self._horizon.behind(request.gone, first)
        back = held([request.pages[index] for index in indexes])
        for index in indexes:
            request.pages[index] = GONE
        request.gone = first
        return back

    def _take(self, request: DecodeRequest, count: int) -> tuple[int, ...] | None:
        """Pages for the request, all at once; younger ones may have to give way for them. None: the request waits."""
        while (taken := self._pages.take(count, request.job.salt)) is None:
            if self._reclaim():
                continue
            younger = victim(request, self._requests.values())
            if younger is None:
                self._host.starved(request)
                return None
            younger.preempted = True
            self._host.lost(younger, Reason.PREEMPTED)
            self._host.drop(younger)
        return taken

    def _reclaim(self) -> bool:
        """Take back the pages of one stretch that a running request holds for drafts only."""
        for request in self._requests.values():
            if request.phase is DecodePhase.RUNNING and len(request.pages) > self._horizon.whole(len(request.tokens)):
                self._pages.release(request.pages[-self._horizon.bands :])
                del request.pages[-self._horizon.bands :]
                return True
        return False


def victim(request: DecodeRequest, requests: Iterable[DecodeRequest]) -> DecodeRequest | None:
    """Rule [preempt]: the youngest running request gives way, and only to an older one. So the oldest always gets its
    page, and requests never wait for each other in a circle."""
    younger = [r for r in requests if r.phase is DecodePhase.RUNNING and r.seniority > request.seniority]
    return max(younger, key=lambda r: r.seniority, default=None)
