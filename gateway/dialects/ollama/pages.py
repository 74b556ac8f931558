"""The pages by which Ollama's clients find out what is served: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`; and
`/api/embed`, which computes."""

import asyncio
import struct
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.answers.embedding import Embeddings, validate_dimensions, validate_embed
from gateway.core.interface import Core
from gateway.dialects.common.plain_post import AnsweredAtOnce, HttpHost
from gateway.dialects.common.sse import encode
from gateway.dialects.described.ollama import (
    OllamaDetails,
    OllamaEmbedAnswer,
    OllamaModel,
    OllamaRunning,
    OllamaRunningModels,
    OllamaTag,
    OllamaTags,
    OllamaVersion,
)
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.ollama.errors import OllamaDialect
from gateway.dialects.ollama.reply import timestamp
from gateway.dialects.ollama.request import bare_name
from gateway.dialects.ollama.types import OllamaEmbedRequest, OllamaShowRequest
from gateway.dialects.openai.embeddings import parse_embedding
from gateway.dialects.openai.request import HttpCaller
from gateway.dialects.openai.types import EmbeddingRequest
from gateway.dialects.opening import Opening
from gateway.prompts.assets import Assets
from gateway.prompts.by_model import ModelAssets
from gateway.text.templates import DEFAULT
from gateway.validation.validate import validate_model

# The version of Ollama whose API this is: clients refuse servers that say they are older than what they use.
SPOKEN = "0.12.0"
ARCHITECTURE = "baton"  # the gateway does not read what the model is built of
FAR_SECONDS = 100 * 365 * 86_400.0
_UNKNOWN = OllamaDetails("", "", "", [], "", "")


class OllamaPages:
    def __init__(self, host: HttpHost, core: Core, models: ModelAssets, opening: Opening, *, created: float) -> None:
        self._host = host
        self._core = core
        self._models = models
        self._opening = opening
        self._created = created

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "/api/tags": self._tags,
                "/api/ps": self._running,
                "/api/version": self._version,
                "/api/show": AnsweredAtOnce(self._host, self._show, dialect=OllamaDialect()),
                "/api/embed": AnsweredAtOnce(self._host, self._embed, dialect=OllamaDialect()),
            }
        )

    async def _tags(self, _request: Request) -> Response:
        since = timestamp(self._created)
        tags = [OllamaTag(name, name, since, 0, self._digest(name), _UNKNOWN) for name in self._core.models()]
        return _json(OllamaTags(tags))

    async def _running(self, _request: Request) -> Response:
        until = timestamp(self._created + FAR_SECONDS)
        running = [
            OllamaRunning(name, name, 0, self._digest(name), _UNKNOWN, until, 0, self._context(name))
            for name in self._core.models()
            if self._core.facts(name).healthy
        ]
        return _json(OllamaRunningModels(running))

    async def _version(self, _request: Request) -> Response:
        return _json(OllamaVersion(SPOKEN))

    async def _show(self, raw: bytes, caller: HttpCaller) -> bytes:
        body: OllamaShowRequest = await self._opening.parse(raw, OllamaShowRequest, caller)
        name = validate_model(self._core, bare_name(body.model or body.name))
        assets = self._models.of(name)
        template = assets.templates.get(DEFAULT)
        about: dict[str, Any] = {
            "general.architecture": ARCHITECTURE,
            "general.basename": assets.name,
            f"{ARCHITECTURE}.context_length": self._context(name),
            f"{ARCHITECTURE}.vocab_size": assets.vocabulary,
        }
        source = template.source if template is not None else ""
        modelfile = f"# {assets.name}, served by Baton\n"
        return encode(OllamaModel(modelfile, "", source, _UNKNOWN, about, capabilities_of(assets)))

    async def _embed(self, raw: bytes, caller: HttpCaller) -> bytes:
        names = "options", "keep_alive"
        body: OllamaEmbedRequest = await self._opening.parse(raw, OllamaEmbedRequest, caller, without_effect=names)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        name = bare_name(body.model)
        texts: Any = body.input if isinstance(body.input, str | None) else [*body.input]
        plain = EmbeddingRequest(input=texts, model=name, dimensions=body.dimensions, request_id=body.request_id)
        caller, assets = self._opening.known(caller, plain)
        if not body.input:  # a client has the model loaded
            validate_dimensions(body.dimensions, assets)
            return encode(OllamaEmbedAnswer(body.model or assets.name, [], 0, 0, 0))
        if body.truncate is not False:  # Ollama keeps the beginning of a text that is longer than the context
            plain.truncate_prompt_tokens, plain.truncation_side = -1, "right"
        request = await parse_embedding(plain, assets, caller)
        embeddings = Embeddings(self._core, validate_embed(request, self._core, assets))
        vectors = list[Any]()
        for values in await embeddings.values():
            vectors.append(struct.unpack(f"<{len(values) // 4}f", values))
            await asyncio.sleep(0)  # thousands of numbers each
        nanoseconds = int((loop.time() - begun) * 1e9)
        return encode(OllamaEmbedAnswer(body.model or assets.name, vectors, nanoseconds, 0, embeddings.prompt_tokens))

    def _digest(self, name: str) -> str:
        return self._core.facts(name).model_hash

    def _context(self, name: str) -> int:
        return self._core.facts(name).context(self._models.of(name).context_tokens)


def capabilities_of(assets: Assets) -> list[str]:
    found = {
        "completion": True,
        "tools": assets.why_no_tools is None,
        "thinking": assets.reasoning is not None,
        "embedding": not assets.embedding.why_not,
    }
    return [name for name, has in found.items() if has]


def _json(content: object) -> Response:
    return Response(encode(content), media_type="application/json")
