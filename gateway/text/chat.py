"""The model's own chat template, rendered in a sandbox: chat messages become prompt text.

Step 1 of a request's life. Templates come with the model and messages with the request; neither may reach anything but
the values that the caller passes. A template sees the time only if the caller passes a clock."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.text.jinja import RENDER_ERRORS, CompiledTemplate, Now, TemplateFault
from mesh.errors import InvalidRequest

__all__ = ["ChatTemplate", "Now"]

DEVELOPER = "developer"  # newer clients say so for system; few models have learned it
ROLES = ("system", DEVELOPER, "user", "assistant", "tool")  # every other role is one that the template must show


def template_variables(
    variables: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    arguments: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """All variables that a template sees. `variables`: bos_token and other special tokens."""
    values: dict[str, Any] = {"tools": None, "documents": None} | dict(variables) | dict(arguments or {})
    return values | {"messages": list(messages), "add_generation_prompt": add_generation_prompt}


class ChatTemplate:
    def __init__(self, source: str, variables: Mapping[str, str], now: Now | None = None) -> None:
        """`variables`: bos_token and other special tokens. A broken source raises jinja2.TemplateSyntaxError."""
        self.source = source
        self._compiled = CompiledTemplate(source, now)
        self._variables = dict(variables)

    def reads(self, variable: str) -> bool:
        """Whether the template reads this variable."""
        return variable in self._compiled.variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        field: str = "messages",
    ) -> str:
        """The prompt text. An error names `field`, the client's name for the messages."""
        try:
            return self._compiled.render(
                template_variables(self._variables, messages, add_generation_prompt, arguments)
            )
        except TemplateFault as error:
            raise InvalidRequest(field, f"the model's chat template refuses {field}: {error}") from error
        except RENDER_ERRORS as error:
            raise InvalidRequest(field, f"the model's chat template cannot render {field}: {error}") from error
