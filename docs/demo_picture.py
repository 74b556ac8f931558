"""`python docs/demo_picture.py`: runs `baton demo` and draws its output as docs/demo.svg."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100
PICTURE = Path(__file__).with_name("demo.svg")


def main() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", "demo", *sys.argv[1:]],
        env=os.environ | {"COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        for line in ["$ make demo", *done.stdout.splitlines()]:
            bold = line.startswith(("$ ", "you ›"))
            console.print(Text(line, style="bold" if bold else "dim" if line.startswith("  ") else ""))
        drawn = console.export_svg(title="baton demo")
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\n    \}", "", drawn, flags=re.DOTALL))  # a picture loads nothing


if __name__ == "__main__":
    main()
