"""The wheel's tag promises no more systems than the library's symbols allow."""

from pathlib import Path

import pytest

from baton_kernels import build, manylinux
from baton_kernels.manylinux import NotPortable, tag_for


@pytest.mark.parametrize(
    ("needed", "tag"),
    [
        ({"libc.so.6": {"GLIBC_2.2.5", "GLIBC_2.14"}}, "manylinux_2_17_x86_64"),
        ({"libc.so.6": {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.9"}}, "manylinux_2_34_x86_64"),
        ({"libc.so.6": {"GLIBC_2.2.5"}, "libm.so.6": {"GLIBC_2.29"}}, "manylinux_2_29_x86_64"),
        ({"libstdc++.so.6": {"GLIBCXX_3.4.30", "CXXABI_1.3"}}, "manylinux_2_35_x86_64"),
        ({"libstdc++.so.6": {"GLIBCXX_3.4"}, "libgcc_s.so.1": {"GCC_3.0"}}, "manylinux_2_17_x86_64"),
        ({}, "manylinux_2_17_x86_64"),
    ],
)
def test_the_newest_symbol_decides(needed: dict[str, set[str]], tag: str) -> None:
    assert tag_for(needed) == tag
    assert tag_for(needed, "aarch64") == tag.replace("x86_64", "aarch64")


@pytest.mark.parametrize(
    ("needed", "what"),
    [
        ({"libgomp.so.1": {"GOMP_4.0"}}, "libgomp.so.1"),
        ({"libstdc++.so.6": {"GLIBCXX_3.4.99"}}, "GLIBCXX_3.4.99"),
        ({"libc.so.6": {"GLIBC_PRIVATE"}}, "GLIBC_PRIVATE"),
        ({"libc.so.6": {"GLIBC_ABI_DT_RELR"}}, "GLIBC_ABI_DT_RELR"),
    ],
)
def test_what_not_every_system_has_bears_no_tag(needed: dict[str, set[str]], what: str) -> None:
    with pytest.raises(NotPortable, match=what):
        tag_for(needed)


def test_the_library_needs_nothing_but_the_systems_libraries() -> None:
    needed = manylinux.needs(build.LIBRARY)
    assert "libc.so.6" in needed and set(needed) <= manylinux.SYSTEM
    assert any(version.startswith("GLIBC_2.") for version in needed["libc.so.6"])
    assert manylinux.tag(build.LIBRARY).startswith("manylinux_2_")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "arm.so").write_bytes(b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\0" + bytes(100))
    assert manylinux.machine_of(tmp_path / "arm.so") == "aarch64"
    (tmp_path / "x.so").write_bytes(b"\x7fELF\x01" + bytes(100))
    with pytest.raises(NotPortable, match="no ELF file for x86-64 or aarch64"):
        manylinux.tag(tmp_path / "x.so")
