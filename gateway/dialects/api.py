"""The API over HTTP: steps 1 and 8 of a request's life.

Starlette routes requests; the endpoints that generate are plain ASGI, so that sending a token is one write. An error
before the first token is an ordinary HTTP answer, afterwards an event in the stream. A client that goes away cancels
all its choices."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Scope

from gateway.answers.answer import Answer
from gateway.answers.embedding import Embeddings, validate_embed
from gateway.core.interface import Core
from gateway.dialects.endpoints.paths import BY_PATH, paths_of, routes_of
from gateway.dialects.generating import BeginReply, GeneratingEndpoint
from gateway.dialects.guard import KeyGuard, admission_of
from gateway.dialects.info import InfoPages, defect, http_exception
from gateway.dialects.native.dialect import CompletionDialect
from gateway.dialects.native.sglang import SGLANG
from gateway.dialects.native.tokens import TokenizerPages
from gateway.dialects.native.vllm import VLLM
from gateway.dialects.openai.embeddings import EmbeddingReply, parse_embedding
from gateway.dialects.openai.large import BodyParser
from gateway.dialects.openai.reply import ChatReply, CompletionReply, Reply
from gateway.dialects.openai.request import HttpCaller, parse_chat, parse_completion
from gateway.dialects.openai.types import ChatRequest, CommonRequest, CompletionRequest, EmbeddingRequest
from gateway.dialects.reference.models import described_together
from gateway.dialects.reference.routes import ApiReference
from gateway.dialects.shared.cors import Cors
from gateway.dialects.shared.headers import MORE_HEADERS, REQUEST_ID, CommonHeaders
from gateway.dialects.translated import TranslatedChats
from gateway.fairness.loop_turns import Turns
from gateway.http.errors import shown_names
from gateway.http.read import BodyReader
from gateway.prompts.assets import Assets
from gateway.prompts.by_model import ModelAssets
from gateway.receipts.receipts import OpenReceipt, Receipts, begin_receipt
from gateway.tenants.tenants import Tenants
from gateway.tracing.traces import RecentTraces
from gateway.validation.client_request import ClientRequest, validate_request_id
from gateway.validation.validate import ValidRequest, validate, validate_model
from mesh.telemetry import semconv
from mesh.telemetry.spans import Silent

Body = TypeVar("Body", bound=msgspec.Struct)
Clock = Callable[[], float]  # seconds since 1970, for `created`


class HttpApi:
    """`app` is the ASGI application; `also` are pages besides the API."""

    def __init__(
        self,
        core: Core,
        models: ModelAssets,
        *,
        random: Random,
        clock: Clock,
        traces: RecentTraces | None = None,
        receipts: Receipts | None = None,
        also: Sequence[BaseRoute] = (),
        tenants: Tenants | None = None,  # None: every client is served
    ) -> None:
        self._core, self._models, self._random, self._clock = core, models, random, clock
        self._traces = traces or RecentTraces(Silent(), random=random)
        self._receipts = receipts
        self._parser = BodyParser(core.limits, self._context_tokens)
        self.count_error, self.bodies = core.count_error, BodyReader(core.limits, self._parser.trim_later)
        info = InfoPages(core, models, created=int(clock()), also=also)
        self.keep_alive_seconds, self.turns = core.limits.keep_alive_seconds, Turns()
        chats = TranslatedChats(
            core, self._parser, self._known, self._receipt, random=random, clock=clock, turns=self.turns
        )
        begins: dict[str, BeginReply] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/v1/embeddings": self._embeddings,
            "/v1/responses": chats.responses,
            "/v1/messages": chats.messages,
            "/v1/messages/count_tokens": chats.count_tokens,
            VLLM.path: self._dialect(VLLM),
            SGLANG.path: self._dialect(SGLANG),
        }
        generating = {path: GeneratingEndpoint(self, begin, BY_PATH[path]) for path, begin in begins.items()}
        routes: list[BaseRoute] = [
            *routes_of(generating),
            *TokenizerPages(self, core, models, self._parse).routes(),
            *info.routes(),
            *also,
        ]
        roots = dict.fromkeys(map(core.root, core.models()))
        together = described_together([models.of(root) for root in roots])
        described = ApiReference(core.limits, together, paths_of(routes))
        self.routes = [*routes, *described.routes()]
        routed: ASGIApp = Starlette(
            routes=self.routes,
            exception_handlers={HTTPException: http_exception, Exception: defect},
        )
        guarded = routed
        if tenants is not None:
            guarded = KeyGuard(routed, tenants, open_paths=core.limits.keys_open_paths, count_error=core.count_error)
        cors = Cors(core.limits.cors_origins)
        self.app = CommonHeaders(guarded, draw_id=self._draw_id, cors=cors)
        self.unguarded = CommonHeaders(routed, draw_id=self._draw_id, cors=cors)  # asks nobody for a key

    async def aclose(self) -> None:
        await self._parser.aclose()

    async def _chat(self, raw: bytes, caller: HttpCaller) -> Reply:
        body = await self._parse(raw, ChatRequest, caller)
        caller, assets = self._known(caller, body)
        self._core.admit(caller.trace.model)
        request = await parse_chat(body, assets, caller)
        valid = validate(request, self._core, assets, self._random)
        receipt = await self._receipt([valid], body, caller)
        answer = await Answer.begin(valid, self._core, assets.tokenizer, self.turns)
        return ChatReply(body, [(request, answer)], assets, created=int(self._clock()), receipt=receipt)

    async def _completion(self, raw: bytes, caller: HttpCaller) -> Reply:
        body = await self._parse(raw, CompletionRequest, caller)
        caller, assets = self._known(caller, body)
        self._core.admit(caller.trace.model, examined=body.max_tokens == 0)
        requests = await parse_completion(body, assets, caller)
        valid = await self._validated(requests, assets)
        receipt = await self._receipt(valid, body, caller)
        pairs = await self._begin(requests, valid, assets)
        return CompletionReply(body, pairs, assets, created=int(self._clock()), receipt=receipt)

    async def _validated(self, requests: Sequence[ClientRequest], assets: Assets) -> list[ValidRequest]:
        valid = list[ValidRequest]()
        for request in requests:
            if valid:
                await self.turns.next()
            valid.append(validate(request, self._core, assets, self._random))
        return valid

    async def _begin(
        self, requests: Sequence[ClientRequest], valid: Sequence[ValidRequest], assets: Assets
    ) -> list[tuple[ClientRequest, Answer]]:
        """The answers of requests that come together."""
        answers: list[Answer] = []
        try:
            for each in valid:
                if answers:
                    await self.turns.next()
                answers.append(await Answer.begin(each, self._core, assets.tokenizer, self.turns))
        except BaseException:
            for answer in answers:
                answer.cancel()
            raise
        return list(zip(requests, answers, strict=True))

    def _dialect(self, dialect: CompletionDialect[Body]) -> BeginReply:
        async def begin(raw: bytes, caller: HttpCaller) -> Reply:
            ignored = list[str]()
            body = await self._parser.parse(raw, dialect.body, ignored)
            plain = dialect.translate(body, ignored)
            _show_ignored(caller, ignored)
            caller, assets = self._known(caller, plain)
            facts = self._core.facts(assets.name)
            context, pool = facts.context(assets.context_tokens), facts.largest_pool_tokens
            dialect.check(body, plain, self._core.limits, context)
            self._core.admit(caller.trace.model, examined=plain.max_tokens == 0)
            requests = await dialect.requests(body, plain, assets, caller, room=min(context, pool or context))
            valid = await self._validated(requests, assets)
            receipt = await self._receipt(valid, plain, caller)
            pairs = await self._begin(requests, valid, assets)
            return dialect.reply(body, plain, pairs, assets, int(self._clock()), receipt)

        return begin

    async def _embeddings(self, raw: bytes, caller: HttpCaller) -> Reply:
        body = await self._parse(raw, EmbeddingRequest, caller)
        caller, assets = self._known(caller, body)
        request = await parse_embedding(body, assets, caller)
        embeddings = Embeddings(self._core, validate_embed(request, self._core, assets))
        return EmbeddingReply(body, embeddings, caller, model=body.model or assets.name)

    async def _receipt(
        self, valid: Sequence[ValidRequest], body: CommonRequest, caller: HttpCaller
    ) -> OpenReceipt | None:
        """The receipt that the client wants; the head of the answer names it."""
        model = validate_model(self._core, body.model)
        owner = caller.trace.admission.tenant
        receipt = await begin_receipt(self._receipts, body.receipt, valid, model=model, owner=owner)
        if receipt is not None:
            caller.headers.append(receipt.header)
        return receipt

    async def _parse(self, raw: bytes, kind: type[Body], caller: HttpCaller) -> Body:
        """The parsed body; the answer names its fields without effect."""
        ignored = list[str]()
        body = await self._parser.parse(raw, kind, ignored)
        _show_ignored(caller, ignored)
        return body

    def _context_tokens(self) -> int:
        """The largest context of all models: a longer prompt fits none of them."""
        roots = {self._core.root(name) for name in self._core.models()}
        return max(self._core.facts(root).context(self._models.of(root).context_tokens) for root in roots)

    def _draw_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _known(self, caller: HttpCaller, body: CommonRequest | EmbeddingRequest) -> tuple[HttpCaller, Assets]:
        """The caller, named by the body's request id where there is one, and the assets of the model; raises where the
        model is unknown."""
        trace = caller.trace
        if body.request_id is not None:
            trace.request_id = validate_request_id(body.request_id)
        trace.model = validate_model(self._core, body.model)
        trace.asked[semconv.REQUEST_STREAM] = isinstance(body, CommonRequest) and bool(body.stream)
        assets = self._models.of(trace.model)
        context = self._core.facts(trace.model).context(assets.context_tokens)
        return replace(caller, request_id=trace.request_id, context_tokens=context), assets

    def caller(self, scope: Scope, operation: str) -> HttpCaller:
        """The head of a request: its trace begins."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        about = {
            semconv.HTTP_METHOD: scope["method"],
            semconv.HTTP_ROUTE: scope["path"],
            semconv.URL_PATH: scope["path"],
            semconv.URL_SCHEME: scope["scheme"],
        }
        server = f"{scope['method']} {scope['path']}"
        trace = self._traces.begin(server, headers.get(b"traceparent", ""), about, operation=operation)
        trace.request_id, trace.admission = scope[REQUEST_ID], admission_of(scope, trace.admission)
        return HttpCaller(trace.request_id, trace, scope[MORE_HEADERS])


def _show_ignored(caller: HttpCaller, ignored: list[str]) -> None:
    if ignored:
        caller.headers.append((b"x-baton-ignored", shown_names(ignored)))
