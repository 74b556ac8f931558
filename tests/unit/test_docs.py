"""The manual names every setting and every command that exists."""

import re
from pathlib import Path

import pytest

from cli.main import COMMANDS
from mesh.config.settings import SECTIONS
from tests.unit.sources import files

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


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/architecture.md",
        "docs/protocol.md",
        "docs/model.md",
        "docs/chat.md",
        "engine/builtin/pair/README.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    lost = [link for link in links if not (ROOT / page).parent.joinpath(link).is_file()]
    assert links and not lost


def test_no_text_installs_a_package_of_a_registry_under_our_name() -> None:
    """Baton is not on PyPI: the package of that name there is a stranger's."""
    kinds = (".md", ".py", ".sh", ".toml", "Makefile", "Dockerfile")
    texts = [path for path in files() if path.endswith(kinds)]
    wrong = re.compile(r"pip install (?:-\S+ )*['\"]?baton\b")
    assert texts and [path for path in texts if wrong.search((ROOT / path).read_text())] == []
    assert wrong.search("pip install 'ba" + "ton[serve]'") and wrong.search("pip install -U ba" + "ton")


# ---- the reading path

MOST_FILES, MOST_LINES = 13, 2700


def reading_path(text: str) -> list[str]:
    """Files of the paragraph that begins with `Reading path:`, in their order."""
    (paragraph,) = re.findall(r"^Reading path:.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"`([\w/.]+)`", paragraph)


def step_files(text: str) -> list[str]:
    """Files that the table of a request's life names as the place of a step, in the order of the steps."""
    rows = re.findall(r"^\| \d \w.*$", text, re.MULTILINE)
    return [file for row in rows for file in re.findall(r"`([\w/]+\.py): ", row)]


def test_the_reading_path_is_short_and_begins_with_the_protocol() -> None:
    path = reading_path((ROOT / "docs/architecture.md").read_text())
    lines = {file: len((ROOT / file).read_text().splitlines()) for file in path}
    assert path[0] == "docs/protocol.md"
    assert len(path) == len(set(path)) <= MOST_FILES
    assert sum(lines.values()) <= MOST_LINES, lines


def test_the_reading_path_holds_every_place_of_a_step_in_the_order_of_the_steps() -> None:
    path = reading_path((ROOT / "docs/architecture.md").read_text())
    places = list(dict.fromkeys(step_files((ROOT / "docs/protocol.md").read_text())))
    assert len(re.findall(r"^\| [1-9] \w", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE)) == 9
    assert set(places) <= set(path)
    assert [file for file in path if file in places] == places


def test_the_path_and_the_places_are_read_from_the_text() -> None:
    assert reading_path("One.\n\nReading path: `a/b.md`,\n`c.py`. More.\n\n`d.py`\n") == ["a/b.md", "c.py"]
    assert step_files("| 1 accept | by `x.py` | `a.py: f`, `b/c.py: G.h` |\n| other | `d.py: f` |") == [
        "a.py",
        "b/c.py",
    ]
