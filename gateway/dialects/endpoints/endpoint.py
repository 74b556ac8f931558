"""The columns of the table of endpoints (gateway/dialects/endpoints/table.py): what one endpoint is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gateway.dialects.described.answers import ErrorAnswer
from gateway.dialects.described.messages import MessageErrorAnswer
from gateway.dialects.described.ollama import OllamaErrorAnswer
from gateway.tenants.tenants import Work

TEXT, BYTES = "text/plain", "application/octet-stream"  # answers that are no JSON


class ApiDialect(Enum):
    """How an endpoint spells errors, the end of a stream and signs of life."""

    OPENAI = "openai"
    RESPONSES = "responses"
    MESSAGES = "messages"  # Anthropic's
    OLLAMA = "ollama"


class Merged(Enum):
    """How the answers of a gateway's processes become one."""

    FIRST = "first"  # the one that knows the thing
    HEALTH = "health"
    LOAD = "load"
    METRICS = "metrics"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    path: str  # parameters in braces; those that may hold slashes say `:path`
    summary: str = ""  # empty: it is no part of the API's description
    answer: Any = None  # msgspec type of the answer with status 200; TEXT: it is a text
    body: Any = None  # msgspec type of the request's body; None: it has none
    form: bool = False  # the body is a form with files, and no JSON
    verb: str = ""  # the HTTP method; empty: POST with a body, GET without
    needs: tuple[str, ...] = ()  # fields of the body that must be there
    either: tuple[str, ...] = ()  # fields of the body of which exactly one must be there
    event: Any = None  # msgspec type of an event's data, where the client may ask for a stream
    work: Work = Work.LOOKS  # whose limits a call counts against, and what its caller needs
    operation: str = ""  # what traces and metrics call it, where tokens are computed
    dialect: ApiDialect = ApiDialect.OPENAI
    merged: Merged | None = None  # None: the process that is asked answers for itself
    also: Mapping[int, Any] = field(default_factory=dict)  # types of answers with other statuses that are no errors
    query: Mapping[str, Any] = field(default_factory=dict)  # parameters behind the path: name -> JSON schema
    unknown: str = ""  # reason of the 404 where the path or a parameter names a thing that is not there

    @property
    def method(self) -> str:
        return self.verb or ("get" if self.body is None else "post")

    @property
    def route(self) -> str:
        """The name by which a handler is found for the row."""
        return f"{self.method.upper()} {self.path}"

    @property
    def described_path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")

    @property
    def error(self) -> Any:
        """msgspec type of an error, as a whole answer and as the data of an event."""
        kinds = {ApiDialect.MESSAGES: MessageErrorAnswer, ApiDialect.OLLAMA: OllamaErrorAnswer}
        return kinds.get(self.dialect, ErrorAnswer)

    @property
    def done(self) -> bool:
        """Whether a stream ends with the event [DONE]."""
        return self.dialect not in (ApiDialect.MESSAGES, ApiDialect.OLLAMA)

    @property
    def lines(self) -> bool:
        """Whether a stream is lines of JSON, and no server-sent events."""
        return self.dialect is ApiDialect.OLLAMA
