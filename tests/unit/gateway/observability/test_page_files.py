"""The page's files: nothing from elsewhere, no markup from strings, no script or style outside files."""

import re
from pathlib import Path

import pytest

from gateway.observability.page_files import FOLDER, POLICY, read_page_files

MODULES = sorted(path.name for path in FOLDER.glob("*.js"))


def text_of(name: str) -> str:
    return (FOLDER / name).read_text()


def test_the_page_loads_only_files_that_exist() -> None:
    wanted = set(re.findall(r'(?:src|href)="/ui/([^"]+)"', text_of("index.html")))
    for name in MODULES:
        wanted |= set(re.findall(r'from "\./([^"]+)"', text_of(name)))
    assert "app.js" in wanted and wanted <= set(read_page_files())
    assert {name for name in read_page_files() if name != "index.html"} == wanted, "no file lies here unused"


@pytest.mark.parametrize("name", [*MODULES, "index.html", "style.css", "panels.css"])
def test_nothing_comes_from_another_site(name: str) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", re.sub(r"(?m)(^|\s)// .*$", "", text_of(name))))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a namespace, which nobody loads


def test_the_page_has_no_script_style_or_handler_of_its_own() -> None:
    page = text_of("index.html")
    assert all('src="' in tag for tag in re.findall(r"<script[^>]*>", page))
    assert "<style" not in page and not re.search(r"\s(?:style|on\w+)=", page)


FORBIDDEN = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc|DOMParser)"
)


@pytest.mark.parametrize("name", MODULES)
def test_no_module_makes_markup_or_code_of_a_string(name: str) -> None:
    assert FORBIDDEN.search(text_of(name)) is None


@pytest.mark.parametrize("text", ["x.innerHTML = y", "x.insertAdjacentHTML('beforeend', y)", "eval(y)"])
def test_negative_control_the_search_finds_such_a_module(text: str) -> None:
    assert FORBIDDEN.search(text)


def test_the_policy_allows_no_inline_script_and_no_other_site() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert {rules[kind] for kind in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in POLICY and "*" not in POLICY and rules["require-trusted-types-for"] == "'script'"


def test_a_module_is_of_readable_size() -> None:
    lengths = {name: len(text_of(name).splitlines()) for name in (*MODULES, "style.css", "panels.css")}
    assert max(lengths.values()) <= 300, lengths


def test_a_changed_file_has_another_etag(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    first = read_page_files(tmp_path)["a.js"]
    (tmp_path / "a.js").write_text("2")
    assert read_page_files(tmp_path)["a.js"].etag != first.etag
