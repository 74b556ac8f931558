"""An altered library serves nowhere: a changed byte is refused by the seal, and wrong sums under honest names are
refused by the known answers or have a fingerprint of their own. Honest libraries join, whatever built them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import baton_kernels as bk
from baton_kernels import build, library
from engine.builtin import tiny
from tests.unit.kernels.altered import WRONG_SUMS, build_with_wrong_sums, run_with

AVAILABLE = "print(bk.available())"


def changed(file: Path, at: int) -> bytes:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    return bytes(data)


def test_the_seals_of_the_build_and_the_package_are_one() -> None:
    assert build.SEAL == library.SEAL and build.sealed(build.LIBRARY)


def test_one_changed_byte_anywhere_breaks_the_seal() -> None:
    data = build.LIBRARY.read_bytes()
    assert library._is_sealed(data)
    places = {*range(0, len(data), 9973), *range(len(data) - 60, len(data))}
    for at in places:
        assert not library._is_sealed(changed(build.LIBRARY, at)), at
    for other in (data + b"x", data[:-1], data.rpartition(library.SEAL)[0], b""):
        assert not library._is_sealed(other)


def test_an_altered_library_is_refused_with_the_remedy_and_an_equal_copy_is_not(tmp_path: Path) -> None:
    honest, altered, bare = tmp_path / "honest.so", tmp_path / "altered.so", tmp_path / "bare.so"
    shutil.copy(build.LIBRARY, honest)
    altered.write_bytes(changed(honest, honest.stat().st_size // 2))
    bare.write_bytes(honest.read_bytes().rpartition(library.SEAL)[0])
    assert run_with(honest, AVAILABLE) == ""
    for file in (altered, bare):
        words = run_with(file, AVAILABLE)
        assert "were altered after they were built" in words and "python -m baton_kernels.build" in words


def test_an_altered_library_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "altered.so"
    shutil.copy(build.LIBRARY, file)
    monkeypatch.setattr(build, "LIBRARY", file)
    assert build.up_to_date()
    file.write_bytes(changed(file, 100_000))
    assert not build.up_to_date()


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        yield build_with_wrong_sums(tmp_path_factory.mktemp("wrong"), patch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model") / "model", "qwen2", dtype="bf16", vocab=300, context=2048)


TRUSTING = "from baton_kernels import selftest\nselftest.KNOWN = {'pairs': selftest._run('pairs')}\n"
SHORT = (
    "from engine.selftest import run as parts\nparts.lengths = lambda weights, page_tokens: iter(())\n"
    "from baton_kernels import selftest\nselftest.lengths = lambda path: []\n"
)


def identity(file: Path, folder: Path, *, mutant: int = 0, before: str = "", quantize: str = "") -> str:
    """The pairing of a worker with this library, or why it does not start. `before` runs first: TRUSTING takes
    for known answers whatever the library computes, SHORT leaves long texts out."""
    model = f"open_weights(pathlib.Path({str(folder)!r}), pathlib.Path({str(folder.parent)!r}), quantize={quantize!r})"
    return run_with(
        file,
        "from engine.selftest.identity import identify\nfrom engine.model.weights import open_weights\n"
        f"{before}try: print(identify({model}, 16).pairing)\nexcept bk.KernelError as error: print('refused:', error)",
        mutant=mutant,
    )


def test_another_build_of_right_kernels_joins(wrong: Path, folder: Path) -> None:
    """Other bytes, equal sources, equal bits: so two compilers share a class. It is the control of the next test."""
    assert wrong.read_bytes() != build.LIBRARY.read_bytes()
    assert identity(wrong, folder) == identity(build.LIBRARY, folder)


@pytest.mark.parametrize("name", WRONG_SUMS)
def test_wrong_sums_under_honest_names_join_no_honest_mesh(name: str, wrong: Path, folder: Path) -> None:
    mutant = 1 + list(WRONG_SUMS).index(name)
    assert identity(wrong, folder, mutant=mutant, before=TRUSTING) != identity(build.LIBRARY, folder)


def test_without_known_answers_and_lengths_wrong_sums_join(wrong: Path, folder: Path) -> None:
    mutant = 1 + list(WRONG_SUMS).index("between 600 and 1,000 slots, in single rows")
    honest = identity(wrong, folder, before=SHORT + TRUSTING)
    assert identity(wrong, folder, mutant=mutant, before=SHORT + TRUSTING) == honest


def test_a_mesh_of_wrong_libraries_alone_does_not_start_either(wrong: Path, folder: Path) -> None:
    assert "a right library gives" in identity(wrong, folder, mutant=1)


def test_a_file_compiled_with_fused_operations_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCC fuses a product and a sum, even of intrinsics, unless it is told not to. The body of integer products is
    compiled so here; it bears the honest digest, and only its bits can give it away."""
    digest, body = build.source_digest(), f"body_{bk.chosen()['product.integers.many']}.cpp"
    monkeypatch.setattr(build, "source_digest", lambda: digest)
    monkeypatch.setitem(build.MARCH, body, (*build.march(body), "-O2", "-ffp-contract=fast"))
    fused = build.build(tmp_path / "fused.so", bodies=build.bodies_here())
    assert "path 'integers' failed" in identity(fused, folder, quantize="int8")
    assert not identity(build.LIBRARY, folder, quantize="int8").startswith("refused:")
