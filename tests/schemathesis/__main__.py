"""`make schemathesis`: Schemathesis makes requests of `/openapi.json` and sends them to a mesh with the built-in pair.

No answer may have a status of 500 or above, and each must have a described status, type, form and headers; what breaks
the description must be refused. The command starts the mesh, runs the program `st`, which has an environment of its
own, and ends with one JSON object. Status 1 for any failure, or for fewer cases than were asked for."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.schemas.__main__ import built_in_mesh

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
CONTEXT_TOKENS = 64  # tokens of a prompt and its answer: most requests leave the length of the answer open
COVERED = 6000  # cases that walk through the limits of every field, whatever `--cases` says
BODIES = 8  # endpoints with a body: they share the other cases


async def run(st: Path, *, cases: int, seed: int) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        async with built_in_mesh(folder, **{"gateway.context_tokens": str(CONTEXT_TOKENS)}) as url:
            each = max(10, -(-(cases - COVERED) // BODIES))
            command = [str(st), "run", f"{url}/openapi.json", "--max-examples", str(each), "--seed", str(seed)]
            command += ["--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS), "--continue-on-failure"]
            # One worker: ast.parse in two threads at once fails in Python 3.11 (gh-106905), and Hypothesis calls it.
            command += ["--warnings", "off", "--request-timeout", "60", "--workers", "1", "--no-shrink"]
            command += ["--report", "json", "--report-json-path", str(report)]
            process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=sys.stderr)
            await process.wait()
        found = summary(json.loads(report.read_text()))
    return {**found, "status": process.returncode, "seed": seed, "seconds": round(time.monotonic() - began, 1)}


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """The numbers of Schemathesis' own report. `accepted`: cases that were valid and got an answer."""
    cases = report["test_cases"]
    rates = [phase for phases in report["valid_rates"].values() for phase in phases.values()]
    return {
        "cases": cases["generated"],
        "accepted": sum(phase["accepted"] for phase in rates),
        "failures": cases["with_failures"] + cases["errored"],
        "kinds": [each["title"] for each in (*report["failures"], *report["errors"])],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schemathesis", description=__doc__)
    parser.add_argument("--st", type=Path, required=True, help="the program of Schemathesis")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    result = asyncio.run(run(options.st.absolute(), cases=options.cases, seed=options.seed))
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return 1 if result["failures"] or result["status"] or result["cases"] < options.cases else 0


if __name__ == "__main__":
    sys.exit(main())
