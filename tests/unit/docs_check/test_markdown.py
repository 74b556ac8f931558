"""What the checker of the manual reads from a page."""

import pytest

from tests.docs_check.markdown import commands, parse_page

PAGE = """# Title
<!-- check: mesh -->

```toml
model = "a"
```

<!-- check: skip, it needs a cluster -->
```sh
kubectl get pods
```

<!-- check: skip "make test", it takes minutes -->
<!-- check: prints "fine" -->
```sh
echo fine
make test   # long
```

* in a list

  <!-- check: before import os -->
  ```python
  print(os.getcwd())
  ```

<!-- check: background until "ready at" -->
```sh
baton up
```
"""


def test_a_page_has_the_blocks_that_can_be_run_with_what_their_comments_say() -> None:
    page = parse_page("docs/a.md", PAGE)
    skipped, short, python, background = page.blocks
    assert page.mesh and not page.errors
    assert (skipped.line, skipped.skip) == (10, "it needs a cluster")
    assert (short.line, short.prints, short.text) == (16, ["fine"], "echo fine\n\n")
    assert [(left.line, left.what, left.reason) for left in short.left_out] == [
        (17, "make test   # long", "it takes minutes")
    ]
    assert (python.language, python.text, python.before) == ("python", "print(os.getcwd())\n", "import os")
    assert background.ready == "ready at"


@pytest.mark.parametrize(
    ("comment", "what"),
    [
        ("skip", "does not know 'skip'"),
        ("skip,", "does not know 'skip,'"),
        ("background", "does not know 'background'"),
        ("later", "does not know 'later'"),
        ('skip "make none", why', "no line of the block begins with 'make none'"),
    ],
)
def test_a_comment_that_is_not_understood_is_an_error_with_its_line(comment: str, what: str) -> None:
    page = parse_page("docs/a.md", f"text\n<!-- check: {comment} -->\n```sh\ntrue\n```\n")
    ((line, found),) = page.errors
    assert line == 2 and what in found


@pytest.mark.parametrize("rest", ["", "```toml\na = 1\n```\n"])
def test_a_comment_without_a_block_that_is_run_is_an_error(rest: str) -> None:
    assert [line for line, _ in parse_page("docs/a.md", f"<!-- check: skip, why -->\n{rest}").errors] == [1]


def test_a_command_over_several_lines_counts_once() -> None:
    (block,) = parse_page("a.md", "```sh\n# why\ncurl a \\\n  -d b\n\necho c\n```\n").blocks
    assert commands(block) == 2
