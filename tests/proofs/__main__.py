"""`python -m tests.proofs`, or `make proofs`: the long proofs, in slices of a few minutes that add up.

python -m tests.proofs                        run what is missing, until all is done
python -m tests.proofs --minutes 10           stop within ten minutes; the next run goes on from there
python -m tests.proofs --only sim,fuzz        these proofs
python -m tests.proofs --list [--json]        what is done for the sources as they are now, and what is stale
python -m tests.proofs --retry                run slices again that failed; a pass closes the failure
python -m tests.proofs --draw                 draw the table in docs/proofs.md anew

Status 0: nothing failed, and all that was asked for is done or time is up. 1: something failed. 2: nothing was run,
because this machine cannot or because another run is under way. 3: a proof cannot run here, the others are well."""

import argparse
import fcntl
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.processor import processor
from tests.proofs.ledger import ProofLedger
from tests.proofs.proof import Proof
from tests.proofs.proofs import PROOFS
from tests.proofs.rounds import Rounds
from tests.proofs.running import run_slice
from tests.proofs.sources import ROOT, SourcesUnknown, source_hasher
from tests.proofs.table import drawn, redraw, status_lines

RESULTS, PAGE, BUILD = ROOT / "bench/results/proofs.json", ROOT / "docs/proofs.md", ROOT / "build/proofs"
FAILED, NOT_RUN, CANNOT = 1, 2, 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="longest time of the whole run")
    parser.add_argument("--only", default="", metavar="NAMES", help=f"some of {','.join(PROOFS)}")
    parser.add_argument("--list", action="store_true", help="show what is done, and run nothing")
    parser.add_argument("--retry", action="store_true", help="run slices again that failed")
    parser.add_argument("--draw", action="store_true", help="draw the table in docs/proofs.md anew, and run nothing")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    given.only = [name for name in given.only.split(",") if name] or list(PROOFS)
    if unknown := sorted(set(given.only) - set(PROOFS)):
        parser.error(f"there is no proof {', '.join(unknown)}: choose from {', '.join(PROOFS)}")
    return given


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def hashes_of(proofs: Mapping[str, Proof]) -> dict[str, str]:
    hashed = source_hasher()
    return {name: hashed(proof.covers, proof.signature) for name, proof in proofs.items()}


def sources_of(proof: Proof) -> str:
    return hashes_of({proof.name: proof})[proof.name]


def loaded() -> ProofLedger:
    return ProofLedger.load(RESULTS, {name: proof.wanted for name, proof in PROOFS.items()})


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether no other run is under way. The lock goes when this process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def run(
    ledger: ProofLedger, chosen: Mapping[str, Proof], hashes: Mapping[str, str], seconds: float, *, retry: bool
) -> None:
    if retry:
        for name in chosen:
            if name in ledger.entries and ledger.entries[name].sources == hashes[name]:
                ledger.entries[name].retry()
    today: Callable[[], str] = lambda: datetime.now(UTC).strftime("%Y-%m-%d")  # noqa: E731
    rounds = Rounds(chosen, hashes, ledger, run_slice, time.monotonic, today, processor(), BUILD / "failures", say)
    rounds.sources_now = sources_of
    slices = rounds.run(seconds)
    say(f"{slices} slices")


def status_of(ledger: ProofLedger, chosen: Mapping[str, Proof], hashes: Mapping[str, str]) -> int:
    rows = ledger.report(hashes)
    if any(rows[name]["failed"] for name in chosen):
        return FAILED
    unable = [name for name in chosen if name in ledger.unable and rows[name]["done"] < rows[name]["wanted"]]
    return (NOT_RUN if len(unable) == len(chosen) else CANNOT) if unable else 0


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way out the running slice is ended
    ledger = loaded()
    if given.draw:
        say(f"{PAGE.relative_to(ROOT)}: {'drawn anew' if redraw(PAGE, drawn(ledger, PROOFS)) else 'as it was'}")
        return 0
    try:
        hashes = hashes_of(PROOFS)
    except SourcesUnknown as error:
        say(str(error))
        return NOT_RUN
    chosen = {name: PROOFS[name] for name in given.only}
    if given.list:
        ledger.unable = {name: why for name, proof in chosen.items() if (why := proof.obstacle())}
        status = FAILED if any(ledger.report(hashes)[name]["failed"] for name in chosen) else 0
    else:
        with alone(BUILD / "run.lock") as is_alone:
            if not is_alone:
                say("another run is under way")
                return NOT_RUN
            try:
                ledger = loaded()  # as the run before this one left it
                run(ledger, chosen, hashes, 60 * given.minutes, retry=given.retry)
            finally:
                redraw(PAGE, drawn(ledger, PROOFS))
        status = status_of(ledger, chosen, hashes)
    report = {name: row for name, row in ledger.report(hashes).items() if name in chosen}
    print(json.dumps({"proofs": report}) if given.json else "\n".join(status_lines(report)))
    return status


if __name__ == "__main__":
    sys.exit(main())
