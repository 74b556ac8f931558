"""aiperf: 30 s of streamed chats at concurrency 4, no error, token counts as the server reports them."""

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS, AT_ONCE = 30, 4


def main() -> None:
    out = Path(os.environ["MESH_OUT"]) / "artifacts"
    command = [
        str(Path(sys.executable).with_name("aiperf")),
        "profile",
        *("--model", os.environ["MESH_MODEL"], "--url", os.environ["MESH_URL"]),
        *("--endpoint-type", "chat", "--streaming", "--use-server-token-count"),
        *("--tokenizer", os.environ["MESH_TOKENIZER"]),
        *("--concurrency", str(AT_ONCE), "--benchmark-duration", str(SECONDS)),
        *("--synthetic-input-tokens-mean", "96", "--output-tokens-mean", "24"),
        *("--extra-inputs", "ignore_eos:true", "--artifact-dir", str(out), "--ui", "none"),
    ]
    # Offline it takes a tokenizer from the hub's cache only, never from a folder.
    online = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    subprocess.run(command, check=True, timeout=280, env=online)
    report = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())
    assert report["request_count"]["avg"] >= AT_ONCE, report
    assert not report.get("error_summary") and not report.get("error_request_count"), report
    assert report["time_to_first_token"]["avg"] > 0 and report["inter_token_latency"]["avg"] > 0, report
    assert report["output_token_throughput"]["avg"] > 1, report


if __name__ == "__main__":
    main()
