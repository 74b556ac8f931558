"""Measures one worker's speed before the load begins: a short and a long prompt alone, then eight answers at once.

The estimate of a split into tiers needs these figures (cli/load/verdict.py). Requests of the probe are not counted."""

import asyncio
from statistics import median

from cli.load.calibration import Ask
from cli.load.estimate import ServiceSpeeds
from cli.load.form import RequestForm
from cli.load.plan import LoadError, LoadRequest
from cli.load.record import MeasuredRequest

SHORT_TOKENS, ANSWER_TOKENS, TOGETHER = 16, 32, 8
LONG_TOKENS = 512  # at least, where the context has room: shorter prompts drown in noise
TIMES = 3  # each prompt; the fastest counts, since only others' work makes it slower


async def warm_up(form: RequestForm, request: LoadRequest, ask: Ask) -> None:
    """One request like those of the run; LoadError if it fails."""
    _checked(await ask(form, LoadRequest(request.input_tokens, min(request.output_tokens, ANSWER_TOKENS))))


async def measure_speeds(
    form: RequestForm, ask: Ask, *, prompt_tokens: int, context_tokens: int | None
) -> ServiceSpeeds:
    """`prompt_tokens`: the length of this load's ordinary prompt."""
    room = LONG_TOKENS if context_tokens is None else context_tokens - 2
    long_tokens = max(2 * SHORT_TOKENS, prompt_tokens, min(LONG_TOKENS, room))
    short = [_checked(await ask(form, LoadRequest(SHORT_TOKENS, ANSWER_TOKENS))) for _ in range(TIMES)]
    long = [_checked(await ask(form, LoadRequest(long_tokens, 1))) for _ in range(TIMES)]
    together = await asyncio.gather(*(ask(form, LoadRequest(SHORT_TOKENS, ANSWER_TOKENS)) for _ in range(TOGETHER)))
    return speeds_of(
        first_short=min(_first(record) for record in short),
        first_long=min(_first(record) for record in long),
        long_tokens=long_tokens,
        step_alone=median(_step(record) for record in short),
        step_together=median(_step(_checked(record)) for record in together),
    )


def speeds_of(
    *, first_short: float, first_long: float, long_tokens: int, step_alone: float, step_together: float
) -> ServiceSpeeds:
    """Speeds from times to the first token of two lengths, and from decode steps of one and of TOGETHER answers.

    Where noise makes the long prompt no slower than the short one, its whole time counts as prefill."""
    slower = first_long > first_short
    per_token = (first_long - first_short) / (long_tokens - SHORT_TOKENS) if slower else first_long / long_tokens
    return ServiceSpeeds(
        prefill_tokens_per_second=1 / max(per_token, 1e-9),
        step_seconds=max(step_alone, 1e-6),
        row_seconds=max(0.0, (step_together - step_alone) / (TOGETHER - 1)),
        prompt_seconds=max(0.0, first_short - SHORT_TOKENS * per_token) if slower else 0.0,
    )


def _first(record: MeasuredRequest) -> float:
    assert record.ttft is not None
    return record.ttft


def _step(record: MeasuredRequest) -> float:
    """Seconds per token of one answer; from its chunks where the server counts no tokens."""
    if record.tpot is not None:
        return record.tpot
    return median(record.gaps) if record.gaps else 0.0


def _checked(record: MeasuredRequest) -> MeasuredRequest:
    if record.error:
        raise LoadError(f"a request before the load fails: {record.why}")
    return record
