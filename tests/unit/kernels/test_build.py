"""Which bodies a machine compiles for itself, and what a library without some of them says."""

import shutil
import subprocess
import sys
from collections.abc import Callable
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


def test_a_file_is_compiled_again_when_it_what_it_includes_or_an_option_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()

    def recording(command: list[str], right: Callable[[list[str]], None] = build.run) -> None:
        ran.append(Path(command[-3]).name)
        right(command)

    monkeypatch.setattr(build, "run", recording)
    monkeypatch.setattr(build, "OBJECTS", tmp_path / "kept")
    one, two, near, far = (tmp_path / name for name in ("one.cpp", "two.cpp", "near.h", "far.h"))
    one.write_text('#include "near.h"\nint one() { return far; }\n')
    near.write_text('#pragma once\n#include "far.h"\n')
    far.write_text("constexpr int far = 1;\n")
    two.write_text("int two() { return 2; }\n")

    def built(version: str = "14.1") -> list[str]:
        ran.clear()
        for source in (one, two):
            assert build.compiled(build.compiler(), version, source).stat().st_size
        return list(ran)

    assert built() == ["one.cpp", "two.cpp"]
    assert built() == []
    far.write_text("constexpr int far = 2;\n")
    assert built() == ["one.cpp"]
    two.write_text("int two() { return 3; }\n")
    assert built() == ["two.cpp"]
    assert built("14.2") == ["one.cpp", "two.cpp"]
    monkeypatch.setitem(build.MARCH, "two.cpp", ("-O0",))
    assert built("14.2") == ["two.cpp"]
    monkeypatch.setattr(build, "KEPT", 2)
    build.forget_old_objects()
    assert built("14.2") == [], "those that were used last are kept"
    assert built("14.1") == ["one.cpp", "two.cpp"]


def test_a_file_that_does_not_compile_leaves_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "OBJECTS", tmp_path / "kept")
    (tmp_path / "wrong.cpp").write_text("int wrong( {\n")
    with pytest.raises(build.BuildError, match=r"wrong\.cpp"):
        build.compiled(build.compiler(), "14.1", tmp_path / "wrong.cpp")
    assert not list((tmp_path / "kept").glob("*.o"))


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
