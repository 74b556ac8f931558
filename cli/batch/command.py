"""`baton batch run`: the requests of a file, in OpenAI's batch format, are asked at a mesh; the answers go into a file.

Exit status: 0 every request has an answer; 1 some failed, or the run ended early; 2 wrong usage or a wrong file; 130
after Ctrl-C."""

from pathlib import Path
from typing import Annotated

import typer

from cli.batch.mesh import DEFAULT_CONCURRENCY, DEFAULT_HTTP
from cli.batch.session import BatchOrder, BatchTotals, hold
from cli.errors import readable_errors
from cli.output import emit_json, fail, say
from gateway.batches.problems import BatchRefused
from gateway.batches.runner import PRIORITY, BatchTally

app = typer.Typer(
    no_args_is_help=True,
    help="Answer a file of requests in OpenAI's batch format.\n\nExample: baton batch run in.jsonl out.jsonl",
)
FAILED, USAGE, INTERRUPTED = 1, 2, 130


@app.callback()
def batch() -> None:
    """Answer a file of requests in OpenAI's batch format.

    Example: baton batch run in.jsonl out.jsonl
    """


@app.command()
def run(
    input: Annotated[Path, typer.Argument(metavar="IN", help="Requests, a JSON object on each line.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Answers, appended; a run goes on behind them.")],
    http: Annotated[
        str | None, typer.Option(help=f"HTTP address of a running mesh, or an URL; the default is {DEFAULT_HTTP}.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Start a mesh for this run: a model folder, ORG/NAME on the hub, or `built-in`."),
    ] = None,
    errors: Annotated[Path | None, typer.Option(help="File of the failed requests; by default they go to OUT.")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Requests under way; the default is {DEFAULT_CONCURRENCY}, with --model twice what decode takes.",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=-600, max=600, help=f"Of bodies without one; higher goes later. The default is {PRIORITY}."),
    ] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Tries of a request that finds no room or no server; without it no limit.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds after which a try counts as lost.")] = 3600.0,
    force: Annotated[bool, typer.Option("--force", help="Append to an OUT that was made from another IN.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the totals as one JSON object.")] = False,
) -> None:
    """Ask every request of IN and append every answer to OUT, both in OpenAI's batch format.

    The same command goes on where an earlier one ended, however that ended. docs/batch.md explains the files.

    Exit status: 0 every request has an answer; 1 some failed, or the run ended early; 2 wrong usage or a wrong file;
    130 after Ctrl-C.

    Example: baton batch run in.jsonl out.jsonl --http 127.0.0.1:8000

    Example: baton batch run in.jsonl out.jsonl --model ~/models/qwen2.5-0.5b --errors failed.jsonl
    """
    if http is not None and model is not None:
        fail("--http and --model exclude each other: --http asks a running mesh, --model starts one", status=USAGE)
    order = BatchOrder(
        input=input,
        output=output,
        errors=errors,
        http=http or DEFAULT_HTTP,
        model=model,
        concurrency=concurrency,
        priority=priority,
        tries=tries,
        timeout_seconds=timeout,
        force=force,
    )
    with readable_errors():
        try:
            totals = hold(order)
        except BatchRefused as refused:
            fail(str(refused), status=USAGE)
        except KeyboardInterrupt:  # while the files are checked
            fail("interrupted before the first request", status=INTERRUPTED)
    if json:
        emit_json(totals.as_json())
    raise SystemExit(_end(totals, order))


def _end(totals: BatchTotals, order: BatchOrder) -> int:
    """Say how the run ended; the exit status."""
    tally = totals.tally or BatchTally()
    if totals.tally is not None:
        again = f", {tally.again} tries repeated" if tally.again else ""
        say(f"{tally.answered} answered, {tally.failed} failed{again}, {totals.seconds:.1f} s")
    left = f"{totals.missing} of {totals.requests} requests have no outcome yet"
    if totals.problem:
        fail(f"{totals.problem}\n{left}", status=FAILED)
    files = f"{order.output}{f' and {order.errors}' if order.errors else ''}"
    if totals.missing:
        say(f"interrupted: {left}; {files} hold whole lines only. The same command goes on where this one ended.")
        return INTERRUPTED
    say(f"all {totals.requests} requests have their outcome in {files}")
    failed = tally.failed + totals.failed_before
    if failed:
        where = order.errors or order.output
        say(f"{where} says why {failed} failed; requests whose lines are removed there are asked again")
    return FAILED if failed else 0
