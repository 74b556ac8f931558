"""`baton doctor`: which kernels, class and transports a worker would use here, how fast these are, and what is wrong.

Every failed check becomes a problem with a remedy. No check ends the command, so that one broken part hides no
other."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cli.doctoring import machine
from cli.doctoring.doctor_report import Report, show
from cli.errors import readable_errors
from cli.local_mesh.ports import check_free
from cli.local_mesh.services import arranged, parse_settings, with_model
from cli.models.hub import with_models
from cli.output import INSTALL_SERVE, emit_json
from mesh.config.arrangement import cores_said
from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig, MeshConfig
from mesh.config.settings import read_settings
from mesh.config.worker_config import DecodeConfig

_SPEED_BYTES = 32 << 20  # that each transport moves in a measured pass


def doctor(
    config: Annotated[Path | None, typer.Option(help="TOML file; docs/configuration.md lists the keys.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: one setting, over the file and the environment.")
    ] = None,
    arrangements: Annotated[
        bool,
        typer.Option(
            "--arrangements", help="Measure arrangements of workers with this model instead; takes two minutes."
        ),
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="With --arrangements: draw them into this SVG file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check this machine: what a worker would use here, and what is wrong, with a remedy for each problem. Status 1
    means that something is wrong.

    Example: baton doctor --set model=~/models/qwen2.5-0.5b
    """
    overrides = parse_settings(settings or [])
    with readable_errors():
        if picture is not None and not arrangements:
            raise ConfigError("--picture: draws arrangements; add --arrangements")
        if picture is not None and (picture.is_dir() or not os.access(picture.parent, os.W_OK)):
            raise ConfigError(f"--picture: {picture} cannot be written; name a file in a folder that is there")
        read = with_models(read_settings(config, os.environ, overrides), download=False)
        if arrangements:
            return _arrangements(read.mesh(), config, overrides, picture=picture, as_json=json)
        gateway, worker = read.gateway(), read.decode()
    report = examine(gateway, worker, speed_bytes=_SPEED_BYTES)
    if json:
        emit_json(report)
    else:
        show(report)
    if report["problems"]:
        raise typer.Exit(1)


def _arrangements(
    mesh: MeshConfig, config: Path | None, overrides: dict[str, str], *, picture: Path | None, as_json: bool
) -> None:
    from cli.arrangements.command import show_arrangements

    if config is not None:
        raise ConfigError("--config: arrangements are measured with settings of the command line; use --set key=value")
    if mesh.further:
        raise ConfigError("models: arrangements are measured with one model; choose it with --set model=NAME")
    chip, name = machine.processor(), with_model(mesh.decode).model_name
    here = f"{chip['name']}, {cores_said(chip['cores'])}"
    show_arrangements(overrides, machine=here, model=name, chosen=arranged(mesh), picture=picture, as_json=as_json)


def examine(gateway: GatewayConfig, worker: DecodeConfig, *, speed_bytes: int = 0) -> Report:
    """`speed_bytes`: how many bytes each transport moves in a measured pass; 0: none is measured."""
    report: Report = {
        "python": platform.python_version(),
        "processor": machine.processor(),
        "threads": worker.thread_count,
        "compiler": machine.compiler(),
        "memory": machine.memory(),
        "device": worker.device,
        "gpu": {**machine.gpu(), "usable": False, "path": None, "why_not": "not checked"},
        "ports": {},
        "paths": {},
        "not_built": [],
        "forced": os.environ.get("BATON_PRODUCT_PATH") or None,
        "transports": [],
        "memcpy_gb_per_second": None,
        "library": None,
        "product_path": None,
        "class": None,
        "fingerprint": None,
        "pool": None,
        "draft": None,
        "problems": [],
    }
    checks: tuple[Callable[[], None], ...] = (
        lambda: _ports(report, gateway),
        lambda: _kernels(report),
        lambda: _gpu(report, worker),
        lambda: _transports(report, worker, speed_bytes),
        lambda: _class(report, worker),
        lambda: _draft(report, worker),
        lambda: _memory(report, worker),
    )
    for check in checks:
        try:
            check()
        except ModuleNotFoundError as error:
            _problem(report, f"the Python module {error.name} is missing", INSTALL_SERVE)
        except Exception as error:  # every failure is shown beside the other checks
            _problem(report, f"{type(error).__name__}: {error}", "read the message; the other checks ran nevertheless")
    return report


def _problem(report: Report, problem: str, remedy: str) -> None:
    entry = {"problem": problem, "remedy": remedy}
    if entry not in report["problems"]:
        report["problems"].append(entry)


