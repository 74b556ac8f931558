"""One open model for all tests of the library."""

from collections.abc import Iterator

import pytest

from baton import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, speculation="off") as made:
        yield made
