"""The doctor's part about transports: which two workers of this host would use and why, and how fast each one is."""

import asyncio
from statistics import median
from typing import Any

from cli.doctoring.transport_speed import SpeedFigures, measure, receiving_process
from cli.local_mesh.loop import PreciseLoop
from kvtransfer.transports import every_transport, say_hello
from mesh.config.worker_config import DecodeConfig
from mesh.messages.hello_pairs import choose
from mesh.messages.page_shape import opaque_pages

SPAN_BYTES, PASSES = 64 << 10, 7

Entry = dict[str, Any]


def describe_transports(worker: DecodeConfig) -> list[Entry]:
    """Every transport of the worker's device, best first."""
    host, advertised = worker.transport_host, worker.advertise_host
    entries = []
    for transport in every_transport(worker.device, host=host, advertise_host=advertised).values():
        reason = transport.available()
        if not reason and transport.name not in worker.allowed_transports:
            reason = "not allowed by the setting transports"
        about: Entry = {"name": transport.name, "usable": not reason, "reason": reason or "usable"}
        entries.append(about | {"chosen": False, "gb_per_second": None, "memcpy_share": None})
    usable = {entry["name"]: entry for entry in entries if entry["usable"]}
    if usable:
        offered = [name for name in worker.allowed_transports if name in usable]
        hello = say_hello(1, "", opaque_pages((1, SPAN_BYTES), content="one host"), offered)
        choice = choose(hello, hello)
        usable[choice.transport] |= {"chosen": True, "reason": choice.why}
    return entries


def measure_transports(entries: list[Entry], pass_bytes: int) -> float | None:
    """Fills in how fast the usable transports are between this process and another; returns memcpy's GB/s in the same
    run. TCP goes over the loopback address, without TLS."""
    usable = {entry["name"]: entry for entry in entries if entry["usable"]}
    if not usable:
        return None

    async def measured() -> SpeedFigures:
        async with receiving_process() as peer:
            return await measure(peer, list(usable), span_bytes=SPAN_BYTES, pass_bytes=pass_bytes, passes=PASSES)

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        figures = runner.run(measured())
    for name, passes in figures.transports.items():
        speed, share = figures.pass_bytes / median(passes.seconds) / 1e9, median(passes.memcpy_share)
        usable[name] |= {"gb_per_second": round(speed, 2), "memcpy_share": round(share, 2)}
    return round(figures.pass_bytes / median(figures.memcpy_seconds) / 1e9, 2)
