"""The model's own chat template, rendered in a sandbox: chat messages become prompt text.

Step 1 of a request's life. Templates come with the model and messages with the request; neither may reach anything but
the values that the caller passes. A template sees the time only if the caller passes a clock."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mesh.errors import InvalidRequest

Now = Callable[[], datetime]


class TemplateFault(Exception):
    """Raised by `raise_exception` in a template."""


class ChatTemplate:
    def __init__(self, source: str, variables: Mapping[str, str], now: Now | None = None) -> None:
        """`variables`: bos_token and other special tokens. A broken source raises jinja2.TemplateSyntaxError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        if now is not None:
            environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self._template = environment.from_string(source)
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        field: str = "messages",
    ) -> str:
        """The prompt text. An error names `field`, the client's name for the messages."""
        variables = {"tools": None, "documents": None} | self._variables | dict(arguments or {})
        try:
            return self._template.render(
                variables | {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
            )
        except TemplateFault as error:
            raise InvalidRequest(field, f"the model's chat template refuses {field}: {error}") from error
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise InvalidRequest(field, f"the model's chat template cannot render {field}: {error}") from error


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
