"""Chat messages to prompt text, by the model's own template in a sandbox.

Templates come with the model, messages with the request: neither may reach anything but the values handed in here. Time
is among those only if the caller hands in a clock."""

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
    """What `raise_exception` in a template raises."""


class ChatTemplate:
    def __init__(self, source: str, variables: Mapping[str, str], now: Now | None = None) -> None:
        """`variables`: bos_token and the like. jinja2.TemplateSyntaxError when the source is none."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        if now is not None:
            environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._template = environment.from_string(source)
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        variables = {"tools": None, "documents": None} | self._variables | dict(arguments or {})
        try:
            return self._template.render(
                variables | {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
            )
        except TemplateFault as error:
            raise InvalidRequest("messages", f"the model's chat template refuses them: {error}") from error
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise InvalidRequest("messages", f"the model's chat template cannot render them: {error}") from error


def _raise(message: str) -> NoReturn:
    raise TemplateFault(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
