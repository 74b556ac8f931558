"""Grammars in GBNF: they are followed like those in Lark, and wrong ones are refused."""

from pathlib import Path

import pytest

from engine.builtin.tokenizer import VOCAB, write_tokenizer
from gateway.structured.forms import parse_structured_outputs
from gateway.structured.gbnf import is_gbnf
from mesh.errors import InvalidRequest
from mesh.messages.grammar import Grammars
from tests.unit.gateway.structured.test_forms import NONE, follows


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 4096)
    definition = (Path(folder) / "tokenizer.json").read_text()
    return Grammars(lambda: definition, VOCAB)


GBNF = """# a list of numbers
root ::= item ("," ws item)*
item ::= "-"? [0-9]+ ("." [0-9]{1,2})?
ws ::= " "?
"""


@pytest.mark.parametrize("text", ["\n" * 200_000, "a" + "\n" * 200_000, "a \n" * 60_000 + ":"])
def test_a_long_text_is_searched_for_rules_of_gbnf_in_one_pass(text: str) -> None:
    """A search that takes the square of the length holds everything else up for minutes, and this test for good."""
    assert not is_gbnf(text)


def test_a_grammar_in_gbnf_is_followed(grammars: Grammars) -> None:
    form = parse_structured_outputs({"grammar": GBNF}, NONE)
    assert form is not None
    assert follows(grammars, form.whole, "12, -3.75,4") and not follows(grammars, form.whole, "12,, 3")
    assert not follows(grammars, form.whole, "1.234")


@pytest.mark.parametrize(
    ("grammar", "what"),
    [
        ("root ::= (", "no GBNF"),
        ('item ::= "a"', "no GBNF"),
        ("root ::= item", "no GBNF: Rule 'item' not found"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested too deeply"),
        ("".join(f'r{number} ::= "a"\n' for number in range(600)), "at most 512"),
    ],
)
def test_a_wrong_grammar_in_gbnf_is_refused(grammar: str, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        parse_structured_outputs({"grammar": grammar}, NONE)
