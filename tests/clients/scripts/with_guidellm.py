"""guidellm: 30 s of concurrent requests, all successful, with the token counts that were asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS, AT_ONCE, IN, OUT = 30, 4, 96, 24


def main() -> None:
    out = Path(os.environ["MESH_OUT"]) / "report.json"
    command = [
        str(Path(sys.executable).with_name("guidellm")),
        *("benchmark", "run", "--target", os.environ["MESH_URL"], "--model", os.environ["MESH_MODEL"]),
        *("--processor", os.environ["MESH_TOKENIZER"], "--data", f"prompt_tokens={IN},output_tokens={OUT}"),
        *("--profile", "concurrent", "--rate", str(AT_ONCE), "--max-seconds", str(SECONDS)),
        *("--output-path", str(out), "--disable-progress"),
    ]
    subprocess.run(command, check=True, timeout=280)
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] >= AT_ONCE and totals["errored"] == 0, totals
    counts = benchmark["metrics"]["output_token_count"]["successful"]
    assert counts["mean"] == OUT, counts


if __name__ == "__main__":
    main()
