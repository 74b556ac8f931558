"""A digest that cannot be remembered, as on a full disk, is computed again at the next start and ends nothing."""

import errno
import logging
from pathlib import Path

import pytest

from engine.model.digest import remembered


def test_a_digest_that_cannot_be_kept_is_given_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tmp_path / "weights"
    weights.write_text("w")
    computed = list[str]()

    def compute() -> str:
        computed.append("again")
        return "d" * 64

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(Path, "write_text", full)
        assert remembered([weights], tmp_path, "test", compute) == "d" * 64
    assert "No space left on device" in caplog.text
    assert remembered([weights], tmp_path, "test", compute) == remembered([weights], tmp_path, "test", compute)
    assert len(computed) == 2, "once it is kept, it is not computed again"
