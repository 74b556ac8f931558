"""The run: a number of requests under way at any time, each tried until it has an outcome, which goes into the ledger.

The runner knows neither files nor HTTP nor terminals: it takes requests from an iterator, asks through `Asker`, and
shows its progress to `BatchObserver`. A request that is cancelled leaves nothing behind."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from gateway.batches.lines import BatchLine
from gateway.batches.outcome import BatchAnswer, BatchOutcome, NoAnswer, tokens_of
from gateway.batches.problems import BatchStopped
from gateway.batches.retrying import HOPELESS, LATER, RetryRule

PRIORITY = 300  # seconds by which a request counts as younger than those of people who wait


class Asker(Protocol):
    async def ask(self, url: str, body: bytes) -> BatchAnswer:
        """One try. NoAnswer if none comes, BatchStopped if none will ever come."""


class OutcomeSink(Protocol):
    def write(self, outcome: BatchOutcome) -> None: ...


@dataclass(slots=True)
class BatchTally:
    """Counts of this run."""

    answered: int = 0
    failed: int = 0
    again: int = 0  # tries behind the first ones
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def count(self, outcome: BatchOutcome) -> None:
        self.failed += outcome.failed
        self.answered += not outcome.failed
        prompt, completion = tokens_of(outcome.answer)
        self.prompt_tokens += prompt
        self.completion_tokens += completion


class BatchObserver(Protocol):
    def settled(self, tally: BatchTally) -> None:
        """A request has its outcome."""

    def waits(self, tally: BatchTally, why: str) -> None:
        """A request will be tried again."""


class BatchRunner:
    def __init__(
        self,
        asker: Asker,
        sink: OutcomeSink,
        observer: BatchObserver,
        *,
        rule: RetryRule,
        random: Random,
        priority: int = PRIORITY,
        drops_priority: bool = False,
        threaded: bool = False,
    ) -> None:
        """`priority`: goes into bodies without one. `drops_priority`: it is left out once the server refuses it.
        `threaded`: a thread reads the requests, so that a long file does not hold up what else runs in the loop."""
        self.tally = BatchTally()
        self._asker, self._sink, self._observer = asker, sink, observer
        self._rule, self._random = rule, random
        self._priority: int | None = priority
        self._drops_priority = drops_priority
        self._threaded, self._reading = threaded, asyncio.Lock()

    async def run(self, lines: Iterator[BatchLine], concurrency: int) -> None:
        """Settle every request. BatchStopped ends all that is under way."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._work(lines))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None

    async def _work(self, lines: Iterator[BatchLine]) -> None:
        while (line := await self._next(lines)) is not None:
            outcome = await self._settle(line)
            self._sink.write(outcome)
            self.tally.count(outcome)
            self._observer.settled(self.tally)

    async def _next(self, lines: Iterator[BatchLine]) -> BatchLine | None:
        if not self._threaded:
            return next(lines, None)
        async with self._reading:
            return await asyncio.to_thread(next, lines, None)

    async def _settle(self, line: BatchLine) -> BatchOutcome:
        tried = 0
        while True:
            tried += 1
            outcome = await self._try(line)
            why = _later(outcome)
            if why is None or not self._rule.may_again(tried):
                return outcome
            self.tally.again += 1
            self._observer.waits(self.tally, why)
            asked = outcome.answer.retry_after_seconds if outcome.answer is not None else 0.0
            await asyncio.sleep(self._rule.pause_seconds(tried, asked, self._random))

    async def _try(self, line: BatchLine) -> BatchOutcome:
        while True:
            added = None if line.body.get("priority") is not None else self._priority
            body = line.body if added is None else line.body | {"priority": added}
            try:
                answer = await self._asker.ask(line.url, _encoded(body))
            except NoAnswer as error:
                return BatchOutcome(line.custom_id, None, error)
            if answer.status in HOPELESS:
                raise BatchStopped(f"the server refuses the run with status {answer.status}: {_message(answer)}")
            if added is None or not self._drops_priority or not _refuses_priority(answer):
                return BatchOutcome(line.custom_id, answer)
            self._priority = None


def _encoded(body: dict[str, Any]) -> bytes:
    """The body as JSON, about as long as in its line: limits hold for these bytes."""
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can spell
        return json.dumps(body).encode()


def _later(outcome: BatchOutcome) -> str | None:
    """Why another try may bring an answer; None: this outcome is final."""
    if outcome.answer is None:
        assert outcome.error is not None, "an outcome has an answer or an error"
        return None if outcome.error.final else outcome.error.message
    return f"HTTP {outcome.answer.status}" if outcome.answer.status in LATER else None


def _refuses_priority(answer: BatchAnswer) -> bool:
    """Whether the key's row in the keys file leaves no room for the priority that the run adds."""
    return answer.status == 400 and _error(answer).get("param") == "priority"


def _message(answer: BatchAnswer) -> str:
    return str(_error(answer).get("message") or "it gives no reason")[:200]


def _error(answer: BatchAnswer) -> dict[str, Any]:
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    return error if isinstance(error, dict) else {}


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group: the others are what it caused, or the same once more."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
