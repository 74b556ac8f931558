"""Isolation: a step that fails ends only the request that makes it fail, and the others go on with the same bits.

It stands between a worker's loop and its runner. When a step raises an exception, its pieces are computed again in
halves, down to the piece that fails alone. A row's bits do not depend on what else is in the batch, and a row that is
written twice is written with the same bits, so the innocent pieces lose time and nothing else. A worker that can
compute no piece at all first tries one token in pages of its own: if that fails too, the fault is the worker's, and
it ends with the exception, so that gateways continue its requests elsewhere."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from engine.pool.pages import PagePool
from engine.step.plan import Piece, Plan, Result, RowsReport, Runner, Sampled
from mesh.messages.jobs import Sampling

log = logging.getLogger("baton.engine")

OnPlanLayers = Callable[
    [Plan, int, int], None
]  # (plan, first layer, layers): these layers of its rows are in the pages
Halves = dict[int, tuple[Piece, Result, int]]  # by key: the piece, the result that has it, its place there

OVERFLOW = "the model's numbers overflow on this text (a logprob is NaN): are the weights of model and adapter sound?"
PROBE_KEY = -(2**62)  # no request has it


class Isolation:
    def __init__(self, runner: Runner, pages: PagePool) -> None:
        self._runner, self._pages = runner, pages
        self._before: tuple[Plan, Result] | None = None  # the last step
        self.repaired = (
            False  # the last step was computed again: one launched behind it followed tokens that it never had
        )
        self._failed = 0  # pieces that failed alone, since the start

    async def run(self, plan: Plan, on_layers: OnPlanLayers) -> Result:
        """Compute a plan; `on_layers` learns of every layer that was written, for innocent pieces perhaps twice."""
        return await self.result(plan, self._runner.run(plan, partial(on_layers, plan)), on_layers)

    async def result(self, plan: Plan, first: Awaitable[Result], on_layers: OnPlanLayers | None = None) -> Result:
        """The result of a plan that the runner has already. Plans come in the order in which the runner got them."""
        stale = self.repaired and any(piece.follows for piece in plan.pieces)
        self.repaired = False
        error: Exception | None = None
        try:
            result = await first
        except Exception as raised:
            error = raised
        if error is not None or stale:
            # A stale step was launched behind one that failed, so it followed tokens that were never sampled.
            result = await self._compute_again(plan, None if stale else error, on_layers)
        self._before = plan, result
        return self._checked(plan, result)

    def counts(self) -> dict[str, int]:
        """Since the start: requests that ended because a step with them alone failed."""
        return {"failed": self._failed}

    def _checked(self, plan: Plan, result: Result) -> Result:
        """The result with a fault for each piece whose numbers have overflowed. Drafts behind the first row are checked
        by who accepts them: a wrong draft may overflow where the text does not."""
        sound = [not rows or rows[0].is_number for rows in result.sampled]
        if result.reports:
            known = [report is None or report.is_number for report in result.reports]
            sound = [row and report for row, report in zip(sound, known, strict=True)]
        if all(sound):
            return result
        self._failed += sound.count(False)
        log.error("step %d: %s", plan.step, OVERFLOW)
        outcomes = zip(result.outcomes(plan), sound, strict=True)
        faults = tuple(fault or ("" if each else OVERFLOW) for (_, _, fault), each in outcomes)
        sampled = tuple(rows if each else () for rows, each in zip(result.sampled, sound, strict=True))
        return replace(result, sampled=sampled, faults=faults)

    async def _compute_again(self, plan: Plan, error: Exception | None, on_layers: OnPlanLayers | None) -> Result:
        """`error`: the whole plan fails with it; None: that is not known."""
        self.repaired = True
        pieces = [named for piece in plan.pieces if (named := self._named(piece)) is not None]
        halves, faults = Halves(), dict[int, Exception]()
        if pieces:
            await self._divide(replace(plan, pieces=tuple(pieces)), error, on_layers, halves, faults)
        if faults and not halves:
            await self._prove_itself(next(iter(faults.values())), alone=len(faults) == 1)
        for key, fault in faults.items():
            log.error("piece %d of step %d fails alone: its request ends", key, plan.step, exc_info=fault)
        self._failed += len(faults)
        return _joined(
            plan, halves, {key: f"a step with it alone failed: {type(e).__name__}" for key, e in faults.items()}
        )

    async def _divide(
        self,
        plan: Plan,
        error: Exception | None,
        on_layers: OnPlanLayers | None,
        halves: Halves,
        faults: dict[int, Exception],
    ) -> None:
        """Compute the plan, in halves where it fails; results and exceptions go into `halves` and `faults`."""
        if error is None:
            try:
                result = await self._runner.run(plan, partial(on_layers, plan) if on_layers is not None else None)
            except Exception as raised:
                error = raised
            else:
                halves.update({piece.key: (piece, result, place) for place, piece in enumerate(plan.pieces)})
                return
        if len(plan.pieces) == 1:
            faults[plan.pieces[0].key] = error
            return
        middle = len(plan.pieces) // 2
        for half in (plan.pieces[:middle], plan.pieces[middle:]):
            await self._divide(_part(plan, half), None, on_layers, halves, faults)

    async def _prove_itself(self, error: Exception, *, alone: bool) -> None:
        """Raise the exception unless this worker can still compute anything: one token in pages of its own. `alone`:
        one piece has failed; without pages it gets the blame, and of several pieces not all can be to blame."""
        pages = self._pages.take(self._pages.bands.count, salt=b"")
        if pages is None:
            if alone:
                return
            raise error
        try:
            await self._runner.run(Plan(0, (Piece(PROBE_KEY, (0,), 0, pages, 1, 0, Sampling()),)))
        except Exception:
            log.critical("this worker can compute nothing any more: it ends, and its requests go on elsewhere")
            raise error from None
        finally:
            self._pages.release(pages)

    def _named(self, piece: Piece) -> Piece | None:
        """The piece with the token that it follows; None: the step before has not sampled one, its request is over."""
        if not piece.follows:
            return piece
        plan, result = self._before or (Plan(0, ()), Result(()))
        drawn = next((s for p, s in zip(plan.pieces, result.sampled, strict=True) if p.key == piece.key), ())
        return replace(piece, tokens=(drawn[0].token,), follows=False) if len(drawn) == 1 else None


def _part(plan: Plan, pieces: Sequence[Piece]) -> Plan:
    """A part of a plan, with the copies of its own pages: a copy that is made again must not undo a row that the other
    part has written."""
    own = {page for piece in pieces for page in piece.pages}
    return Plan(plan.step, tuple(pieces), tuple(copy for copy in plan.copies if copy[1] in own))


def _joined(plan: Plan, halves: Halves, faults: dict[int, str]) -> Result:
    """One result for the whole plan, made of the results of its parts. Pieces without a result have sampled nothing."""
    results = [result for _, result, _ in halves.values()]
    sampled, proposed, reports = list[tuple[Sampled, ...]](), list[tuple[int, ...]](), list[RowsReport | None]()
    for piece in plan.pieces:
        _, result, place = halves.get(piece.key, (piece, Result(((),)), 0))
        sampled.append(result.sampled[place])
        proposed.append(result.proposed[place] if result.proposed else ())
        reports.append(result.reports[place] if result.reports else None)
    return Result(
        tuple(sampled),
        tuple(proposed) if any(result.proposed for result in results) else (),
        max((result.done_seconds for result in results), default=0.0),
        tuple(reports) if any(result.reports for result in results) else (),
        tuple(faults.get(piece.key, "") for piece in plan.pieces),
    )
