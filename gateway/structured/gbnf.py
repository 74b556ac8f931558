"""Grammars in GBNF, llama.cpp's form, as Lark.

Step 1 of a request's life. Which of the two a text is, its operator says: GBNF alone writes `::=`."""

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from mesh.errors import InvalidRequest, brief

MOST_RULES = 512  # translating takes time that grows with their square
_RULE = re.compile(r"(?m)^[ \t]*[\w-]+[ \t]*::=")  # in one line: the search takes time in proportion to the text


def is_gbnf(text: str) -> bool:
    return _RULE.search(text) is not None


def lark_of(text: str, path: str) -> str:
    """The same grammar in Lark; its rule `root` becomes `start`."""
    rules = len(_RULE.findall(text))
    if rules > MOST_RULES:
        raise InvalidRequest(path, f"{path} has {rules} rules; in GBNF at most {MOST_RULES} are allowed")
    try:
        found: str = gbnf_to_lark(text)
    except RecursionError:
        raise InvalidRequest(path, f"{path} is nested too deeply") from None
    except Exception as error:  # the translator has no class for what is wrong with a grammar
        raise InvalidRequest(path, f"{path} is no GBNF: {brief(str(error))}") from None
    return found
