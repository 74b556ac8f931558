"""`make rdma-check`: moves pages over this host's RDMA device, hardware or software (soft-RoCE), and checks every byte.

`python -m tests.rdma --json` ends with one JSON object. Status 1 when a byte is wrong, a late write lands, its negative
control (the same writer, while its key stays) does no harm, or the transports' conformance suite fails; status 2 when
there is no device. `--imitated` needs none: UCX imitates one-sided writes over TCP."""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

from bench.command import say
from kvtransfer.nixl_agent import RdmaFabric
from kvtransfer.rdma_host import active_ports, provider
from tests.mutants.rdma import without_key
from tests.rdma.fabric import CHOSEN, IMITATED, VERBS, transport
from tests.rdma.moving import late_writer, move_pages

SUITE = (
    "tests/unit/kvtransfer/test_conformance.py",
    "tests/unit/kvtransfer/test_conformance_two_sided.py",
    "-k",
    "rdma",
    "-p",
    "no:cacheprovider",
    "-q",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rdma", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--imitated", action="store_true", help="over TCP on the loopback address, without a device")
    parser.add_argument("--no-suite", action="store_true", help="without the conformance suite")
    given = parser.parse_args()
    fabric = IMITATED if given.imitated else VERBS
    if obstacle := transport(fabric).available():
        say(f"rdma: {obstacle}")
        return 2
    found = asyncio.run(run(fabric))
    found["suite"] = {} if given.no_suite else conformance(fabric)
    found["ok"] = not problems(found)
    for problem in problems(found):
        say(f"FAILED: {problem}")
    if given.json:
        print(json.dumps(found))
    return 0 if found["ok"] else 1


async def run(fabric: RdmaFabric) -> dict[str, Any]:
    port = "" if fabric.imitated else active_ports()[0]
    device = port.partition(":")[0]
    say(f"pages between two processes over {port or fabric.ways}")
    found: dict[str, Any] = {"device": port or fabric.ways, "provider": provider(device) if device else "imitated"}
    found |= await move_pages(fabric)
    say("a late writer")
    found["late"] = asdict(await late_writer(fabric))
    say("a late writer whose key stays (negative control)")
    with ExitStack() as patches:

        def replace(target: object, name: str, value: object) -> None:
            patches.enter_context(patch.object(target, name, value))

        without_key(replace)
        found["control"] = asdict(await late_writer(fabric))
    return found


def conformance(fabric: RdmaFabric) -> dict[str, int]:
    say("the transports' conformance suite")
    environment = {**os.environ, CHOSEN: "imitated" if fabric.imitated else "verbs"}
    suite = subprocess.run([sys.executable, "-m", "pytest", *SUITE], env=environment, capture_output=True, text=True)
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|error|skipped)", suite.stdout)}
    if suite.returncode:
        say(suite.stdout[-6000:])
    return {"passed": counts.get("passed", 0), "failed": sum(counts.values()) - counts.get("passed", 0)}


def problems(found: dict[str, Any]) -> list[str]:
    late, control, suite = found["late"], found["control"], found["suite"]
    checks = {
        "bytes are wrong": found["wrong_bytes"] == 0 and found["bytes"] > 0,
        "a late write landed, or the writer did not go on": late["silent"]
        and late["tries_after"] > 0
        and not late["landed_bytes"],
        "the negative control does no harm, so the late writer proves nothing": control["silent"]
        and control["landed_bytes"] > 0,
        "the conformance suite fails": not suite or (suite["passed"] > 0 and not suite["failed"]),
    }
    return [problem for problem, fine in checks.items() if not fine]


if __name__ == "__main__":
    sys.exit(main())
