"""`baton bench load`: plan, look at the server, warm up, measure, send the load, report.

Exit status: 0 every request got an answer; 1 some failed; 2 wrong usage, or a server that does not answer; 130 after
Ctrl-C, with the figures so far."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cli.connecting.http_url import parse_url
from cli.load.form import Endpoint
from cli.load.measure import LoadOrder, LoadResult, measure
from cli.load.options import LoadOptions, given_speeds
from cli.load.picture import draw_run
from cli.load.plan import LoadError
from cli.load.report import as_json, lines
from cli.load.shapes import ShapeName
from cli.load.statistics import LatencyLimits
from cli.output import emit_json, fail, say
from mesh.config.config_checks import ConfigError

app = typer.Typer(no_args_is_help=True, help="Measure servers.\n\nExample: baton bench load --shape short")

DEFAULT_URL = "http://127.0.0.1:8000/v1"
FAILED, USAGE, INTERRUPTED = 1, 2, 130


@app.callback()
def bench() -> None:
    """Measure servers.

    Example: baton bench load --shape short --url http://127.0.0.1:8000/v1
    """


@app.command()
def load(
    shape: Annotated[ShapeName | None, typer.Option(help="A ready-made load.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace file: Azure's CSV or Mooncake's JSON lines.")] = None,
    scale: Annotated[float | None, typer.Option(help="Send a trace so many times as fast; the default is 1.")] = None,
    url: Annotated[str, typer.Option(help="Base URL of an OpenAI API.")] = DEFAULT_URL,
    endpoint: Annotated[
        Endpoint, typer.Option(help="completions takes prompts as token ids; chat as a message.")
    ] = Endpoint.COMPLETIONS,
    model: Annotated[str | None, typer.Option(help="Name of the model; the default is the server's first.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Number of requests; of a trace, the first ones.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second, at random times.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Closed loop: requests under way.")] = None,
    ttft_ms: Annotated[float | None, typer.Option(min=0, help="Limit for goodput: time to first token.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(min=0, help="Limit for goodput: time per output token.")] = None,
    itl_ms: Annotated[float | None, typer.Option(min=0, help="Limit for goodput: a request's p99 of gaps.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of lengths, prompts and times.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds after which a request has failed.")] = 600.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Estimate of a split: workers; the default is the mesh's, else 2.")
    ] = None,
    prefill_speed: Annotated[
        float | None, typer.Option(help="Estimate of a split: prompt tokens per second of one worker, not measured.")
    ] = None,
    decode_step_ms: Annotated[
        float | None, typer.Option(help="Estimate of a split: decode step of one worker, not measured.")
    ] = None,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = "",
    picture: Annotated[Path | None, typer.Option(help="Write a picture of the run to this SVG file.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what the estimate of a split assumes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Send requests to any OpenAI API and measure latencies and goodput.

    It also estimates whether a split into prefill and decode workers is worth it for this load. docs/bench.md explains
    every figure.

    Exit status: 0 every request got an answer; 1 some failed; 2 wrong usage or no server; 130 after Ctrl-C.

    Example: baton bench load --shape medium --ttft-ms 500 --itl-ms 50 --picture run.svg

    Example: baton bench load --trace mooncake_conversation.jsonl --scale 0.1 --requests 200
    """
    try:
        order = LoadOrder(
            options=LoadOptions(shape, trace, scale, requests, rate, concurrency, seed),
            url=parse_url(url),
            endpoint=endpoint,
            model=model,
            api_key=_header_value(api_key),
            limits=LatencyLimits(_seconds(ttft_ms), _seconds(tpot_ms), _seconds(itl_ms)),
            speeds=given_speeds(prefill_speed, decode_step_ms),
            workers=workers,
            timeout_seconds=timeout,
        )
        if picture is not None and not picture.absolute().parent.is_dir():
            raise LoadError(f"--picture {picture}: there is no folder {picture.absolute().parent}")
        result = asyncio.run(measure(order, show=lambda text: say(text, style="dim")))
    except (ConfigError, LoadError) as error:
        fail(str(error), status=USAGE)
    if result is None:
        fail("interrupted before the first request", status=INTERRUPTED)
    report = result.report
    if picture is not None:
        _write_picture(picture, result)
    if json:
        emit_json(as_json(report))
    else:
        print("\n".join(lines(report, verbose=verbose)))
    raise SystemExit(INTERRUPTED if report.interrupted else FAILED if report.summary.failed else 0)


def _write_picture(picture: Path, result: LoadResult) -> None:
    report = result.report
    title = f"{report.model} · {report.load}"
    subtitle = f"{report.url} · {report.summary.finished} finished, {report.summary.failed} failed"
    drawn = draw_run(result.records, report.limits, title=title, subtitle=subtitle)
    try:
        picture.write_text(drawn, encoding="utf-8")
        say(f"picture: {picture}", style="dim")
    except OSError as error:  # the report is worth more
        say(f"--picture {picture} cannot be written: {error.strerror}", style="red")


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _header_value(text: str) -> str:
    if not (text.isascii() and (text.isprintable())):
        raise LoadError("--api-key holds characters that no header may have")
    return text
