"""Runs a page's Python blocks one after the other in one process, so that a later one sees the names of an earlier one.

Started as a program: each line on stdin is a JSON object {page, line, text}; the answer on descriptor 3 is one JSON
object {ok, line}. The line is the page's own: a block is compiled with as many empty lines before it."""

import json
import os
import sys
import traceback
from typing import Any


def run(block: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    try:
        exec(compile("\n" * (block["line"] - 1) + block["text"], block["page"], "exec"), names)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, SyntaxError):
            return {"ok": False, "line": error.lineno or block["line"]}
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == block["page"]]
        return {"ok": False, "line": frames[-1].lineno if frames else block["line"]}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return {"ok": True, "line": block["line"]}


def main() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with os.fdopen(3, "w") as answers:
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line), names)), file=answers, flush=True)


if __name__ == "__main__":
    main()
