"""A configuration written as YAML reads back as itself, whatever its texts look like, and its notes are comments."""

from typing import Any

import pytest
import yaml

from cli.envoy.document import COLUMNS, Noted, plain, to_yaml

DOCUMENT: dict[str, Any] = {
    "node": {"id": "a/b", "cluster": "baton"},
    "empty": {},
    "none": [],
    "numbers": [1, 2.5, -3],
    "noted": Noted(
        "Why it is so. " * 20, {"inner": Noted("Because.", [Noted("First.", {"x": 1, "y": Noted("Y.", 2)})])}
    ),
    "items": [{"name": "one", "list": [{"deep": ["a", "b"]}]}, [{"k": "v" * 120}], "word"],
    "flag": True,
    "@type": "type.googleapis.com/envoy.x",
}


def test_what_is_written_reads_back_as_the_same_values() -> None:
    assert yaml.safe_load(to_yaml(DOCUMENT, "header\nin two lines")) == plain(DOCUMENT)


WORDS = "yes No on null ~ 1 1.5 0x10 1e5 {a} [a] @a * &a %a% a,b ends: 5s 0.25s 10.0.0.1 10.0.0.1:80 ::1 2026-01-01 ünï"
MORE = "!tag | > ? = << .5 _ 12:30:45 0o17 true 2s.5 - 'quoted' \"quoted\""


@pytest.mark.parametrize("text", [*WORDS.split(), *MORE.split(), "", "a: b", "a #b", "- a", " padded ", "line\nbreak"])
def test_every_text_stays_the_text_that_it_is(text: str) -> None:
    document = {"key": text, "list": [text], "flow": {"inner": {"deep": text}}, "keys": {text: 1}}
    assert yaml.safe_load(to_yaml(document, "")) == document


def test_notes_are_comments_above_their_values_and_lines_stay_short() -> None:
    lines = to_yaml({"a": Noted("Why.", 1), "b": [Noted("Item.", {"c": Noted("Long. " * 40, 2)})]}, "Header.").split(
        "\n"
    )
    assert lines[0] == "# Header." and lines[1:3] == ["# Why.", "a: 1"]
    assert lines[3:5] == ["b:", "# Item."] and lines[-2].strip() == "- c: 2"
    assert all(len(line) <= COLUMNS for line in lines)
