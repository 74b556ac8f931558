"""Every endpoint of the HTTP API: what it is called, who may call it, what it reads and what it answers.

A new endpoint is one row here and one handler. Routes, keys and limits, headers, CORS, the pages that speak for all
processes, errors in the right dialect, `/openapi.json` and `/docs` follow from the row."""

from gateway.dialects.anthropic.types import MessagesCountRequest, MessagesRequest
from gateway.dialects.described.answers import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    CompletionChunk,
    EmbeddingAnswer,
)
from gateway.dialects.described.messages import CountAnswer, MessageAnswer, MessageEvent
from gateway.dialects.described.native import (
    DetokenizeAnswer,
    SglangAnswer,
    TokenAnswer,
    TokenChunk,
    TokenizeAnswer,
    TokenizerInfo,
)
from gateway.dialects.described.ollama import (
    OllamaChatAnswer,
    OllamaEmbedAnswer,
    OllamaModel,
    OllamaRunningModels,
    OllamaTags,
    OllamaTextAnswer,
    OllamaVersion,
)
from gateway.dialects.described.pages import (
    HealthAnswer,
    LastRequests,
    LoadAnswer,
    ModelCard,
    ModelCards,
    PagesAnswer,
    RequestSummary,
    ServerInfo,
    ServerProps,
    ServerSlot,
    VersionAnswer,
)
from gateway.dialects.described.receipts import ReceiptKey, SignedReceipt
from gateway.dialects.described.relevance import RerankAnswer, RerankRequest, ScoreAnswer, ScoreRequest
from gateway.dialects.described.responses import ResponseAnswer, ResponseEvent
from gateway.dialects.endpoints.adapter_orders import ADAPTER_ORDERS
from gateway.dialects.endpoints.endpoint import TEXT, ApiDialect, ApiEndpoint, Merged
from gateway.dialects.endpoints.kept import KEPT
from gateway.dialects.native.types import DetokenizeBody, SglangBody, TokenGenerateBody, TokenizeBody
from gateway.dialects.ollama.types import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from gateway.dialects.openai.types import ChatRequest, CompletionRequest, EmbeddingRequest
from gateway.dialects.responses.types import ResponsesRequest
from gateway.tenants.tenants import Work
from mesh.sessions.page_reports import MOST_LISTED
from mesh.telemetry import semconv

DEFAULT_LIMIT, MOST = 50, 512  # requests of /debug/requests


