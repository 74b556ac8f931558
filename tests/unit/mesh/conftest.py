"""A certificate authority of each test's own."""

from pathlib import Path

import pytest

from tests.unit.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")
