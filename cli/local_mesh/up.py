"""`baton up`: a whole mesh on this machine until Ctrl-C, every service in a process of its own."""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connecting.tls_options import tls_arguments
from cli.errors import readable_errors
from cli.local_mesh.drawn_token import drawn_token
from cli.local_mesh.ports import dialable
from cli.local_mesh.recent import finished
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import arranged, parse_settings, services_of
from cli.local_mesh.supervisor import brief
from cli.local_mesh.timeline import draw
from cli.models.hub import with_models
from cli.output import say
from mesh.config.config_checks import ConfigError
from mesh.config.services import MeshConfig
from mesh.config.settings import read_settings
from mesh.telemetry.lossy_output import use_lossy_stderr

_COUNT = "workers of each model; by default the machine decides."
Prefills = Annotated[int | None, typer.Option(min=0, help=f"Number of prefill {_COUNT}")]
Decodes = Annotated[int | None, typer.Option(min=0, help=f"Number of decode {_COUNT}")]

Quantize = Annotated[
    str | None,
    typer.Option(help="int8 or int4: round the weights to it when they are loaded. The result is kept in the cache."),
]

Kv = Annotated[
    str | None,
    typer.Option(
        "--kv",
        help="int8 or fp8: pages hold keys and values in eight bits, so a pool about twice the text. int4, an "
        "experiment: in four bits, about 3.8 times the text, with answers that are further from the model's own.",
    ),
]


def up(
    config: Annotated[Path | None, typer.Option(help="TOML file; docs/configuration.md lists the keys.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Hugging Face model folder, or ORG/NAME on the hub; without one, the built-in model. Several, each "
            "with workers of its own: --model A --model NAME=B."
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="Small draft model with the same tokenizer, for speculation: a folder or ORG/NAME."),
    ] = None,
    adapters: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER: a LoRA adapter in PEFT's form, which clients choose by its name. Repeatable."),
    ] = None,
    speculation: Annotated[
        str | None,
        typer.Option(
            help="Drafted tokens: auto, draft (by the draft model), lookup (from the text), off. Answers stay equal."
        ),
    ] = None,
    quantize: Quantize = None,
    kv: Kv = None,
    prefill: Prefills = None,
    decode: Decodes = None,
    http: Annotated[str | None, typer.Option(help="Address of the HTTP API; the default is 127.0.0.1:8000.")] = None,
    grpc: Annotated[str | None, typer.Option(help="Address of the gRPC API; the default is 127.0.0.1:50051.")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Address where workers register; the default is 127.0.0.1:50052.")
    ] = None,
    gateways: Annotated[
        int | None, typer.Option(min=1, help="Gateway processes that share the ports of clients; the default is 1.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: one setting, over the file and the environment.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show the timeline of every request.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show log lines whole, with each worker's numerics class and fingerprint.")
    ] = False,
) -> None:
    """Start a mesh on this machine and keep it running until Ctrl-C. Workers that die are started again.

    Example: baton up --model ~/models/qwen2.5-0.5b --prefill 1 --decode 2 --set decode.max_batch=16
    """
    models = model or []
    flags = {
        "model": models[0] if len(models) == 1 and "=" not in models[0] else None,
        "models": ",".join(models) if len(models) > 1 or any("=" in each for each in models) else None,
        "draft": draft,
        "adapters": ",".join(adapters) if adapters else None,
        "worker.speculation": speculation,
        "worker.quantize": quantize,
        "worker.kv_dtype": kv,
        "mesh.prefill_workers": prefill,
        "mesh.decode_workers": decode,
        "gateway.http_address": http,
        "gateway.grpc_address": grpc,
        "gateway.worker_address": workers,
        "gateway.processes": gateways,
    }
    with readable_errors():
        overrides = overridden(settings or [], flags)
        if len(models) > 1:
            refuse_parts_of_one_model(draft, adapters)
        mesh = with_models(read_settings(config, os.environ, overrides)).mesh()
        run_until_signal(_up(mesh, config, overrides, trace=trace, verbose=verbose))


def overridden(settings: list[str], flags: Mapping[str, object]) -> dict[str, str]:
    """The settings of `--set` and of the options that were given."""
    overrides = parse_settings(settings)
    given = {key: str(value) for key, value in flags.items() if value is not None}
    if twice := sorted(key for key in given if overrides.get(key, given[key]) != given[key]):
        key = twice[0]
        raise ConfigError(f"--set {key}={overrides[key]}: an option says {given[key]}; leave one of them out")
    return overrides | given


def refuse_parts_of_one_model(draft: str | None, adapters: list[str] | None) -> None:
    if draft is not None:
        raise ConfigError("--draft: belongs to one model; write a table [[models]] for each model into the file")
    if adapters:
        raise ConfigError("--adapters: belong to one model; write them into its table [[models]] in the file")


async def _up(mesh: MeshConfig, file: Path | None, overrides: dict[str, str], *, trace: bool, verbose: bool) -> None:
    begun = time.monotonic()
    with drawn_token(mesh) as token:
        await _run(mesh, file, overrides | token, trace=trace, verbose=verbose, begun=begun)


async def _run(
    mesh: MeshConfig, file: Path | None, overrides: dict[str, str], *, trace: bool, verbose: bool, begun: float
) -> None:
    services = services_of(mesh, file=file, overrides=overrides, otlp_endpoint=mesh.gateway.otlp_endpoint)
    width = max(len(service.name) for service in services)
    say(f"starting {', '.join(service.name for service in services)}")
    say(f"{arranged(mesh)} (baton doctor --arrangements)")
    as_json = mesh.gateway.log_format == "json"  # such a line names its service itself

    def show(name: str, line: str) -> None:
        say(line if as_json else f"{name:<{width}}  {line if verbose else brief(line)}")

    async with running_mesh(mesh, services, show):
        names = ", ".join(each.names[0] for each in mesh.gateway.served)
        http, grpc = dialable(mesh.gateway.http_address), dialable(mesh.gateway.grpc_address)
        say(f"\nThe mesh serves {names} after {time.monotonic() - begun:.1f} s. Ctrl-C stops it.")
        say(f"  HTTP   curl http://{http}/v1/models")
        tls = tls_arguments(mesh.gateway) + (f" --model {names.partition(',')[0]}" if mesh.further else "")
        say(f"  gRPC   baton generate --grpc {grpc}{tls} 'Once upon a time'")
        say(f"  chat   baton chat --grpc {grpc} --http {http}{tls}")
        if token := overrides.get("mesh_token_file"):
            say(f"  token  {token} (workers that you start by hand need it: --set mesh_token_file=…)")
        say(f"  look   http://{http}/ui\n" if mesh.gateway.ui else "")
        if trace:
            await _draw_all(http)
        await asyncio.Event().wait()


async def _draw_all(http: str) -> None:
    async for request in finished(http):
        for line in drawing(request):
            say(line)


def drawing(request: dict[str, Any]) -> list[str]:
    """The request's timeline below its id, which `baton explain` takes."""
    return [request["request_id"], *draw(request), ""]


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Cancel the work on Ctrl-C and SIGTERM; on its way out it stops its processes. A second signal does not wait for
    them: the kernel ends them together with this process."""

    use_lossy_stderr()

    async def main() -> None:
        task = asyncio.ensure_future(work)

        def stop() -> None:
            say("stopping; the same signal again (Ctrl-C) ends everything at once, answers that still run included")
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        try:
            await task
        except asyncio.CancelledError:
            say("stopped")

    asyncio.run(main())
