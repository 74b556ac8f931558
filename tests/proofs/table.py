"""The tables of what is proven: on a terminal, and in docs/proofs.md, drawn from the file of results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.proofs.ledger import ProofEntry, ProofLedger
from tests.proofs.proof import Proof

BEGIN, END = "<!-- the table of bench/results/proofs.json -->", "<!-- end of the table -->"


def status_lines(report: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each proof, for the sources as they are now."""
    lines = [f"{'proof':12} {'wanted':>10} {'done':>10} {'failed':>7}  state"]
    for name, row in report.items():
        lines.append(f"{name:12} {row['wanted']:>10} {row['done']:>10} {row['failed']:>7}  {_state(row)}")
    return lines


def _state(row: Mapping[str, Any]) -> str:
    parts = [f"{row['done'] / row['wanted']:.1%}"]
    if earlier := row["earlier"]:
        parts.append(f"stale: {earlier['done']} done, {earlier['failed']} failed for other sources")
    if row["problem"]:
        parts.append(row["problem"])
    if row["cannot_run"]:
        parts.append(f"cannot run here: {row['cannot_run']}")
    return "; ".join([*parts, *filter(None, [row["machine"]])])


def drawn(ledger: ProofLedger, proofs: Mapping[str, Proof]) -> str:
    """The table in Markdown. It says for which sources each amount is, and depends on the file alone."""
    rows = ["| proof | wanted | done | failed | sources | last slice | machine |", "|---|---|---|---|---|---|---|"]
    for name, proof in proofs.items():
        entry = ledger.entries.get(name) or ProofEntry("")
        cells = [f"{proof.wanted:,} {proof.unit}", f"{entry.done:,}", f"{entry.failed:,}"]
        cells += [each or "none yet" for each in (entry.sources, entry.date, entry.machine)]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def redrawn(page: str, table: str) -> str:
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}"


def redraw(path: Path, table: str) -> bool:
    """Put the table into the page; true when that changed it."""
    before = path.read_text()
    after = redrawn(before, table)
    if after != before:
        path.write_text(after)
    return after != before
