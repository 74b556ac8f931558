"""The choices of one client request stand in line, so that a request with many of them takes its turns as one.

Step 2 of a request's life. Workers serve in the order of age. If a client that sends 256 prompts gave them all to the
workers at once, everyone who comes later would wait for all of them. So the gateway gives workers a few choices of a
request at a time: as many as compute for WINDOW_SECONDS, at least AT_ONCE, and only while they leave others a part of
the places at decode. The next one follows when an earlier one has its first token or has ended. Choices behind the
first count as younger (`GatewayRequest.priority`), so a new request waits for the step that runs, and not for them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.routing.registry import Workers
from gateway.routing.worker_table import WorkerTable
from gateway.sequencing.requests import GatewayRequest
from gateway.tracing.record import RequestRecord
from gateway.workers.attached import AttachedWorker

WINDOW_SECONDS = 0.1  # for which prefill computes the prompts that one client request has at the workers
AT_ONCE = 2  # prompts that it has there in any case: one is computed while the other one gets its pages
SAME_PROMPT_TOKENS = 32  # cost of another choice of a prompt: it finds most of it in a prefix cache
KEPT_DIVISOR = 8  # the places at decode divided by this stay free for other clients


@dataclass(slots=True)
class Line:
    record: RequestRecord  # the client request's record; referred to here, so that its id is nobody else's
    prompt: tuple[int, ...]  # prompt of the choice that joined last
    working: set[int] = field(default_factory=set)  # ids of choices that workers have, or that wait for a worker
    prompts: dict[int, int] = field(default_factory=dict)  # prompt tokens of those without their first token
    waiting: deque[GatewayRequest] = field(default_factory=deque)
    costs: dict[int, int] = field(default_factory=dict)  # prompt tokens of those that wait
    advancing: bool = False  # a choice that fails at once ends while the line advances


class Lines:
    def __init__(self, workers: Workers, begin: Callable[[GatewayRequest], None]) -> None:
        """`begin` is called with a request when its turn has come."""
        self._workers, self._begin = workers, begin
        self._lines: dict[int, Line] = {}  # by the id of the client request's record
        self._overtaken: dict[int, tuple[AttachedWorker, int]] = {}  # prompts that workers have, by request

    def joins(self, request: GatewayRequest) -> None:
        """A choice was accepted: it begins now, or when its turn comes."""
        record, prompt = request.choice.trace, request.choice.prompt
        if (line := self._lines.get(id(record))) is None:
            self._lines[id(record)] = Line(record, prompt, {request.id}, {request.id: len(prompt)})
            return self._begin(request)
        line.costs[request.id] = SAME_PROMPT_TOKENS if prompt is line.prompt else len(prompt)
        line.prompt = prompt
        line.waiting.append(request)
        self._advance(line)

    def opened(self, request: GatewayRequest, worker: AttachedWorker, tokens: int) -> None:
        """This worker computes `tokens` tokens of the request's prompt, and those behind it that are not shown yet."""
        self._computed(request)
        if request.behind and request.first_token_seconds is None:
            worker.has_behind(tokens)
            self._overtaken[request.id] = worker, tokens

    def _computed(self, request: GatewayRequest) -> None:
        if (overtaken := self._overtaken.pop(request.id, None)) is not None:
            worker, tokens = overtaken
            worker.has_behind(-tokens)

    def started(self, request: GatewayRequest) -> None:
        """The request's first token came: its prompt is computed."""
        self._computed(request)
        if (line := self._lines.get(id(request.choice.trace))) is not None:
            line.prompts.pop(request.id, None)
            self._advance(line)

    def ended(self, request: GatewayRequest) -> None:
        self._computed(request)
        if (line := self._lines.get(id(request.choice.trace))) is None:
            return
        line.prompts.pop(request.id, None)
        line.working.discard(request.id)
        if line.costs.pop(request.id, None) is not None:
            line.waiting.remove(request)
        self._advance(line)
        if not line.working and not line.advancing:
            self._lines.pop(id(line.record), None)

    def on_room(self) -> None:
        """A worker attached or reported room."""
        for line in [each for each in self._lines.values() if each.waiting]:
            self._advance(line)

    def _advance(self, line: Line) -> None:
        if line.advancing:
            return
        line.advancing = True
        while line.waiting and self._may_begin(line, line.waiting[0]):
            request = line.waiting.popleft()
            line.prompts[request.id] = line.costs.pop(request.id)
            line.working.add(request.id)
            self._begin(request)
        line.advancing = False

    def _may_begin(self, line: Line, request: GatewayRequest) -> bool:
        if not line.working:
            return True
        table = self._workers.table(request.choice.model)
        if len(line.prompts) >= AT_ONCE and sum(line.prompts.values()) + line.costs[request.id] > window_tokens(table):
            return False
        return request.choice.examination is not None or leaves_places(table)


def window_tokens(table: WorkerTable) -> float:
    """Prompt tokens that the workers which compute prompts manage in WINDOW_SECONDS."""
    groups = table.prefills or table.decodes
    return WINDOW_SECONDS * sum(float((group.queue < float("inf")).dot(1 / group.token)) for group in groups)


def leaves_places(table: WorkerTable) -> bool:
    """Is a place at decode left for one more choice, besides those that are kept for other clients? Where no worker
    reports places, none is kept."""
    workers = [worker for group in table.decodes for worker in group.workers]
    if not any(worker.load.free_places or worker.load.place_seconds for worker in workers):
        return True
    places = sum(worker.load.running + worker.load.free_places for worker in workers)
    taken = ((worker.load.opened + worker.unreported_requests, worker.load.free_places) for worker in workers)
    return sum(max(0, free - soon) for soon, free in taken) > places // KEPT_DIVISOR
