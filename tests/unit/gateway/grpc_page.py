"""The tables of docs/grpc.md: which field of gRPC each field of HTTP is."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/grpc.md"
NONE = "–"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table behind a heading."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
    ]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.\[\]*-]+)`", cell)


def paths(row: list[str]) -> list[str]:
    """The gRPC fields of a row."""
    http, grpc = names(row[0]), row[1]
    if grpc.startswith("the same"):
        return http
    found = names(grpc)
    return [path.replace("*", name) for path in found for name in http] if found and found[0].endswith("*") else found
