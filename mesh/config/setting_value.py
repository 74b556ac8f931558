"""One value of the configuration with its source, as `mesh/config/settings.py` collects them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = ""  # the section of keys at top level


@dataclass(frozen=True, slots=True)
class SettingValue:
    section: str
    key: str
    raw: Any  # environment and command line: a string
    origin: str  # the source, for error messages
    folder: Path  # where a relative path starts
    rank: int  # rank of the source; the highest wins
