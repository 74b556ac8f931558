"""Refuses requests that would wait too long, before anything of them is computed.

Step 1 of a request's life. The wait is what stands before a request: prompt tokens that are queued at prefill against
the measured speed there, and requests that are ahead of it for a place at decode against the time between two places
that get free. Workers report both for all gateways. A request's own length does not count: so a mesh without a queue
serves every request, and in a full one long requests get in as often as short ones."""

from collections import Counter, deque
from collections.abc import Callable
from math import exp, inf

from gateway.core.interface import ChoiceRequest
from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.routing.worker_table import Group
from gateway.sequencing.deadlines import OTHERS_SHARE, SURE, Paces
from gateway.sequencing.ended_requests import LONGEST_WAIT_SECONDS, SHORTEST_WAIT_SECONDS, Tally
from gateway.sequencing.requests import StartLimit
from gateway.tracing.record import ERROR, RequestRecord
from gateway.workers.worker_figures import together_per_second, tokens_per_second
from mesh.errors import BatonError, DeadlineExceeded, Overloaded, Unavailable
from mesh.rules import RULES

QUEUE, DEADLINE, WAITING, NO_WORKER, DRAINING = "queue", "deadline", "max_waiting", "no_worker", "draining"
REFUSALS = QUEUE, DEADLINE, WAITING, NO_WORKER, DRAINING  # why requests are refused
DEMAND_SECONDS = 10.0  # time in which the count of those that came fades
UNDER_WAY = 256  # requests whose wait is compared with its estimate
LESSON, MOST_WRONG = 0.05, 3.0  # weight of one of them, and the largest factor that it teaches
LATE_TIMES = 2  # a request may wait for this multiple of `queue_seconds`, if the estimate was wrong


