"""One measurement from the first look at a server to the report: look, find the form of requests, warm up, measure the
server's speeds, send the load, judge.

Ctrl-C and SIGTERM end it early; what had ended until then is reported."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.connecting.answer_text import printable
from cli.connecting.http_url import HttpUrl
from cli.load.calibration import find_form
from cli.load.estimate import ServiceSpeeds
from cli.load.form import Endpoint, RequestForm
from cli.load.options import LoadOptions
from cli.load.plan import LoadRequest, capped
from cli.load.probe import measure_speeds, warm_up
from cli.load.record import MeasuredRequest
from cli.load.report import LoadReport, examples_of, usage_notes
from cli.load.run import LoadRun, lateness
from cli.load.server_facts import ServerFacts, look_at
from cli.load.statistics import LatencyLimits, summarize
from cli.load.target import LoadTarget
from cli.load.verdict import Assumptions, Verdict, judge_split
from cli.output import err

DEFAULT_WORKERS = 2  # in the estimate, where the server does not tell how many it has


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """The whole order of one run, checked."""

    options: LoadOptions
    url: HttpUrl
    endpoint: Endpoint
    model: str | None
    api_key: str
    limits: LatencyLimits
    speeds: ServiceSpeeds | None
    workers: int | None
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    report: LoadReport
    records: list[MeasuredRequest]


async def measure(order: LoadOrder, show: Callable[[str], None]) -> LoadResult | None:
    """The whole run; None when Ctrl-C comes before its first request."""
    requests = order.options.plan()
    headers = {"Authorization": f"Bearer {order.api_key}"} if order.api_key else {}
    target = LoadTarget(order.url, headers=headers, timeout_seconds=order.timeout_seconds)
    try:
        with _interruptible() as first:
            try:
                facts, form, fitting, notes, speeds = await _prepare(order, target, requests, show)
            except asyncio.CancelledError:
                if not first.is_set():
                    raise
                return None
            run = LoadRun(target, form, fitting)
            interrupted = False
            try:
                await _send_all(run, fitting, order.options.clients())
            except asyncio.CancelledError:
                if not first.is_set():
                    raise
                interrupted = True
    finally:
        target.close()
    if not run.records:
        return None
    return LoadResult(_report(order, facts, run, fitting, notes, speeds, interrupted), run.records)


async def _prepare(
    order: LoadOrder, target: LoadTarget, requests: Sequence[LoadRequest], show: Callable[[str], None]
) -> tuple[ServerFacts, RequestForm, list[LoadRequest], list[str], ServiceSpeeds]:
    """Everything before the load: look, find the form of requests, shorten what does not fit, warm up, measure."""
    numbers = count(-1, -1)  # so that no prompt of the preparation is one of the load

    async def ask(form: RequestForm, request: LoadRequest) -> MeasuredRequest:
        now = asyncio.get_running_loop().time()
        number = next(numbers)
        record = MeasuredRequest(number, now, now, request.input_tokens, request.output_tokens)
        await target.perform(form.path, form.body(number, request), record)
        return record

    show(f"looking at {order.url}")
    facts = await look_at(target, order.model)
    form, form_notes = await find_form(target, facts, order.endpoint, seed=order.options.seed, ask=ask)
    fitting, shortened = capped(requests, facts.context_tokens)
    notes = [*facts.notes, *form_notes]
    if shortened:
        context = facts.context_tokens
        notes.append(
            f"{shortened} of {len(requests)} requests are shortened to the model's context of {context} tokens."
        )
    ordinary = int(median(each.input_tokens for each in fitting))
    show(f"warming up {printable(facts.model)}")
    await warm_up(form, LoadRequest(ordinary, int(median(each.output_tokens for each in fitting))), ask)
    speeds = order.speeds
    if speeds is None:
        show("measuring prefill and decode alone, for the estimate of a split")
        speeds = await measure_speeds(form, ask, prompt_tokens=ordinary, context_tokens=facts.context_tokens)
    return facts, form, fitting, notes, speeds


async def _send_all(run: LoadRun, requests: Sequence[LoadRequest], clients: int | None) -> None:
    """The load itself, with a progress bar."""
    times = None if clients is not None else [each.at_seconds or 0.0 for each in requests]
    sent = failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, refresh_per_second=4) as progress:
        task = progress.add_task("sending", total=len(requests))

        def on_sent(record: MeasuredRequest) -> None:
            nonlocal sent
            sent += 1
            progress.update(task, description=f"{sent} sent, {failed} failed")

        def on_ended(record: MeasuredRequest) -> None:
            nonlocal failed
            failed += bool(record.error)
            progress.update(task, advance=1, description=f"{sent} sent, {failed} failed")

        await run.run(times=times, concurrency=clients, on_sent=on_sent, on_ended=on_ended)


def _report(
    order: LoadOrder,
    facts: ServerFacts,
    run: LoadRun,
    requests: Sequence[LoadRequest],
    notes: list[str],
    speeds: ServiceSpeeds,
    interrupted: bool,
) -> LoadReport:
    summary = summarize(run.records, order.limits)
    of_mesh = sum(facts.workers) if facts.workers is not None else DEFAULT_WORKERS
    assumptions = Assumptions(speeds, order.workers or max(1, of_mesh))
    source = "given" if order.speeds is not None else "measured before the load"
    return LoadReport(
        url=str(order.url),
        model=printable(facts.model),
        endpoint=order.endpoint.value,
        load=order.options.words(),
        seed=order.options.seed,
        summary=summary,
        limits=order.limits,
        examples=examples_of(run.records),
        notes=(*notes, *usage_notes(run.records, shared_prefixes=any(each.blocks for each in requests))),
        late=tuple(lateness(summary, run.loop_delay_p99_seconds)),
        loop_delay_p99_seconds=run.loop_delay_p99_seconds,
        interrupted=interrupted,
        assumptions=assumptions,
        assumed_from=source,
        verdict=_verdict(run.records, requests, assumptions, order.limits),
    )


def _verdict(
    records: Sequence[MeasuredRequest], requests: Sequence[LoadRequest], assumed: Assumptions, limits: LatencyLimits
) -> Verdict:
    """Judged by the requests that were scheduled, at the times at which this run scheduled them."""
    begun = min(record.scheduled for record in records)
    scheduled = [replace(requests[record.number], at_seconds=record.scheduled - begun) for record in records]
    return judge_split(scheduled, assumed, limits)


@contextlib.contextmanager
def _interruptible() -> Iterator[asyncio.Event]:
    """Ctrl-C and SIGTERM set the event and cancel this task."""
    loop, task, seen = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None
    running = task

    def on_signal() -> None:
        seen.set()
        running.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield seen
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
