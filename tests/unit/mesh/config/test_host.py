"""How much memory a process may use: the machine's, or its container's limit."""

from pathlib import Path

import pytest

from mesh.config import host


@pytest.mark.parametrize(("text", "limit"), [("1048576\n", 1 << 20), ("max\n", None), (str(1 << 62), None)])
def test_a_container_limit_is_read_from_its_control_group(
    text: str, limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    file.write_text(text)
    monkeypatch.setattr(host, "_LIMITS", (str(tmp_path / "missing"), str(file)))
    assert host.container_limit_bytes() == limit


def test_the_smaller_of_machine_and_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "container_limit_bytes", lambda: None)
    physical = host.memory_bytes()
    assert physical > 0
    for limit, expected in ((physical // 2, physical // 2), (physical * 2, physical)):
        monkeypatch.setattr(host, "container_limit_bytes", lambda limit=limit: limit)
        assert host.memory_bytes() == expected
