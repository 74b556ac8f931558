"""Compiles the kernel library and its driver for aarch64, into `build/neon`; what is newer than its source stays."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from baton_kernels import build

COMPILER, EMULATOR, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
REMEDY = "apt-get install g++-aarch64-linux-gnu qemu-user"
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "neon"


@dataclass(frozen=True, slots=True)
class WrongSource:
    """A change of one source, which the comparison must notice."""

    file: str
    honest: str
    wrong: str
    compiled: tuple[str, ...]  # the sources that include the file


_LANES, _BODY = "lanes_neon.h", ("body_neon.cpp",)
_TREE = "vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d)"
_DOT = "vdotq_s32(vreinterpretq_s32_u32(x), as_bytes(y), as_bytes(z))"
_UNSIGNED_DOT = "vreinterpretq_s32_u32(vdotq_u32(x, vreinterpretq_u8_u32(y), vreinterpretq_u8_u32(z)))"
SABOTAGES = {
    "excess": WrongSource("quads.h", "kByteExcess = 0;", "kByteExcess = 1;", _BODY),
    "fused": WrongSource(_LANES, "OF_XYZ(vfmaq_f32)", "OF_XYZ(vmlaq_f32)", _BODY),
    "tree": WrongSource(_LANES, _TREE, _TREE.replace("x.c", "x.e").replace("x.b", "x.c").replace("x.e", "x.b"), _BODY),
    "nan": WrongSource(_LANES, "vbslq_f32(vcgtq_f32(x, y), x, y)", "vmaxnmq_f32(x, y)", _BODY),
    "sign": WrongSource(_LANES, _DOT, _UNSIGNED_DOT, _BODY),
    "denormals": WrongSource("processor_aarch64.h", "FloatMode{1} << 24", "FloatMode{0} << 24", ("pool.cpp",)),
}


def missing() -> str:
    """The tools that this machine lacks, with the remedy; empty if it has all."""
    lacking = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
    return f"{' and '.join(lacking)} not found: {REMEDY}" if lacking else ""


def driver() -> Path:
    """The program that calls the library for another process."""
    source, made = Path(__file__).parent / "driver.cpp", FOLDER / "driver"
    if not _fresh(made, [source]):
        FOLDER.mkdir(parents=True, exist_ok=True)
        build.run(
            [COMPILER, "-std=c++17", "-O1", "-rdynamic", "-Wall", "-Wextra", str(source), "-o", str(made), "-ldl"]
        )
    return made


def honest() -> Path:
    """The library of this checkout."""
    objects = []
    newest = [*(build.HERE / "cpu").iterdir(), Path(build.__file__)]
    for source in build.sources(build.BODIES_OF["aarch64"], "aarch64"):
        objects.append(FOLDER / f"{source.stem}.o")
        if not _fresh(objects[-1], newest):
            FOLDER.mkdir(parents=True, exist_ok=True)
            build.run(build.compile_command(COMPILER, source, objects[-1], "aarch64"))
    return _linked(objects, FOLDER / "honest.so")


def sabotaged(name: str) -> Path:
    """A library that differs from the honest one in one place."""
    change, folder = SABOTAGES[name], FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(build.HERE / "cpu", folder)
    text = (folder / change.file).read_text()
    if text.count(change.honest) != 1:
        raise build.BuildError(f"{change.file} does not have {change.honest!r} once")
    (folder / change.file).write_text(text.replace(change.honest, change.wrong))
    objects = []
    for source in build.sources(build.BODIES_OF["aarch64"], "aarch64"):
        objects.append(FOLDER / f"{source.stem}.o")
        if source.name in change.compiled:
            objects[-1] = folder / f"{source.stem}.o"
            build.run(build.compile_command(COMPILER, folder / source.name, objects[-1], "aarch64"))
    return _linked(objects, folder / "wrong.so")


def _linked(objects: list[Path], library: Path) -> Path:
    build.run([COMPILER, "-shared", "-pthread", *map(str, objects), "-o", str(library)])
    return library


def _fresh(made: Path, sources: list[Path]) -> bool:
    return made.exists() and made.stat().st_mtime > max(source.stat().st_mtime for source in sources)
