"""A small queueing simulation: how a list of requests would fare on workers that do both phases, and on two tiers.

It is pure and deterministic. A worker runs steps one after the other. A step computes up to `chunk_tokens` of waiting
prompts, first come first served, and one token for each running answer; its time is the sum of both. A prompt's last
chunk yields the first token. Memory, batches of limited size, prefix caches and drafts are left out."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cli.load.plan import LoadRequest


@dataclass(frozen=True, slots=True)
class ServiceSpeeds:
    """The speed of one worker."""

    prefill_tokens_per_second: float
    step_seconds: float  # a decode step with one answer
    row_seconds: float = 0.0  # what each further answer adds to a step
    prompt_seconds: float = 0.0  # fixed part of each prompt

    def __post_init__(self) -> None:
        assert self.prefill_tokens_per_second > 0 and self.step_seconds > 0
        assert self.row_seconds >= 0 and self.prompt_seconds >= 0

    def prefill(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_per_second

    def step(self, rows: int) -> float:
        return self.step_seconds + (rows - 1) * self.row_seconds if rows else 0.0


@dataclass(slots=True)
class SimulatedRequest:
    """One request on its way through the simulated workers."""

    arrival: float
    prompt_left: int
    answer_left: int
    first: float = 0.0  # time of the first token
    last: float = 0.0  # time of the newest token
    gaps: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def tpot(self) -> float | None:
        return sum(self.gaps) / len(self.gaps) if self.gaps else None


@dataclass(frozen=True, slots=True)
class Simulated:
    requests: list[SimulatedRequest]
    seconds: float  # from the first arrival to the last token
    prefill_seconds: float  # work of all workers
    decode_seconds: float


def simulate_colocated(
    requests: Sequence[LoadRequest], speeds: ServiceSpeeds, *, workers: int, chunk_tokens: int
) -> Simulated:
    """Every worker does both phases; a request goes to the worker with the least work left."""
    pool = [_Worker(speeds, chunk_tokens) for _ in range(workers)]
    flights = _flights(requests)
    _serve(pool, ((flight.arrival, flight) for flight in flights))
    return _outcome(flights, pool)


def simulate_split(
    requests: Sequence[LoadRequest],
    speeds: ServiceSpeeds,
    *,
    prefill_workers: int,
    decode_workers: int,
    handoff_seconds: float,
) -> Simulated:
    """Prefill workers compute whole prompts and the first token, decode workers the rest of the answers."""
    prefill = [_Worker(speeds, None, whole_answers=False) for _ in range(prefill_workers)]
    decode = [_Worker(speeds, None) for _ in range(decode_workers)]
    flights = _flights(requests)
    _serve(prefill, ((flight.arrival, flight) for flight in flights))
    handed = sorted(((flight.first + handoff_seconds, flight) for flight in flights), key=lambda pair: pair[0])
    _serve(decode, ((at, flight) for at, flight in handed if flight.answer_left))
    return _outcome(flights, [*prefill, *decode])


def _flights(requests: Sequence[LoadRequest]) -> list[SimulatedRequest]:
    flights = [SimulatedRequest(each.at_seconds or 0.0, each.input_tokens, each.output_tokens) for each in requests]
    return sorted(flights, key=lambda flight: flight.arrival)


def _serve(workers: Sequence["_Worker"], arrivals: Iterable[tuple[float, SimulatedRequest]]) -> None:
    for at, flight in arrivals:
        for worker in workers:
            worker.run(until=at)
        min(workers, key=lambda worker: worker.work_left(at)).take(flight, at)
    for worker in workers:
        worker.run(until=float("inf"))


def _outcome(flights: list[SimulatedRequest], workers: Sequence["_Worker"]) -> Simulated:
    return Simulated(
        requests=flights,
        seconds=max((flight.last for flight in flights), default=0.0)
        - min((flight.arrival for flight in flights), default=0.0),
        prefill_seconds=sum(worker.prefill_seconds for worker in workers),
        decode_seconds=sum(worker.decode_seconds for worker in workers),
    )


class _Worker:
    def __init__(self, speeds: ServiceSpeeds, chunk_tokens: int | None, *, whole_answers: bool = True) -> None:
        """Without `chunk_tokens` a prompt is one step. Without `whole_answers` a request leaves after its first
        token."""
        self._speeds, self._chunk_tokens, self._whole_answers = speeds, chunk_tokens, whole_answers
        self._waiting: deque[SimulatedRequest] = deque()
        self._running: list[SimulatedRequest] = []
        self._clock = 0.0
        self.prefill_seconds = self.decode_seconds = 0.0

    def work_left(self, at: float) -> float:
        """Seconds to finish everything taken, if nothing else came; the step under way included."""
        prompts = sum(
            self._speeds.prefill(flight.prompt_left) + self._speeds.prompt_seconds for flight in self._waiting
        )
        rows = [*self._running, *(self._waiting if self._whole_answers else ())]
        answers = max((flight.answer_left for flight in rows), default=0) * self._speeds.step(len(rows))
        return max(0.0, self._clock - at) + prompts + answers

    def take(self, flight: SimulatedRequest, at: float) -> None:
        if not self._waiting and not self._running:
            self._clock = max(self._clock, at)
        if flight.prompt_left:
            self._waiting.append(flight)
        else:
            self._running.append(flight)

    def run(self, *, until: float) -> None:
        """All steps that begin before `until`."""
        while (self._waiting or self._running) and self._clock < until:
            self._step()

    def _step(self) -> None:
        prefill, begun = self._prefill()
        decode = self._speeds.step(len(self._running))
        self.prefill_seconds += prefill
        self.decode_seconds += decode
        self._clock += prefill + decode
        for flight in self._running:
            flight.gaps.append(self._clock - flight.last)
            flight.last = self._clock
            flight.answer_left -= 1
        for flight in begun:
            flight.first = flight.last = self._clock
            flight.answer_left -= 1
        running = [*self._running, *(begun if self._whole_answers else ())]
        self._running = [flight for flight in running if flight.answer_left]

    def _prefill(self) -> tuple[float, list[SimulatedRequest]]:
        """Seconds of this step's part of the prompts, and the requests whose prompts it completes."""
        seconds, begun = 0.0, list[SimulatedRequest]()
        room = self._waiting[0].prompt_left if self._waiting and self._chunk_tokens is None else self._chunk_tokens or 0
        while room and self._waiting:
            flight = self._waiting[0]
            part = min(room, flight.prompt_left)
            room -= part
            flight.prompt_left -= part
            seconds += self._speeds.prefill(part)
            if not flight.prompt_left:
                seconds += self._speeds.prompt_seconds
                begun.append(self._waiting.popleft())
        return seconds, begun
