"""Writes a configuration file for a test."""

from pathlib import Path


def write(folder: Path, text: str) -> Path:
    file = folder / "baton.toml"
    file.write_text(text)
    return file
