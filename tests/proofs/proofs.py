"""Every long proof, and which runner of this repository does its slices."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from baton_kernels import build
from tests.chaos.namespaces import missing
from tests.chaos.timing import MOST_AUC, widened
from tests.proofs import mutants
from tests.proofs.proof import Json, Proof, ProofSlice, SliceVerdict, all_but, whole
from tests.proofs.ranges import merged

CORE = ("engine", "gateway", "kvtransfer", "mesh", "prefill_svc", "decode_svc", "kernels/baton_kernels", "protos/baton")
SIM = (*CORE, "cli/local_mesh/signs_of_life.py", "tests/sim", "tests/mutants")
PROCESSES = (*CORE, "cli", "tests/harness", "tests/mutants")  # what a mesh of real processes consists of
CHAOS = (*PROCESSES, "tests/chaos")
FAKES = (  # fakes of the unit tests, which targets of the fuzzer use
    "tests/unit/certificates.py",
    "tests/unit/decode_svc/fakes.py",
    "tests/unit/engine/gguf_files.py",
    "tests/unit/gateway/fake_mesh.py",
    "tests/unit/prefill_svc/parts.py",
)
TIMING_PROBES = 2000


def _module(name: str, **options: object) -> list[str]:
    given = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    return [sys.executable, "-m", name, *given, "--json"]


def simulated(part: ProofSlice, status: int, report: Json) -> SliceVerdict:
    return all_but(part, report["failed"]) if status and report.get("failed") else whole(part, status, report)


def fuzzed(part: ProofSlice, status: int, report: Json) -> SliceVerdict:
    failures = sum(target["failures"] for target in report.get("targets", {}).values())
    return SliceVerdict(failed=(part.range,), failures=max(1, failures)) if status else whole(part, status, report)


def stormed(part: ProofSlice, status: int, report: Json) -> SliceVerdict:
    """A storm without the strikes of the kernel is not the one that is wanted; what fails in it counts all the same."""
    lacking = sorted(set(report.get("unavailable", {}).values()))
    return SliceVerdict(cannot_run="; ".join(lacking)) if status == 0 and lacking else whole(part, status, report)


def noticed(part: ProofSlice, status: int, report: Json) -> SliceVerdict:
    """The mutants that the slice's time was enough for; others may be begun."""
    if "judged" not in report:
        return whole(part, status or 1, report)
    missed = {(number, number + 1) for number in report["missed"]}
    passed = {(number, number + 1) for number in report["judged"]} - missed
    return SliceVerdict(tuple(merged(passed)), tuple(sorted(missed)), len(missed), progress=report["tried"])


def begun(part: ProofSlice, progress: Json) -> str:
    return json.dumps({number: seeds for number, seeds in progress.items() if part.first <= int(number) < part.end})


def without_kernel_faults() -> str:
    return "; ".join(sorted(set(missing().values())))


def without_sanitizer() -> str:
    """Asks the compiler for the sanitizer's library, and compiles nothing."""
    try:
        compiler = build.compiler()
        found = subprocess.check_output([compiler, "-print-file-name=libasan.so"], text=True).strip()
    except (build.BuildError, OSError, subprocess.CalledProcessError) as error:
        return f"AddressSanitizer needs g++: {error}"
    return "" if Path(found).is_absolute() else f"{compiler} has no AddressSanitizer: libasan is missing"


def aucs(report: Json) -> Json | None:
    return {"probes": report["probes"] // 2, **report["signed"]} if "signed" in report else None


def hidden_together(figures: Sequence[Json]) -> str:
    """The mean of all slices, by their probes: errors of chance to both sides cancel out in it."""
    probes = sum(each["probes"] for each in figures)
    most = widened(MOST_AUC, probes, TIMING_PROBES)
    for kind in ("auc_time", "auc_cached"):
        mean = sum(each["probes"] * each[kind] for each in figures) / max(1, probes)
        if abs(mean - 0.5) > most - 0.5:
            return f"{kind} of {probes} probes is {mean:.3f}, farther from 0.5 than {most:.3f}"
    return ""


_SIM = Proof(
    name="sim",
    wanted=20_000,
    unit="seeds",
    target="make sim",
    slice=100,
    least=10,
    seconds=130.0,
    command=lambda part, progress: _module("tests.sim", first=part.first, seeds=part.count),
    covers=SIM,
    verdict=simulated,
)
_FUZZ = Proof(
    name="fuzz",
    wanted=10_000_000,
    unit="cases under AddressSanitizer",
    target="make fuzz-asan",
    slice=60_000,
    least=5_000,
    seconds=180.0,
    command=lambda part, progress: [
        *_module("tests.fuzz", seed=1 + part.first, cases=part.count),
        "--asan",
    ],
    covers=(*SIM, "tests/fuzz", *FAKES),
    verdict=fuzzed,
    obstacle=without_sanitizer,
)
_CHAOS = Proof(
    name="chaos",
    wanted=30,
    unit="minutes",
    target="make chaos",
    slice=2,
    least=1,
    seconds=200.0,
    command=lambda part, progress: _module("tests.chaos", minutes=part.count, seed=part.first),
    covers=CHAOS,
    verdict=stormed,
    obstacle=without_kernel_faults,
)
_MUTANTS = Proof(
    name="mutants",
    wanted=len(mutants.NAMES),
    unit="removed protections",
    target="make sim, make model",
    slice=8,
    least=1,
    seconds=mutants.SECONDS,
    command=lambda part, progress: _module(
        "tests.proofs.mutants", first=part.first, count=part.count, tried=begun(part, progress)
    ),
    covers=(*SIM, "tests/protocol", "tests/proofs/mutants.py"),
    verdict=noticed,
)
_CANCELS = Proof(
    name="cancels",
    wanted=10_000,
    unit="cancels",
    target="make cancel",
    slice=1_000,
    least=250,
    seconds=130.0,
    command=lambda part, progress: _module("tests.chaos.cancel", count=part.count, seed=part.first),
    covers=CHAOS,
)
_CORRUPTIONS = Proof(
    name="corruptions",
    wanted=1_000,
    unit="corruptions",
    target="make corruption",
    slice=250,
    least=50,
    seconds=100.0,
    command=lambda part, progress: _module("tests.chaos.corruption", count=part.count, seed=part.first),
    covers=CHAOS,
)
_TIMING = Proof(
    name="timing",
    wanted=TIMING_PROBES,
    unit="probes",
    target="make timing",
    slice=250,
    least=100,
    seconds=150.0,
    command=lambda part, progress: _module(
        "tests.chaos.timing", probes=part.count, seed=part.first, whole=TIMING_PROBES
    ),
    covers=CHAOS,
    figures=aucs,
    together=hidden_together,
)
_REPLAY = Proof(
    name="replay",
    wanted=770,
    unit="prompts",
    target="make receipts",
    slice=70,
    least=14,
    seconds=90.0,
    command=lambda part, progress: _module("tests.receipts", count=part.count, seed=part.first),
    covers=(*PROCESSES, "tests/receipts"),
)
PROOFS = {proof.name: proof for proof in (_SIM, _FUZZ, _CHAOS, _MUTANTS, _CANCELS, _CORRUPTIONS, _TIMING, _REPLAY)}
