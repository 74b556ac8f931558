"""The API over HTTP: steps 1 and 8 of a request's life.

Starlette routes requests; the endpoints that generate are plain ASGI, so that sending a token is one write. An error
before the first token is an ordinary HTTP answer, afterwards an event in the stream. A client that goes away cancels
all its choices."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Scope

from gateway.answers.embedding import Embeddings, validate_embed
from gateway.batches.store import BatchStore
from gateway.batches.work import BatchWork
from gateway.core.interface import Core
from gateway.dialects.adapters import AdapterLoader, AdapterPages
from gateway.dialects.anthropic.reply import MessagesCountReply
from gateway.dialects.batches.asker import InnerAsker
from gateway.dialects.batches.batch_pages import BatchPages
from gateway.dialects.batches.file_pages import FilePages
from gateway.dialects.common.cors import Cors
from gateway.dialects.common.headers import MORE_HEADERS, REQUEST_ID, CommonHeaders
from gateway.dialects.endpoints.paths import paths_of, routes_of, row_of
from gateway.dialects.generating import BeginReply, GeneratingEndpoint
from gateway.dialects.guard import KeyGuard, admission_of
from gateway.dialects.info import InfoPages, defect, http_exception
from gateway.dialects.inner_calls import InnerCalls
from gateway.dialects.kinds import (
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    Chat,
    Completion,
    Messages,
    MessagesCount,
    Native,
    Ollama,
    Responses,
)
from gateway.dialects.native.sglang import SGLANG
from gateway.dialects.native.tokens import TokenizerPages
from gateway.dialects.native.vllm import VLLM
from gateway.dialects.ollama.pages import OllamaPages
from gateway.dialects.openai.embeddings import EmbeddingReply, parse_embedding
from gateway.dialects.openai.large import BodyParser
from gateway.dialects.openai.relevance import RelevanceEndpoints
from gateway.dialects.openai.reply import Reply
from gateway.dialects.openai.request import HttpCaller, chat_prompt
from gateway.dialects.openai.types import EmbeddingRequest
from gateway.dialects.opening import Clock, GeneratingKind, Opening
from gateway.dialects.reference.models import described_together
from gateway.dialects.reference.routes import ApiReference
from gateway.dialects.responses.background import BackgroundResponses
from gateway.dialects.responses.keeping import ResponseKeeping
from gateway.dialects.responses.pages import ResponsePages
from gateway.dialects.responses.reply import begun_response, fixed_members
from gateway.fairness.loop_turns import Turns
from gateway.http.read import BodyReader
from gateway.prompts.by_model import ModelAssets
from gateway.prompts.prompt import encode_chat
from gateway.receipts.receipts import Receipts
from gateway.stored.responses import StoredResponses
from gateway.tenants.tenants import Tenants
from gateway.tracing.traces import RecentTraces
from mesh.telemetry import semconv
from mesh.telemetry.spans import Silent


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
        loader: AdapterLoader | None = None,  # None: no adapters are loaded or unloaded
        stored: StoredResponses | None = None,  # None: no response is stored
        batches: BatchStore | None = None,  # None: there are neither files nor batches
    ) -> None:
        self._core, self._models, self._random, self._clock = core, models, random, clock
        self._traces = traces or RecentTraces(Silent(), random=random)
        self._parser = BodyParser(core.limits, self._context_tokens)
        self.count_error, self.bodies = core.count_error, BodyReader(core.limits, self._parser.trim_later)
        info = InfoPages(core, models, created=int(clock()), also=also)
        self.keep_alive_seconds, self.turns = core.limits.keep_alive_seconds, Turns()
        self._opening = Opening(
            core, models, self._parser, receipts=receipts, random=random, clock=clock, turns=self.turns
        )
        keeping = ResponseKeeping(stored)
        self._responses, self._stored = Responses(keeping), stored
        self.batch_work: BatchWork | None = None  # its `run` is the gateway's to call
        self._background = BackgroundResponses(stored, keeping, lambda: self._inner)
        allowed = tenants is not None or core.limits.load_adapters
        begins = self._begins()
        generating = {path: GeneratingEndpoint(self, begin, row_of(path)) for path, begin in begins.items()}
        routes: list[BaseRoute] = [
            *routes_of(generating),
            *TokenizerPages(self, core, models, self._opening.parse).routes(),
            *OllamaPages(self, core, models, self._opening, created=clock()).routes(),
            *(AdapterPages(self, core, loader, self._opening.parse, allowed=allowed).routes() if loader else ()),
            *ResponsePages(keeping, self._background).routes(),
            *self._batch_routes(batches),
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
        self._inner = InnerCalls(routed, tenants, core.limits)
        guarded = routed
        if tenants is not None:
            guarded = KeyGuard(routed, tenants, open_paths=core.limits.keys_open_paths, count_error=core.count_error)
        cors = Cors(core.limits.cors_origins)
        self.app = CommonHeaders(guarded, draw_id=self._draw_id, cors=cors)
        self.unguarded = CommonHeaders(routed, draw_id=self._draw_id, cors=cors)  # asks nobody for a key

    def leave(self) -> None:
        """The process will end: what no client waits for begins no more here."""
        if self.batch_work is not None:
            self.batch_work.leave()

    async def aclose(self) -> None:
        await self._background.aclose()
        if self._stored is not None:
            await self._stored.aclose()
        await self._parser.aclose()

    def _begins(self) -> dict[str, BeginReply]:
        """Each endpoint that generates has its own beginning of a reply, by its path."""
        kinds: dict[str, GeneratingKind[Any]] = {
            "/v1/chat/completions": Chat(),
            "/v1/completions": Completion(),
            "/v1/messages": Messages(),
            VLLM.path: Native(VLLM),
            SGLANG.path: Native(SGLANG),
        }
        relevance = RelevanceEndpoints(self._core, self._opening, random=self._random, clock=self._clock)
        return {
            **{path: partial(self._opening.begin, kind) for path, kind in kinds.items()},
            "/api/chat": partial(self._ollama, OLLAMA_CHAT),
            "/api/generate": partial(self._ollama, OLLAMA_GENERATE),
            "/v1/embeddings": self._embeddings,
            "/v1/messages/count_tokens": self._count,
            **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), relevance.rerank),
            **dict.fromkeys(("/v1/score", "/score"), relevance.score),
            "/v1/responses": self._respond,
        }

    def _batch_routes(self, store: BatchStore | None) -> list[BaseRoute]:
        if store is None:
            return []
        limits = self._core.limits
        self.batch_work = BatchWork(
            store,
            lambda owner: InnerAsker(self._inner, owner, self._draw_id),
            holder=self._draw_id(),
            concurrency=limits.batch_concurrency,
            most_line_bytes=limits.body_bytes,
            random=self._random,
        )
        pages = BatchPages(self, self._opening, store, self.batch_work)
        return [*FilePages(self, store).routes(), *pages.routes()]

    async def _respond(self, raw: bytes, caller: HttpCaller) -> Reply:
        opened = await self._opening.open(self._responses, raw, caller)
        if not opened.body.background:
            return await self._opening.answer(self._responses, opened)
        _, (valid,) = await self._opening.check(self._responses, opened)
        kept, body, created = self._responses.kept(opened), opened.body, int(self._clock())
        assert kept is not None, "a response in the background is stored"
        fixed = fixed_members(body, opened.asked.repeated, valid, opened.assets, created=created, stored=True)
        return await self._background.begin(raw, begun_response(fixed), kept, valid.request.request_id)

    async def _ollama(self, kind: Ollama[Any], raw: bytes, caller: HttpCaller) -> Reply:
        """A request that asks nothing loads the model; it is checked like any other."""
        opened = await self._opening.open(kind, raw, caller)
        if not opened.asked.loads:
            return await self._opening.answer(kind, opened)
        await self._opening.check(kind, opened)
        return kind.loaded(opened, self._clock)

    async def _embeddings(self, raw: bytes, caller: HttpCaller) -> Reply:
        body = await self._opening.parse(raw, EmbeddingRequest, caller)
        caller, assets = self._opening.known(caller, body)
        request = await parse_embedding(body, assets, caller)
        embeddings = Embeddings(self._core, validate_embed(request, self._core, assets))
        return EmbeddingReply(body, embeddings, caller, model=body.model or assets.name)

    async def _count(self, raw: bytes, caller: HttpCaller) -> Reply:
        opened = await self._opening.open(MessagesCount(), raw, caller)
        ids, _ = await encode_chat(opened.assets, chat_prompt(opened.plain), opened.asked.chat.spelling.chat)
        return MessagesCountReply(opened.caller.request_id, len(ids))

    def _context_tokens(self) -> int:
        """The largest context of all models: a longer prompt fits none of them."""
        roots = {self._core.root(name) for name in self._core.models()}
        return max(self._core.facts(root).context(self._models.of(root).context_tokens) for root in roots)

    def _draw_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

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