def _ports(report: Report, gateway: GatewayConfig) -> None:
    for field in ("http_address", "grpc_address", "worker_address"):
        address = getattr(gateway, field)
        try:
            check_free(f"gateway.{field}", address)
            report["ports"][address] = "free"
        except ConfigError as error:
            report["ports"][address] = "taken"
            _problem(
                report,
                str(error),
                "stop the process that listens there (perhaps a running mesh), or set another address",
            )


def _kernels(report: Report) -> None:
    import baton_kernels
    from baton_kernels import library

    if reason := baton_kernels.available():
        compiler = report["compiler"]["path"] or "none"
        return _problem(report, f"kernels: {reason}", f"install g++ (found: {compiler}), then {INSTALL_SERVE}")
    report["library"] = {
        "version": baton_kernels.KERNEL_VERSION,
        "sources": library.sources(),
        "digest": library.file_digest(),
    }
    _bodies(report)


def _bodies(report: Report) -> None:
    import baton_kernels

    bodies = baton_kernels.bodies()
    report["not_built"] = list(baton_kernels.not_built())
    report["paths"] = {
        operation: {"body": body, "usable": list(bodies.get(operation, ()))}
        for operation, body in sorted(baton_kernels.chosen().items())
    }


def _gpu(report: Report, worker: DecodeConfig) -> None:
    from engine.cuda.device import find_gpu

    found = find_gpu()
    path = found.gpu.exact_path if found.gpu and not found.why_not else None
    report["gpu"] |= {"usable": path is not None, "path": path, "why_not": found.why_not}
    if worker.device == "cuda" and found.why_not:
        _problem(report, f'device is "cuda", but {found.why_not}', 'repair that, or set device = "cpu"')


def _transports(report: Report, worker: DecodeConfig, speed_bytes: int) -> None:
    from cli.doctoring.doctor_transports import describe_transports, measure_transports

    if worker.device == "cuda" and not report["gpu"]["usable"]:
        return
    entries = report["transports"] = describe_transports(worker)
    if not any(entry["usable"] for entry in entries):
        return _problem(
            report, "no transport is usable: prefill cannot hand pages over", "read the reasons under transports"
        )
    if speed_bytes and worker.device == "cpu":
        report["memcpy_gb_per_second"] = measure_transports(entries, speed_bytes)


def _class(report: Report, worker: DecodeConfig) -> None:
    from engine.loading.loaded import load_on
    from engine.loading.startup import memory_bytes, pool_pages
    from engine.pool.horizon import Horizon

    if worker.device == "cuda" and not report["gpu"]["usable"]:
        return
    folder = with_model(worker).model
    assert folder is not None
    model = load_on(
        worker.device,
        folder,
        worker.cache_folder,
        product_path=worker.product_path,
        quantize=worker.quantize,
        kv_dtype=worker.kv_dtype,
        page_tokens=worker.page_tokens,
        threads=worker.thread_count,
        banded=True,
    )
    identity = model.identity
    _bodies(report)  # loading the weights has applied BATON_PRODUCT_PATH
    report["class"], report["fingerprint"] = identity.numerics, identity.fingerprint
    report["product_path"] = identity.path
    if with_model(worker).draft_folder is None:  # its layers lie in the pages, too
        page, here = model.shape.page_bytes, memory_bytes(worker.device)
        pages = pool_pages(worker, page, memory_bytes=here, weights_bytes=model.weights_bytes)
        dtype = model.shape.segments[0].dtype
        tokens = Horizon.of(model.bands, worker.page_tokens).longest_text(pages, worker.chunk_tokens)
        report["pool"] = {"tokens": tokens, "bytes": pages * page, "dtype": dtype}


def _draft(report: Report, worker: DecodeConfig) -> None:
    from engine.model.config import read_config
    from engine.model.drafts import check_draft

    worker = with_model(worker)
    folder, model = worker.draft_folder, worker.model
    if folder is None or model is None or (worker.device == "cuda" and not report["gpu"]["usable"]):
        return
    check_draft(folder, read_config(model), model, padded=worker.device == "cpu")
    if worker.device == "cuda":
        from engine.cuda.weights import check_draft_on_gpu

        check_draft_on_gpu(folder)
    report["draft"] = str(folder)


def _memory(report: Report, worker: DecodeConfig) -> None:
    limits = [report["memory"]["available_bytes"], report["memory"]["container_limit_bytes"]]
    room = min(limit for limit in limits if limit is not None)
    if worker.pool_pages is None and not worker.memory_share and worker.pool_bytes > room:
        _problem(report, f"pool_bytes is {worker.pool_bytes}, but {room} bytes are free", "set a smaller pool_bytes")
    files = report["memory"]["open_files_limit"]
    if files is not None and files < 1024:
        _problem(report, f"only {files} files and connections may be open", "raise the limit: ulimit -n 4096")
