"""The report of `baton doctor` as text: one row for each fact, then the problems with their remedies."""

from typing import Any

from cli.output import say
from mesh.config.arrangement import cores_said

Report = dict[str, Any]


def show(report: Report) -> None:
    for name, value in _rows(report):
        print(f"{name:<12} {value}")
    for problem in report["problems"]:
        say(f"problem      {problem['problem']}\n             {problem['remedy']}", style="yellow")
    if not report["problems"]:
        print("no problems")


def _rows(report: Report) -> list[tuple[str, str]]:
    chip, memory = report["processor"], report["memory"]
    return [
        (
            "processor",
            f"{chip['name']}, {cores_said(chip['cores'])}: {', '.join(chip['features']) or 'no vector extensions'}",
        ),
        ("threads", f"{report['threads']} per worker"),
        ("memory", f"{memory['available_bytes'] >> 20} of {memory['total_bytes'] >> 20} MiB available"),
        ("compiler", report["compiler"]["version"] or "none"),
        ("GPU", _gpu_line(report["gpu"])),
        ("device", report["device"]),
        *(("port", f"{address} is {state}") for address, state in report["ports"].items()),
        *(("transport", _transport_line(entry)) for entry in report["transports"]),
        ("memcpy", f"{report['memcpy_gb_per_second'] or '?'} GB/s, scattered, one thread"),
        *(("path", f"{name}: {path['body']} of {', '.join(path['usable'])}") for name, path in report["paths"].items()),
        *([("not built", f"{', '.join(report['not_built'])}: not for this processor")] if report["not_built"] else []),
        *([("forced", f"BATON_PRODUCT_PATH={report['forced']}")] if report["forced"] else []),
        ("kernels", _kernels_line(report)),
        ("product path", report["product_path"] or "unknown"),
        ("class", report["class"] or "unknown"),
        ("fingerprint", report["fingerprint"] or "unknown"),
        ("pool", pool_line(report["pool"])),
        ("draft", report["draft"] or "none"),
    ]


def _gpu_line(gpu: Report) -> str:
    devices = ", ".join(gpu["devices"]) or "none"
    return f"{devices}: path {gpu['path']}" if gpu["usable"] else f"{devices}; not usable: {gpu['why_not']}"


def pool_line(pool: Report | None) -> str:
    if pool is None:
        return "unknown here: pages hold the draft's keys and values, too; /metrics of a mesh has baton_pool_tokens"
    dtype = f"{pool['dtype']}, an experiment" if pool["dtype"] == "int4" else pool["dtype"]
    return f"{pool['tokens']:,} tokens in {pool['bytes'] >> 20} MiB per worker, keys and values in {dtype}"


def _transport_line(entry: Report) -> str:
    chosen = "two workers of this host use it, " if entry["chosen"] else ""
    line = f"{entry['name']}: {chosen}{entry['reason']}"
    if entry["gb_per_second"] is None:
        return line
    return f"{line}; {entry['gb_per_second']} GB/s, {entry['memcpy_share']} of memcpy"


def _kernels_line(report: Report) -> str:
    if (library := report["library"]) is None:
        return "none"
    return f"version {library['version']}, sources {library['sources']}, library {library['digest']}"
