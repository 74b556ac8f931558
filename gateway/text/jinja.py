"""The sandbox in which chat templates render: what a template can name, and nothing else.

It renders as transformers renders, which the tests compare. gateway/text/chat.py renders the model's own templates with
it; gateway/text/template_process.py renders a client's, so this file imports little."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Now = Callable[[], datetime]


class TemplateFault(Exception):
    """Raised by `raise_exception` in a template."""


# What rendering a template raises: faults of the template, or of values that do not fit it.
RENDER_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)


class CompiledTemplate:
    def __init__(self, source: str, now: Now | None = None) -> None:
        """A broken source raises jinja2.TemplateSyntaxError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        if now is not None:
            environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self.render: Callable[[Mapping[str, Any]], str] = environment.from_string(source).render
        self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))


def _raise(message: str) -> NoReturn:
    raise TemplateFault(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, because jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; serving ignores the mark."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
