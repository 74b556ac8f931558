"""Which bodies a machine compiles for itself, and what a library without some of them says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import baton_kernels as bk
from baton_kernels import build, library

ZEN2 = "avx2 fma f16c"
SKYLAKE = f"{ZEN2} avx512f avx512bw avx512dq avx512vl avx512cd"
ZEN4 = f"{SKYLAKE} avx512_vnni avx512_bf16"
SAPPHIRE_RAPIDS = f"{ZEN4} amx_tile amx_bf16 amx_int8"


@pytest.mark.parametrize(
    ("flags", "bodies"),
    [
        (ZEN2, ("plain", "avx2")),
        (SKYLAKE, ("plain", "avx512")),
        (ZEN4, ("plain", "avx512", "avx512bf16", "avx512vnni")),
        (SAPPHIRE_RAPIDS, ("plain", "avx512", "avx512bf16", "avx512vnni", "amx")),
    ],
)
def test_a_machine_compiles_the_bodies_that_it_runs(flags: str, bodies: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags} sse\n\nprocessor\t: 1\n")
    assert build.bodies_here(tmp_path / "cpuinfo") == bodies


def test_an_unknown_processor_compiles_the_oldest_bodies(tmp_path: Path) -> None:
    assert build.bodies_here(tmp_path / "missing") == ("plain", "avx2")


@pytest.mark.parametrize(
    ("features", "bodies"),
    [("fp asimd evtstrm aes", ("plain",)), ("fp asimd asimdhp asimddp", ("plain", "neon"))],
)
def test_an_arm_machine_compiles_the_body_whose_instruction_it_has(
    features: str, bodies: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {features}\nCPU part\t: 0xd0c\n")
    assert build.bodies_here(tmp_path / "cpuinfo", "aarch64") == bodies


def test_each_machine_compiles_its_own_files_and_those_of_all() -> None:
    arm = {path.name for path in build.sources(build.BODIES_OF["aarch64"], "aarch64")}
    own = {path.name for path in build.sources(build.BODIES_OF["x86_64"], "x86_64")}
    everything = {path.name for path in (build.HERE / "cpu").glob("*.cpp")}
    assert arm | own == everything and {"pool.cpp", "body_plain.cpp"} <= arm & own
    assert arm - own == {"body_neon.cpp", "limits_aarch64.cpp", "machine_aarch64.cpp"}
    assert build.march("body_neon.cpp", "aarch64") != build.march("body_plain.cpp", "aarch64")


def test_every_body_has_a_source_and_leaving_some_out_keeps_the_rest() -> None:
    all_sources = {path.name for path in build.sources()}
    assert {f"body_{body}.cpp" for body in build.BODIES} <= all_sources
    few = {path.name for path in build.sources(("plain", "avx2"))}
    newer = ("avx512", "avx512bf16", "avx512vnni", "amx", "tiles")
    assert all_sources - few == {f"body_{body}.cpp" for body in newer}


def test_the_library_of_the_tests_has_every_body() -> None:
    assert build.built(build.LIBRARY) == build.BODIES
    assert bk.not_built() == ()
    assert tuple(dict.fromkeys(body for bodies in build.BODIES_OF.values() for body in bodies)) == library.BODIES
    assert build.BODIES_OF["aarch64"] == library.BODIES_OF_ARM


def said_about(folder: Path, line: str) -> str:
    """Output of a process that finds its library in `folder`."""
    code = (
        "import pathlib, baton_kernels as bk; from baton_kernels import library\n"
        f"library._FILE = pathlib.Path({str(folder / 'few.so')!r})\n{line}"
    )
    path = f"{Path(library.__file__).parents[1]}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path}, check=True
    ).stdout


def test_a_library_without_a_body_that_the_processor_runs_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bodies are empty but for their names, so that only the choice between them is compiled."""
    sources = tmp_path / "package" / "cpu"
    shutil.copytree(build.HERE / "cpu", sources)
    for body in build.BODIES:
        text = f'#define BODY {body}\n#include "empty.h"\n'
        (sources / f"body_{body}.cpp").write_text(text)
    (sources / "empty.h").write_text(
        '#include "calls.h"\n#define N2(b) #b\n#define N(b) N2(b)\n#define J2(a, b) a##b\n#define J(a, b) J2(a, b)\n'
        "namespace baton { extern const Body J(body_, BODY); const Body J(body_, BODY) = {N(BODY)}; }\n"
        'extern "C" __attribute__((visibility("default"))) const char J(baton_has_, BODY) = 1;\n'
    )
    monkeypatch.setattr(build, "HERE", sources.parent)
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))  # nothing of it computes
    here = build.bodies_here()
    whole = build.build(tmp_path / "few.so", bodies=here)
    assert build.built(whole) == tuple(body for body in build.BODIES if body in here)
    assert said_about(tmp_path, "print(bk.available())").strip() == ""
    left_out = [body for body in build.BODIES if body not in here]
    assert said_about(tmp_path, "print(*bk.not_built())").split() == left_out
    if left_out:
        refused = f"try: bk.choose({left_out[0]!r})\nexcept bk.KernelError as error: print(error)"
        assert "python -m baton_kernels.build" in said_about(tmp_path, refused)

    fewer = [body for body in here if body in ("plain", "avx2")]
    if fewer == list(here):
        return  # this processor runs no newer body
    monkeypatch.setattr(build.ctypes, "CDLL", lambda name: type("Library", (), {"baton_missing": lambda self: -1})())
    assert build.built(build.build(tmp_path / "few.so", bodies=fewer)) == ("plain",)
    words = said_about(tmp_path, "print(bk.available())")
    assert "this one's body 'avx512'" in words and "python -m baton_kernels.build" in words


def test_the_library_names_the_sources_that_it_was_compiled_from() -> None:
    assert library.sources() == build.source_digest(), "run `python -m baton_kernels.build`"
    assert library.file_digest() != library.sources()


def test_any_changed_source_or_flag_is_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(build.HERE / "cpu", tmp_path / "cpu")
    honest = build.source_digest()
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.source_digest() == honest, "the place does not matter"
    file = tmp_path / "cpu" / "rows.h"
    file.write_text(file.read_text().replace("0.", "0.0", 1) + "\n")
    changed = build.source_digest()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-ffast-math"))
    assert len({honest, changed, build.source_digest()}) == 3