ENDPOINTS = (
    ApiEndpoint(
        "/v1/chat/completions",
        "The next message of a chat",
        ChatAnswer,
        body=ChatRequest,
        needs=("messages",),
        event=ChatChunk,
        work=Work.GENERATES,
        operation=semconv.CHAT,
    ),
    ApiEndpoint(
        "/v1/completions",
        "The text that follows one prompt or several",
        CompletionAnswer,
        body=CompletionRequest,
        needs=("prompt",),
        event=CompletionChunk,
        work=Work.GENERATES,
        operation=semconv.TEXT_COMPLETION,
    ),
    ApiEndpoint(
        "/v1/embeddings",
        "Vectors of texts or token ids",
        EmbeddingAnswer,
        body=EmbeddingRequest,
        either=("input", "messages"),
        work=Work.GENERATES,
        operation=semconv.EMBEDDINGS,
    ),
    *(
        ApiEndpoint(
            path,
            "Documents by how relevant they are for a query",
            RerankAnswer,
            body=RerankRequest,
            needs=("query", "documents"),
            work=Work.GENERATES,
            operation=semconv.TEXT_COMPLETION,
        )
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ),
    *(
        ApiEndpoint(
            path,
            "How relevant texts are for each other, pair by pair",
            ScoreAnswer,
            body=ScoreRequest,
            needs=("text_1", "text_2"),
            work=Work.GENERATES,
            operation=semconv.TEXT_COMPLETION,
        )
        for path in ("/v1/score", "/score")
    ),
    ApiEndpoint(
        "/v1/responses",
        "The next items of a conversation",
        ResponseAnswer,
        body=ResponsesRequest,
        needs=("input",),
        event=ResponseEvent,
        work=Work.GENERATES,
        operation=semconv.CHAT,
        dialect=ApiDialect.RESPONSES,
    ),
    ApiEndpoint(
        "/v1/messages",
        "The next message of a conversation, in Anthropic's dialect",
        MessageAnswer,
        body=MessagesRequest,
        needs=("messages",),
        event=MessageEvent,
        dialect=ApiDialect.MESSAGES,
        work=Work.GENERATES,
        operation=semconv.CHAT,
    ),
    ApiEndpoint(
        "/v1/messages/count_tokens",
        "The number of tokens of the prompt that a message's request makes",
        CountAnswer,
        body=MessagesCountRequest,
        needs=("messages",),
        dialect=ApiDialect.MESSAGES,
        work=Work.COMPUTES,
        operation=semconv.CHAT,
    ),
    *KEPT,
    ApiEndpoint("/v1/receipts/key", "The public key that signs receipts", ReceiptKey, unknown="NOT_FOUND"),
    ApiEndpoint("/v1/receipts/{id}", "The signed receipt of an answer", SignedReceipt, unknown="NOT_FOUND"),
    ApiEndpoint("/v1/models", "The served models", ModelCards),
    ApiEndpoint("/v1/models/{name:path}", "One served model", ModelCard, unknown="UNKNOWN_MODEL"),
    *ADAPTER_ORDERS,
    ApiEndpoint(
        "/tokenize",
        "The token ids of a prompt or of a chat",
        TokenizeAnswer,
        body=TokenizeBody,
        either=("prompt", "messages"),
        work=Work.COMPUTES,
    ),
    ApiEndpoint(
        "/detokenize",
        "The text of token ids",
        DetokenizeAnswer,
        body=DetokenizeBody,
        needs=("tokens",),
        work=Work.COMPUTES,
    ),
    ApiEndpoint(
        "/tokenizer_info",
        "The model's tokenizer_config.json with its chat template",
        TokenizerInfo,
        query={"model": {"type": "string", "description": "where several are served"}},
        unknown="UNKNOWN_MODEL",
    ),
    ApiEndpoint(
        "/inference/v1/generate",
        "The token ids that follow token ids, in vLLM's dialect",
        TokenAnswer,
        body=TokenGenerateBody,
        needs=("token_ids",),
        event=TokenChunk,
        work=Work.GENERATES,
        operation=semconv.TEXT_COMPLETION,
    ),
    ApiEndpoint(
        "/generate",
        "The text that follows a text or token ids, in SGLang's dialect",
        SglangAnswer | list[SglangAnswer],
        body=SglangBody,
        either=("text", "input_ids"),
        event=SglangAnswer,
        work=Work.GENERATES,
        operation=semconv.TEXT_COMPLETION,
    ),
    ApiEndpoint(
        "/api/chat",
        "The next message of a chat, in Ollama's dialect",
        OllamaChatAnswer,
        body=OllamaChatRequest,
        event=OllamaChatAnswer,
        dialect=ApiDialect.OLLAMA,
        work=Work.GENERATES,
        operation=semconv.CHAT,
    ),
    ApiEndpoint(
        "/api/generate",
        "The answer to a prompt, in Ollama's dialect",
        OllamaTextAnswer,
        body=OllamaGenerateRequest,
        event=OllamaTextAnswer,
        dialect=ApiDialect.OLLAMA,
        work=Work.GENERATES,
        operation=semconv.CHAT,
    ),
    ApiEndpoint(
        "/api/embed",
        "Vectors of texts, in Ollama's dialect",
        OllamaEmbedAnswer,
        body=OllamaEmbedRequest,
        dialect=ApiDialect.OLLAMA,
        work=Work.GENERATES,
        operation=semconv.EMBEDDINGS,
    ),
    ApiEndpoint(
        "/api/show",
        "One served model, in Ollama's dialect",
        OllamaModel,
        body=OllamaShowRequest,
        dialect=ApiDialect.OLLAMA,
        work=Work.COMPUTES,
    ),
    ApiEndpoint("/api/tags", "The served models, in Ollama's dialect", OllamaTags, dialect=ApiDialect.OLLAMA),
    ApiEndpoint("/api/ps", "The models that can answer now", OllamaRunningModels, dialect=ApiDialect.OLLAMA),
    ApiEndpoint("/api/version", "The version of Ollama's API", OllamaVersion, dialect=ApiDialect.OLLAMA),
    ApiEndpoint(
        "/health", "Whether a request can be served", HealthAnswer, also={503: HealthAnswer}, merged=Merged.HEALTH
    ),
    ApiEndpoint(
        "/v1/health", "The same under another path", HealthAnswer, also={503: HealthAnswer}, merged=Merged.HEALTH
    ),
    *(
        ApiEndpoint(path, "The same under another path", HealthAnswer, also={503: HealthAnswer}, merged=Merged.HEALTH)
        for path in ("/ping", "/healthz")
    ),
    ApiEndpoint("/props", "The model and its context, as llama.cpp's server tells them", ServerProps),
    ApiEndpoint("/slots", "The places for requests, as llama.cpp's server tells them", list[ServerSlot]),
    ApiEndpoint("/server_info", "The gateway, its models and its workers", ServerInfo),
    ApiEndpoint("/load", "The number of choices that run and that wait", LoadAnswer, merged=Merged.LOAD),
    ApiEndpoint("/version", "The gateway's version", VersionAnswer),
    ApiEndpoint(
        "/metrics", "The metrics of the whole mesh for Prometheus", TEXT, work=Work.OPERATES, merged=Merged.METRICS
    ),
    ApiEndpoint(
        "/debug/requests",
        "The last requests, the newest first",
        LastRequests,
        query={"limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT_LIMIT}},
        work=Work.OPERATES,
        merged=Merged.LATEST,
    ),
    ApiEndpoint(
        "/debug/requests/{request_id:path}",
        "One of the last requests with its spans",
        RequestSummary,
        query={"trace_id": {"type": "string", "description": "of one request, where several share the id"}},
        unknown="UNKNOWN_REQUEST",
        work=Work.OPERATES,
        merged=Merged.FIRST,
    ),
    ApiEndpoint(
        "/debug/pages",
        "Who holds the pages of every worker",
        PagesAnswer,
        query={
            "worker": {"type": "string", "description": "name, address or id of one worker"},
            "first": {"type": "integer", "minimum": 0, "default": 0},
            "count": {"type": "integer", "minimum": 0, "maximum": MOST_LISTED, "default": 0},
        },
        work=Work.OPERATES,
    ),
    ApiEndpoint("/metrics/", work=Work.OPERATES, merged=Merged.METRICS),
    ApiEndpoint("/ui", work=Work.OPERATES),
    ApiEndpoint("/ui/state", work=Work.OPERATES),
    ApiEndpoint("/ui/events", work=Work.OPERATES),
    ApiEndpoint("/ui/{name}", work=Work.OPERATES),
    ApiEndpoint("/openapi.json"),
    ApiEndpoint("/docs"),
    ApiEndpoint("/"),
)
