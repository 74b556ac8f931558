"""The manual names every setting and every command that exists."""

import re
from pathlib import Path

import pytest

from cli.main import COMMANDS
from mesh.settings import SECTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("key", sorted({key for keys in SECTIONS.values() for key in keys}))
def test_the_reference_has_a_row_for_every_key(key: str) -> None:
    assert f"\n| `{key}` |" in (ROOT / "docs/configuration.md").read_text()


def test_the_reference_has_no_row_for_a_key_that_is_gone() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE)
    assert set(rows) == {key for keys in SECTIONS.values() for key in keys}


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))])
def test_every_command_and_target_that_the_manual_shows_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`baton ([a-z]+)", text)) <= set(COMMANDS)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", ["README.md", "docs/model.md", "docs/chat.md", "engine/builtin/pair/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    lost = [link for link in links if not (ROOT / page).parent.joinpath(link).is_file()]
    assert links and not lost