class AdmissionControl:
    def __init__(
        self,
        workers: Workers,
        tally: Tally,
        check_workers: Callable[[float, str | None], None],  # raises Unavailable where none has been there for a while
        *,
        local: Local,
        max_waiting: int,
        queue_seconds: float,  # 0: no request is refused for its wait
        paces: Paces | None = None,  # paces at which answers came that have ended
        priority_seconds: float = RULES.priority_seconds,
    ) -> None:
        self._workers = workers
        self._tally = tally
        self._check_workers = check_workers
        self._local = local
        self._max_waiting, self._queue_seconds = max_waiting, queue_seconds
        self._paces, self._priority_seconds = paces or Paces(), priority_seconds
        self.refusals = Counter[str](dict.fromkeys(REFUSALS, 0))
        self._demand, self._experience = _Demand(), _Experience(queue_seconds)

    def check(self, model: str | None, now: float, *, draining: bool, examined: bool = False) -> None:
        """Raise one of mesh.errors if a request cannot be accepted now. Without a model its wait is not considered.
        `examined`: only its prompt is computed."""
        self._check_mesh(None, now, draining=draining)
        waiting, most = self._tally.waiting, self._max_waiting
        if waiting >= most:
            what = (
                f"{waiting} choices wait for their first token already; the gateway takes at most {most} "
                "(max_waiting): try again later"
            )
            raise self._refused(WAITING, Unavailable(what, retry_after_seconds=self._tally.wait_seconds(now)))
        if model is not None and self._queue_seconds:
            wait = self.wait_seconds(model, examined=examined)
            if wait > self._queue_seconds:
                self._refuse(QUEUE, wait, f"a request may wait {self._queue_seconds:g} s (queue_seconds)", now)

    def accept(self, choice: ChoiceRequest, now: float, *, draining: bool) -> None:
        """Raise one of mesh.errors unless this choice may run. The first choice of a request decides for all of them:
        the others take turns behind it (gateway/sequencing/lines.py), and find a queue that their own request has
        made."""
        examined = choice.examination is not None
        if choice.trace.choices:
            return self._check_mesh(choice.model, now, draining=draining)
        self.check(choice.model, now, draining=draining, examined=examined)
        self._attached(now, choice.model)
        if not self._queue_seconds:
            return
        wait = self.wait_seconds(choice.model, examined=examined)
        if choice.deadline_seconds is not None:
            self._check_deadline(choice, choice.deadline_seconds, wait, now)
        self._demand.admitted(now)
        self._experience.begins(choice, self._estimate(choice.model, examined=examined))

    def _check_deadline(self, choice: ChoiceRequest, left: float, wait: float, now: float) -> None:
        """Refuse a request that cannot meet its deadline, for what keeps it from that: itself, or those before it."""
        own = self._own_seconds(choice, now)
        if left <= 0:
            raise self._refused(DEADLINE, DeadlineExceeded("the request's deadline passed before it was read"))
        if own > left or (wait + own > left and wait < OTHERS_SHARE * left):
            parts = "prompts and answers" if choice.beside_tokens else "prompt and answer"
            what = f"{parts} of this request take at least {own:.1f} s, and {left:.2g} s are left until its deadline"
            raise self._refused(DEADLINE, DeadlineExceeded(f"{what}: allow more time"))
        if wait + own > left:
            what, limit = "the requests before this one, and its own tokens,", f"its deadline is in {left:.3g} s"
            self._refuse(DEADLINE, wait + own, limit, now, what=what)

    def start_limit(self, choice: ChoiceRequest, now: float) -> StartLimit | None:
        """Time after which a worker gives a choice back of which nothing is computed: the estimate at the door was
        wrong, or what is left until its deadline is too short by then. Its priority may make it wait for younger ones.
        None: it waits, as do all choices of a request but the first: they may wait for each other."""
        if not self._queue_seconds or choice.emitted or len(choice.trace.choices) > 1:
            return None
        limit = LATE_TIMES * self._queue_seconds + max(0, choice.priority) * self._priority_seconds
        if choice.deadline_seconds is None:
            return StartLimit(limit, of_queue=True)
        spare = choice.deadline_seconds - self._own_seconds(choice, now)
        return StartLimit(max(0.0, min(limit, spare)), of_queue=limit <= spare)

    def _own_seconds(self, choice: ChoiceRequest, now: float) -> float:
        """The time for its own prompts and one answer, at least: with the most that a prefix cache has of its prompt,
        and as much of the others, at the workers' speed, and with no more tokens than it must have."""
        table = self._workers.table(choice.model)
        cached = max(
            (each.tokens for each in table.leading(choice.prompt, choice.cache_salt, choice.hashes)), default=0
        )
        workers = [worker for group in (*table.prefills, *table.decodes) for worker in group.workers]
        lacking = max(0, len(choice.prompt) - cached)
        seconds = lacking / max(map(tokens_per_second, workers), default=inf)
        if choice.beside_tokens:
            others = choice.beside_tokens * lacking / len(choice.prompt)
            seconds = max(seconds, (lacking + others) / together_per_second(workers))
        return SURE * seconds + self._paces.answer_seconds(choice, now)

    def wait_seconds(self, model: str, *, examined: bool = False) -> float:
        """How long a request that came now would wait until something of it is computed."""
        return self._experience.factor * self._estimate(model, examined=examined)

    def _estimate(self, model: str, *, examined: bool) -> float:
        """The wait on the shortest route, by the reports of workers. The estimate looks at groups of workers, and at
        the workers of a group only after a report of one of them."""
        table = self._workers.table(model)
        prefills = [group.shortest.prompt for group in table.prefills if group.usable]
        if examined and prefills:
            return min(prefills)
        waits = [self._shortest(group, examined=examined) for group in table.decodes if group.usable]
        wait = min(waits, default=0.0)
        return 0.0 if wait == inf else wait  # a worker is missing: the request waits for it, not behind others

    def _shortest(self, decode: Group, *, examined: bool) -> float:
        """The shortest wait on a route to one of these decode workers."""
        own = decode.shortest
        prompt = min((prefill.shortest.prompt for prefill in decode.partners), default=inf)
        if self._local is Local.ALWAYS or (prompt == inf and self._local is not Local.NEVER):
            return own.prompt if examined else own.both
        wait = prompt if examined else max(prompt, own.place)
        if self._local is Local.AUTO:  # some take prompts from prefill workers with queues
            wait = min(wait, own.beside_prompt if examined else own.beside_both)
        return wait

    def _check_mesh(self, model: str | None, now: float, *, draining: bool) -> None:
        if draining:
            what = "this gateway shuts down and takes no new requests; call another one, or try again later"
            raise self._refused(DRAINING, Unavailable(what))
        self._attached(now, model)

    def _attached(self, now: float, model: str | None) -> None:
        try:
            self._check_workers(now, model)
        except Unavailable as error:
            raise self._refused(NO_WORKER, error) from None

    def _refuse(
        self, why: str, wait: float, limit: str, now: float, what: str = "the requests before this one"
    ) -> None:
        self._demand.refused(now)
        retry = min(max(wait / 2 * self._demand.rate, SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)
        said = f"{what} take about {wait:.1f} s, and {limit}; try again in {retry:.1f} s"
        raise self._refused(why, Overloaded(said, wait_seconds=wait, retry_after_seconds=retry))

    def _refused(self, why: str, error: BatonError) -> BatonError:
        self.refusals[why] += 1
        return error


class _Experience:
    """Factor by which requests have waited longer than estimated: the reports leave out pauses between two tries
    for pages, the time of landings, and other programs on the cores."""

    def __init__(self, queue_seconds: float) -> None:
        self.factor = 1.0
        self._least = queue_seconds / 4  # below the limit over MOST_WRONG; a shorter estimate teaches nothing
        self._under_way = deque[tuple[RequestRecord, float]](maxlen=UNDER_WAY)

    def begins(self, choice: ChoiceRequest, estimate: float) -> None:
        """This choice is let in; those before it that have their first token by now have taught their lesson."""
        left = [each for each in self._under_way if not self._learns(*each)]
        self._under_way.clear()
        self._under_way.extend(left)
        if self._least and estimate >= self._least and choice.examination is None:
            self._under_way.append((choice.trace, estimate))

    def _learns(self, trace: RequestRecord, estimate: float) -> bool:
        """True: there is no more to learn from this request."""
        choice = next(iter(trace.choices), None)
        if choice is None:
            return trace.end_seconds is not None
        first = choice.first_token_seconds
        if first is None and choice.finish == ERROR:
            first = choice.ended_seconds  # a worker gave it back
        if first is not None:
            ratio = (first - choice.accepted_seconds) / estimate
            self.factor += LESSON * (min(max(ratio, 1 / MOST_WRONG), MOST_WRONG) - self.factor)
            return True
        return choice.ended_seconds is not None


class _Demand:
    """How many requests come for each that is admitted, in the last seconds. Those that are refused come again, so the
    more there are, the later each should."""

    def __init__(self) -> None:
        self._came = self._admitted = self._seconds = 0.0

    @property
    def rate(self) -> float:
        return self._came / max(1.0, self._admitted)

    def admitted(self, now: float) -> None:
        self._fade(now)
        self._came, self._admitted = self._came + 1, self._admitted + 1

    def refused(self, now: float) -> None:
        self._fade(now)
        self._came += 1

    def _fade(self, now: float) -> None:
        left = exp((self._seconds - now) / DEMAND_SECONDS)
        self._came, self._admitted, self._seconds = self._came * left, self._admitted * left, now
