"""A gateway asks workers who holds their pages, for `/debug/pages`, the operators' gRPC call and `baton pages`.

Each query goes to one worker over its Attach stream and waits for the report with its number. A worker that does not
answer in time is shown without pages: it hangs, or it is older than this message."""

import asyncio
import itertools
from collections.abc import Iterable

from gateway.workers.attached import AttachedWorker
from mesh.messages.orders import PageQuery
from mesh.messages.reports import PageReport

ANSWER_SECONDS = 2.0  # in which a worker answers
MOST_VIEWS = 4  # that are made at the same time; further ones wait
NUMBERS = 1 << 32


class PageQueries:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[int, int], asyncio.Future[PageReport]] = {}  # by incarnation and number
        self._views = asyncio.Semaphore(MOST_VIEWS)

    async def ask(
        self, workers: Iterable[AttachedWorker], first: int = 0, count: int = 0
    ) -> list[tuple[AttachedWorker, PageReport | None]]:
        """The report of each worker, with the pages from `first` on one by one; None: it has not answered."""
        asked = list(workers)
        async with self._views:
            return list(
                zip(asked, await asyncio.gather(*(self._ask(each, first, count) for each in asked)), strict=True)
            )

    async def _ask(self, worker: AttachedWorker, first: int, count: int) -> PageReport | None:
        if not worker.hello.reports_pages:
            return None
        query = PageQuery(next(self._numbers) % NUMBERS, first, count)
        key = worker.incarnation, query.number
        answer: asyncio.Future[PageReport] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        worker.send(query)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._waiting[key]

    def on_report(self, worker: AttachedWorker, report: PageReport) -> None:
        answer = self._waiting.get((worker.incarnation, report.number))
        if answer is not None and not answer.done():
            answer.set_result(report)


def alarms_of(workers: Iterable[AttachedWorker]) -> tuple[str, ...]:
    """A line about each of these workers whose pages are in a bad way, by what it measured last."""
    found = list[str]()
    for worker in workers:
        if stuck := int(worker.measures.get("stuck", 0)):
            found.append(
                f"{worker.name}: {stuck} pages stay quarantined: their writer gives no proof that its writes are over "
                "and is not killed; end that prefill process"
            )
        if broken := int(worker.measures.get("ledger_broken", 0)):
            times = "once" if broken == 1 else f"{broken} times"
            what = f"its pages did not add up {times} since it started"
            found.append(f"{worker.name}: {what}; its log names them, a restart frees them")
    return tuple(found)
