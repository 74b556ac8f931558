"""The bodies and answers of `/v1/rerank` and `/v1/score` as msgspec types, spelled as at vLLM and Jina."""

from typing import Any, Literal

from msgspec import Struct

from gateway.dialects.described.answers import CachedTokens

Json = dict[str, Any]


class RelevanceOptions(Struct, kw_only=True):
    """Fields that both bodies have."""

    model: str | None = None
    instruction: str | None = None  # what the query wants of a document
    chat_template_kwargs: Json | None = None
    truncate_prompt_tokens: int | None = None  # tokens of a pair's prompt, which keeps its end
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None


class RerankRequest(RelevanceOptions, kw_only=True):
    query: str | None = None
    documents: list[str | Json] | None = None
    top_n: int | None = None
    return_documents: bool | None = None


class ScoreRequest(RelevanceOptions, kw_only=True):
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None


class RelevanceUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class RankedDocument(Struct, kw_only=True):
    index: int
    relevance_score: float
    document: Json | None


class RerankAnswer(Struct, kw_only=True):
    id: str
    model: str
    usage: RelevanceUsage
    results: list[RankedDocument]
    system_fingerprint: str


class ScoredPair(Struct, kw_only=True):
    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(Struct, kw_only=True):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoredPair]
    usage: RelevanceUsage
    system_fingerprint: str
