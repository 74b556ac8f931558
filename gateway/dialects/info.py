"""Pages of the HTTP API about itself: models, health, load, version, and errors for paths and methods it lacks."""

from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from gateway.core.client_errors import client_error
from gateway.core.interface import Core
from gateway.dialects.anthropic.errors import error_of
from gateway.dialects.common.dialect import OPENAI
from gateway.dialects.common.headers import REQUEST_ID
from gateway.dialects.common.sse import encode
from gateway.dialects.described.pages import (
    HealthAnswer,
    LoadAnswer,
    ModelCard,
    ModelCards,
    ModelHealth,
    ServerInfo,
    ServerProps,
    ServerSlot,
    SilentWorkerHealth,
    VersionAnswer,
)
from gateway.dialects.endpoints.endpoint import ApiDialect
from gateway.dialects.endpoints.paths import dialect_at, paths_of, routes_of
from gateway.dialects.spoken import spoken_at
from gateway.http import errors as http_errors
from gateway.prompts.assets import Assets
from gateway.prompts.by_model import ModelAssets
from gateway.text.templates import DEFAULT
from gateway.validation.validate import validate_model
from mesh.errors import BatonError, brief

UI = "/ui"  # where the page is, if it is on
OK, NOT_OK = "ok", "no worker can take a request"


class InfoPages:
    def __init__(self, core: Core, models: ModelAssets, *, created: int, also: Sequence[BaseRoute]) -> None:
        self._core = core
        self._models = models
        self._created = created
        pages = {"/v1/models", "/health"} | set(paths_of(also))
        self._shown = [path for path in (UI, "/v1/models", "/health", "/metrics") if path in pages]

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "/v1/models": self._listed,
                "/v1/models/{name:path}": self._listed,
                "/health": self._health,
                "/v1/health": self._health,
                "/ping": self._health,
                "/healthz": self._health,
                "/props": self._props,
                "/slots": self._slots,
                "/server_info": self._server_info,
                "/load": self._load,
                "/version": self._version,
                "/": self._front,
            }
        )

    async def _listed(self, request: Request) -> Response:
        name = request.path_params.get("name")
        try:
            served = self._core.models() if name is None else (validate_model(self._core, name),)
        except BatonError as error:
            return error_page(error)
        entries = [self._entry(each) for each in served]
        return _json(ModelCards("list", entries) if name is None else entries[0])

    def _entry(self, name: str) -> ModelCard:
        facts = self._core.facts(name)
        context = facts.context(self._models.of(name).context_tokens)
        parent = UNSET if facts.adapter is None else facts.root
        return ModelCard(name, "model", self._created, "baton", facts.root, context, parent)

    async def _health(self, request: Request) -> Response:
        healthy, tiers = self._core.healthy(), self._core.tiers()
        found = HealthAnswer(status=_status(healthy), prefill=tiers["prefill"], decode=tiers["decode"])
        facts = [self._core.facts(root) for root in dict.fromkeys(map(self._core.root, self._core.models()))]
        if len(facts) > 1:
            found.models = {one.root: ModelHealth(_status(one.healthy), **one.tiers) for one in facts}
        if refused := self._core.refused_workers():
            found.refused_workers = list(refused)
        if silent := self._core.silent_workers():
            found.silent_workers = [SilentWorkerHealth(**asdict(each)) for each in silent]
        if alarms := self._core.alarms():
            found.alarms = list(alarms)
        return _json(found, 200 if healthy else 503)

    async def _load(self, request: Request) -> Response:
        load = self._core.load()
        return _json(LoadAnswer(sum(load.values()), **load))

    async def _props(self, request: Request) -> Response:
        try:
            name = validate_model(self._core, request.query_params.get("model") or self._core.models()[0])
        except BatonError as error:
            return error_page(error)
        assets, context = self._about(name)
        template = assets.templates.get(DEFAULT)
        source = template.source if template is not None else ""
        about = f"baton {package_version()}"
        settings = {"n_ctx": context}
        return _json(ServerProps(settings, self._places(), assets.name, "", source, about))

    async def _slots(self, request: Request) -> Response:
        """Workers batch whatever fits: there is a slot for each of them, and for each request that runs."""
        running, (_, context) = self._core.load()["running"], self._about(self._core.models()[0])
        places = max(self._places(), running)
        return _json([ServerSlot(number, context, number < running) for number in range(places)])

    async def _server_info(self, request: Request) -> Response:
        cards = [self._entry(name) for name in self._core.models()]
        load = self._core.load()
        workers = dict(self._core.tiers())
        return _json(ServerInfo(package_version(), cards, workers, load["running"], load["waiting"]))

    def _about(self, name: str) -> tuple[Assets, int]:
        """The assets of a model, and its context."""
        assets = self._models.of(name)
        return assets, self._core.facts(name).context(assets.context_tokens)

    def _places(self) -> int:
        return max(1, self._core.tiers()["decode"])

    async def _version(self, request: Request) -> Response:
        return _json(VersionAnswer(package_version()))

    async def _front(self, request: Request) -> Response:
        """Browsers go on to the page; programs read what there is to ask for."""
        if UI in self._shown and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(UI, 307)
        return Response(f"Baton is running; try {', '.join(self._shown)}\n", media_type="text/plain")


def _status(healthy: bool) -> str:
    return OK if healthy else NOT_OK


def package_version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:  # run from a folder that is not installed
        return "0+unknown"


async def http_exception(request: Request, error: Exception) -> Response:
    """A path or a method that nothing serves; what a path allows is no error."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow")
    if error.status_code == 405 and request.method == "OPTIONS" and allowed:
        return Response(status_code=204, headers={"allow": f"{allowed}, OPTIONS"})
    what = {
        404: f"this gateway has no {brief(request.url.path)}",
        405: f"{brief(request.url.path)} does not support {request.method}",
    }
    message = what.get(error.status_code, error.detail)
    return _lacking(request, error.status_code, message, error.headers)


async def defect(request: Request, error: Exception) -> Response:
    """A page that failed in a way that nobody foresaw."""
    return error_page(client_error(error, request.scope[REQUEST_ID]), request)


def error_page(error: BatonError, request: Request | None = None) -> Response:
    """`request`: whose path may speak another dialect than OpenAI's."""
    head = {name.decode(): value.decode() for name, value in http_errors.headers(error)}
    dialect = OPENAI if request is None else spoken_at(request.url.path)
    content = dialect.whole(error, "" if request is None else request.scope[REQUEST_ID])
    return _json(content, error.http_status, head)


def _lacking(request: Request, status: int, message: str, headers: Any = None) -> Response:
    reason = HTTPStatus(status).name
    content = http_errors.body(status, message, reason)
    head = http_errors.page_headers(content) | dict(headers or {})
    if dialect_at(request.url.path) is ApiDialect.MESSAGES:
        content = error_of(status, message, reason, request.scope[REQUEST_ID])
    elif dialect_at(request.url.path) is ApiDialect.OLLAMA:
        content = {"error": message}
    return _json(content, status, head)


def _json(content: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(encode(content), status, headers=headers, media_type="application/json")
