"""`POST /v1/rerank` and `POST /v1/score`: pairs of texts become prompts in Qwen3-Reranker's words, scores an answer.

Steps 1 and 8 of a request's life over HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from random import Random
from typing import Any

from gateway.answers.embedding import MAX_INPUTS
from gateway.answers.relevance import ASKED_LOGPROBS, NO, YES, Judging, Relevances
from gateway.core.interface import Core
from gateway.dialects.described.answers import CachedTokens
from gateway.dialects.described.relevance import (
    RankedDocument,
    RelevanceOptions,
    RelevanceUsage,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoredPair,
    ScoreRequest,
)
from gateway.dialects.openai.answer import fingerprint_of
from gateway.dialects.openai.request import CHAT_FIELDS, HttpCaller
from gateway.dialects.openai.types import CommonRequest
from gateway.dialects.opening import Opening
from gateway.prompts.assets import Assets
from gateway.prompts.prompt import SWITCHES, ChatPrompt, encode_chat
from gateway.prompts.truncation import truncation_of
from gateway.validation.client_request import ClientRequest
from gateway.validation.validate import validate
from mesh.errors import InvalidRequest

Json = dict[str, Any]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    f'Note that the answer can only be "{YES}" or "{NO}".'
)


class RelevanceEndpoints:
    """Begins the replies of both endpoints."""

    def __init__(self, core: Core, opening: Opening, *, random: Random, clock: Callable[[], float]) -> None:
        self._core, self._opening, self._random, self._clock = core, opening, random, clock

    async def rerank(self, raw: bytes, caller: HttpCaller) -> "RelevanceReply":
        body: RerankRequest = await self._opening.parse(raw, RerankRequest, caller)
        if not body.query:
            raise InvalidRequest("query", "query is missing: the text that documents are ranked for")
        texts = [_text_of(document, f"documents[{at}]") for at, document in enumerate(body.documents or ())]
        if not texts:
            raise InvalidRequest("documents", "documents is missing or empty: a list of texts")
        if body.top_n is not None and body.top_n < 1:
            raise InvalidRequest("top_n", f"top_n must be at least 1, not {body.top_n}")
        pairs = [(body.query, text) for text in texts]
        caller, assets, found = await self._begun(body, caller, pairs, "documents")

        async def answer() -> RerankAnswer:
            scores = await found.scores()
            order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
            shown = body.return_documents is not False
            results = [
                RankedDocument(
                    index=index, relevance_score=scores[index], document={"text": texts[index]} if shown else None
                )
                for index in order[: body.top_n]
            ]
            return RerankAnswer(
                id=f"rerank-{caller.request_id}",
                model=body.model or assets.name,
                usage=_usage(found),
                results=results,
                system_fingerprint=fingerprint_of(found.numerics),
            )

        return RelevanceReply(caller.request_id, found, answer)

    async def score(self, raw: bytes, caller: HttpCaller) -> "RelevanceReply":
        body: ScoreRequest = await self._opening.parse(raw, ScoreRequest, caller)
        pairs = _pairs(body.text_1, body.text_2)
        caller, assets, found = await self._begun(body, caller, pairs, "text_2")

        async def answer() -> ScoreAnswer:
            scores = await found.scores()
            return ScoreAnswer(
                id=f"score-{caller.request_id}",
                object="list",
                created=int(self._clock()),
                model=body.model or assets.name,
                data=[ScoredPair(index=index, object="score", score=score) for index, score in enumerate(scores)],
                usage=_usage(found),
                system_fingerprint=fingerprint_of(found.numerics),
            )

        return RelevanceReply(caller.request_id, found, answer)

    async def _begun(
        self, body: RelevanceOptions, caller: HttpCaller, pairs: Sequence[tuple[str, str]], field: str
    ) -> tuple[HttpCaller, Assets, Relevances]:
        """All pairs are checked before the first one runs."""
        if len(pairs) > MAX_INPUTS:
            raise InvalidRequest(field, f"{field} has {len(pairs)} entries; at most {MAX_INPUTS} are allowed")
        caller, assets = self._opening.known(caller, CommonRequest(model=body.model, request_id=body.request_id))
        self._core.admit(caller.trace.model)
        judging, valid = Judging.of(assets), []
        likeliest = ASKED_LOGPROBS if caller.most_logprobs < 0 else min(ASKED_LOGPROBS, caller.most_logprobs)
        for query, document in pairs:
            ids = await self._prompt(body, caller, assets, query, document)
            request = ClientRequest(
                request_id=caller.request_id,
                prompt=ids,
                model=body.model,
                temperature=0.0,
                max_tokens=1,
                top_logprobs=likeliest,
                salt=body.cache_salt or "",
                priority=body.priority or 0,
                deadline_seconds=caller.seconds_left,
                trace=caller.trace,
                field_names={"prompt": field, "salt": "cache_salt"},
            )
            valid.append(validate(request, self._core, assets, self._random))
            await asyncio.sleep(0)  # others have their turn between pairs
        return caller, assets, Relevances(self._core, valid, judging)

    async def _prompt(
        self, body: RelevanceOptions, caller: HttpCaller, assets: Assets, query: str, document: str
    ) -> tuple[int, ...]:
        text = f"<Instruct>: {body.instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]
        arguments = dict.fromkeys(SWITCHES[:1], False) | (body.chat_template_kwargs or {})
        ids, _ = await encode_chat(assets, ChatPrompt(messages=messages, template_arguments=arguments), CHAT_FIELDS)
        context = caller.context_tokens or assets.context_tokens
        most, name = body.truncate_prompt_tokens, "truncate_prompt_tokens"
        cut = truncation_of(most, keep_end=True, context=context, answer=1, field=name)
        return ids if cut is None else cut.cut(ids)


class RelevanceReply:
    stream = False

    def __init__(self, request_id: str, found: Relevances, answer: Callable[[], Awaitable[Any]]) -> None:
        self.request_id, self._found, self._answer = request_id, found, answer

    async def whole(self) -> Any:
        return await self._answer()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yields nothing: scores are never streamed."""
        for frame in list[bytes]():
            yield frame

    def cancel(self) -> None:
        self._found.cancel()


def _pairs(first: str | list[str] | None, second: str | list[str] | None) -> list[tuple[str, str]]:
    """One text against each of many, or as many against as many."""
    for name, value in (("text_1", first), ("text_2", second)):
        if not value:
            raise InvalidRequest(name, f"{name} is missing or empty: a text, or a list of texts")
    ones = [first] if isinstance(first, str) else list(first or ())
    others = [second] if isinstance(second, str) else list(second or ())
    if len(ones) == 1:
        ones *= len(others)
    if len(ones) != len(others):
        what = f"text_1 has {len(ones)} texts and text_2 {len(others)}: send one text_1, or as many as text_2 has"
        raise InvalidRequest("text_1", what)
    return list(zip(ones, others, strict=True))


def _text_of(document: str | Json, field: str) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise InvalidRequest(field, f"{field} must be a text, or an object with a text")
    return text


def _usage(found: Relevances) -> RelevanceUsage:
    tokens, cached = found.prompt_tokens, CachedTokens(found.cached_tokens)
    return RelevanceUsage(prompt_tokens=tokens, total_tokens=tokens, prompt_tokens_details=cached)
