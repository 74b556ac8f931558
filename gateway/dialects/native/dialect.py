"""A dialect as a translation: its body becomes a completion request of the OpenAI API, and its answer is written anew.

Step 1 of a request's life over HTTP. So a dialect has every feature of `/v1/completions`, with the same checks and
limits. Errors name a field as the dialect spells it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import msgspec

from gateway.answers.answer import Answer
from gateway.dialects.openai.limits import check_limits
from gateway.dialects.openai.reply import Reply
from gateway.dialects.openai.request import HttpCaller, parse_completion
from gateway.dialects.openai.types import CompletionRequest
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import OpenReceipt
from gateway.validation.client_request import ClientRequest
from mesh.config.door_config import DoorConfig
from mesh.errors import ContextTooLong, InvalidRequest

Body = TypeVar("Body", bound=msgspec.Struct)
Names = Mapping[str, str]  # the dialect's spelling of a field, by that of the OpenAI API or of validation


@dataclass(frozen=True, slots=True)
class CompletionDialect(Generic[Body]):
    path: str
    body: type[Body]
    translate: Callable[[Body, list[str]], CompletionRequest]  # the list gets the names of fields without effect
    names: Callable[[Body], Names]
    reply: Callable[
        [Body, CompletionRequest, Sequence[tuple[ClientRequest, Answer]], Assets, int, OpenReceipt | None], Reply
    ]
    default_tokens: int | None = None  # tokens of an answer whose client names no number; None: what there is room for

    def check(self, body: Body, plain: CompletionRequest, limits: DoorConfig, context: int) -> None:
        """Raises where the request exceeds a limit that its body shows."""
        with _spelled(self.names(body)):
            check_limits(plain, limits, context)

    async def requests(
        self, body: Body, plain: CompletionRequest, assets: Assets, caller: HttpCaller, *, room: int
    ) -> list[ClientRequest]:
        """One request for each prompt. `room`: tokens that a prompt and its answer may have together."""
        names = self.names(body)
        with _spelled(names):
            requests = await parse_completion(plain, assets, caller)
        return [self._settled(request, names, room) for request in requests]

    def _settled(self, request: ClientRequest, names: Names, room: int) -> ClientRequest:
        own = {key: spelled_as(name, names) for key, name in request.field_names.items()}
        if request.max_tokens is None and self.default_tokens is not None:
            left = room - len(request.prompt)
            if left > 0:  # else validation refuses the prompt
                request = replace(request, max_tokens=min(self.default_tokens, left))
        return replace(request, field_names={**names, **own})


def spelled_as(field: str, names: Names) -> str:
    """The dialect's name of a field, or of a part of one: `a.b` and `a[0]` are parts of `a`."""
    for known in sorted(names, key=len, reverse=True):
        if field == known or field.startswith((f"{known}.", f"{known}[")):
            return names[known] + field[len(known) :]
    return field


@contextmanager
def _spelled(names: Names) -> Iterator[None]:
    """Errors that pass are spelled as the dialect spells its fields. A message about a field begins with its name."""
    try:
        yield
    except (InvalidRequest, ContextTooLong) as error:
        if error.field:
            own = spelled_as(error.field, names)
            at_start = error.message.startswith(error.field)
            error.message = own + error.message.removeprefix(error.field) if at_start else error.message
            error.field = own
        raise
