"""Every endpoint of the HTTP API with its types: the table that `/openapi.json` and `/docs` are made of.

A new endpoint is one row here. A gateway describes those that it serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.dialects.anthropic.types import MessagesCountRequest, MessagesRequest
from gateway.dialects.debug_pages import DEFAULT_LIMIT, MOST
from gateway.dialects.native.answers import (
    DetokenizeAnswer,
    SglangAnswer,
    TokenAnswer,
    TokenChunk,
    TokenizeAnswer,
    TokenizerInfo,
)
from gateway.dialects.native.types import DetokenizeBody, SglangBody, TokenGenerateBody, TokenizeBody
from gateway.dialects.openai.types import ChatRequest, CompletionRequest, EmbeddingRequest
from gateway.dialects.reference.answers import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    CompletionChunk,
    EmbeddingAnswer,
    ErrorAnswer,
)
from gateway.dialects.reference.messages import CountAnswer, MessageAnswer, MessageErrorAnswer, MessageEvent
from gateway.dialects.reference.pages import (
    HealthAnswer,
    LastRequests,
    LoadAnswer,
    ModelCard,
    ModelCards,
    PagesAnswer,
    RequestSummary,
    VersionAnswer,
)
from gateway.dialects.reference.receipts import ReceiptKey, SignedReceipt
from gateway.dialects.reference.responses import ResponseAnswer, ResponseEvent
from gateway.dialects.responses.types import ResponsesRequest
from mesh.sessions.page_reports import MOST_LISTED

TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Operation:
    path: str  # as OpenAPI writes it: parameters in braces
    summary: str
    answer: Any  # msgspec type of the answer with status 200; TEXT: it is a text
    body: Any = None  # msgspec type of the request's body; None: a GET without any
    needs: tuple[str, ...] = ()  # fields of the body that must be there
    either: tuple[str, ...] = ()  # fields of the body of which exactly one must be there
    event: Any = None  # msgspec type of an event's data, where the client may ask for a stream
    also: Mapping[int, Any] = field(default_factory=dict)  # types of answers with other statuses that are no errors
    query: Mapping[str, Any] = field(default_factory=dict)  # parameters behind the path: name -> JSON schema
    done: bool = True  # a stream ends with the event [DONE]
    error: Any = ErrorAnswer  # msgspec type of an error, as a whole answer and as the data of an event
    unknown: str = ""  # reason of the 404 where the path or a parameter names a thing that is not there

    @property
    def method(self) -> str:
        return "get" if self.body is None else "post"


OPERATIONS = (
    Operation(
        "/v1/chat/completions",
        "The next message of a chat",
        ChatAnswer,
        body=ChatRequest,
        needs=("messages",),
        event=ChatChunk,
    ),
    Operation(
        "/v1/completions",
        "The text that follows one prompt or several",
        CompletionAnswer,
        body=CompletionRequest,
        needs=("prompt",),
        event=CompletionChunk,
    ),
    Operation(
        "/v1/embeddings", "Vectors of texts or token ids", EmbeddingAnswer, body=EmbeddingRequest, needs=("input",)
    ),
    Operation(
        "/v1/responses",
        "The next items of a conversation",
        ResponseAnswer,
        body=ResponsesRequest,
        needs=("input",),
        event=ResponseEvent,
    ),
    Operation(
        "/v1/messages",
        "The next message of a conversation, in Anthropic's dialect",
        MessageAnswer,
        body=MessagesRequest,
        needs=("messages",),
        event=MessageEvent,
        done=False,
        error=MessageErrorAnswer,
    ),
    Operation(
        "/v1/messages/count_tokens",
        "The number of tokens of the prompt that a message's request makes",
        CountAnswer,
        body=MessagesCountRequest,
        needs=("messages",),
        error=MessageErrorAnswer,
    ),
    Operation("/v1/receipts/key", "The public key that signs receipts", ReceiptKey, unknown="NOT_FOUND"),
    Operation("/v1/receipts/{id}", "The signed receipt of an answer", SignedReceipt, unknown="NOT_FOUND"),
    Operation("/v1/models", "The served models", ModelCards),
    Operation("/v1/models/{name}", "One served model", ModelCard, unknown="UNKNOWN_MODEL"),
    Operation(
        "/tokenize",
        "The token ids of a prompt or of a chat",
        TokenizeAnswer,
        body=TokenizeBody,
        either=("prompt", "messages"),
    ),
    Operation("/detokenize", "The text of token ids", DetokenizeAnswer, body=DetokenizeBody, needs=("tokens",)),
    Operation(
        "/tokenizer_info",
        "The model's tokenizer_config.json with its chat template",
        TokenizerInfo,
        query={"model": {"type": "string", "description": "where several are served"}},
        unknown="UNKNOWN_MODEL",
    ),
    Operation(
        "/inference/v1/generate",
        "The token ids that follow token ids, in vLLM's dialect",
        TokenAnswer,
        body=TokenGenerateBody,
        needs=("token_ids",),
        event=TokenChunk,
    ),
    Operation(
        "/generate",
        "The text that follows a text or token ids, in SGLang's dialect",
        SglangAnswer | list[SglangAnswer],
        body=SglangBody,
        either=("text", "input_ids"),
        event=SglangAnswer,
    ),
    Operation("/health", "Whether a request can be served", HealthAnswer, also={503: HealthAnswer}),
    Operation("/v1/health", "The same under another path", HealthAnswer, also={503: HealthAnswer}),
    Operation("/load", "The number of choices that run and that wait", LoadAnswer),
    Operation("/version", "The gateway's version", VersionAnswer),
    Operation("/metrics", "The metrics of the whole mesh for Prometheus", TEXT),
    Operation(
        "/debug/requests",
        "The last requests, the newest first",
        LastRequests,
        query={"limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT_LIMIT}},
    ),
    Operation(
        "/debug/requests/{request_id}",
        "One of the last requests with its spans",
        RequestSummary,
        query={"trace_id": {"type": "string", "description": "of one request, where several share the id"}},
        unknown="UNKNOWN_REQUEST",
    ),
    Operation(
        "/debug/pages",
        "Who holds the pages of every worker",
        PagesAnswer,
        query={
            "worker": {"type": "string", "description": "name, address or id of one worker"},
            "first": {"type": "integer", "minimum": 0, "default": 0},
            "count": {"type": "integer", "minimum": 0, "maximum": MOST_LISTED, "default": 0},
        },
    ),
)
