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
        *("run", "--backend", f"kind=openai_http,target={os.environ['MESH_URL']},model={os.environ['MESH_MODEL']}"),
        *("--profile", f"kind=concurrent,streams={AT_ONCE}", "--constraint", f"kind=max_duration,seconds={SECONDS}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={IN},output_tokens={OUT}"),
        *("--tokenizer", f"kind=hf_auto,model={os.environ['MESH_TOKENIZER']}"),
        *("--output", f"kind=json,path={out}", "--disable-progress"),
    ]
    subprocess.run(command, check=True, timeout=280)
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] >= AT_ONCE and totals["errored"] == 0, totals
    counts = benchmark["metrics"]["output_token_count"]["successful"]
    assert counts["mean"] == OUT, counts


if __name__ == "__main__":
    main()
