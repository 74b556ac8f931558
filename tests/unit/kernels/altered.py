"""Native libraries for tests that are not what their names say: a build from altered sources that bears the digest of
the honest ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import baton_kernels as bk
from baton_kernels import build, library

ROOT = Path(library.__file__).parents[2]
# What a sum of attention is multiplied with, chosen when the library runs. `slot`: the row's own; `rows`: of its unit.
WRONG_SUMS = {
    "beyond 600 slots": "slot >= 600",
    "between 600 and 1,000 slots, in single rows": "slot >= 600 && slot < 1000 && rows == 1",
    "between 600 and 1,000 slots, in prompts": "slot >= 600 && slot < 1000 && rows > 1",
    "beyond 1,500 slots": "slot >= 1500",
    "between 1,500 and 1,900 slots": "slot >= 1500 && slot < 1900",
    "at the end of the context": "slot >= 2040",
}
QUICK = ("-O1",)  # the bits are those of any other build
_HONEST = "(folded ? b.total_sums : b.sums)[i]"


def build_with_wrong_sums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library whose sums are right until the variable BATON_MUTANT names a line of the table, in the bodies that
    compute attention here and the one that they are compared with. It is sealed, and it names the honest sources."""
    digest, cpu = build.source_digest(), folder / "package" / "cpu"
    shutil.copytree(build.HERE / "cpu", cpu)
    lines = "".join(f"        case {number}: return {when};\n" for number, when in enumerate(WRONG_SUMS.values(), 1))
    text = (cpu / "attention.h").read_text()
    assert text.count(_HONEST) == 1
    wrong = (
        "static bool is_wrong(long slot, long rows) {\n"
        '    static const char* chosen = getenv("BATON_MUTANT");\n'
        f"    switch (chosen ? atoi(chosen) : 0) {{\n{lines}    }}\n"
        "    (void)slot, (void)rows;\n    return false;\n}\n"
    )
    text = text.replace(_HONEST, f"{_HONEST} * (is_wrong(first_slot + i / group, rows) ? 1.0001f : 1.0f)")
    text = text.replace("static void attention(", f"{wrong}\nstatic void attention(")
    (cpu / "wrong_attention.h").write_text(text.replace("#pragma once", "#pragma once\n#include <cstdlib>", 1))
    body = (cpu / "body.h").read_text()
    (cpu / "wrong_body.h").write_text(body.replace('"attention.h"', '"wrong_attention.h"'))
    bodies = {body for call, body in bk.chosen().items() if call.startswith("attention.")} | {"plain"}
    altered = [f"body_{body}.cpp" for body in bodies]
    for name in altered:
        file = cpu / name
        file.write_text(file.read_text().replace('"body.h"', '"wrong_body.h"'))
    with monkeypatch.context() as patched:
        patched.setattr(build, "HERE", folder / "package")
        patched.setattr(build, "LIGHT", dict.fromkeys(altered, QUICK) | build.LIGHT)
        patched.setattr(build, "source_digest", lambda: digest)
        return build.build(folder / "wrong.so", bodies=build.bodies_here())


def run_with(file: Path, code: str, *, mutant: int = 0) -> str:
    """Output of a process that loads this library and runs the code."""
    begin = "import pathlib, baton_kernels as bk\nfrom baton_kernels import library\n"
    begin += f"library._FILE = pathlib.Path({str(file)!r})\n"
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "BATON_MUTANT": str(mutant)},
        check=True,
    ).stdout.strip()
