"""`GET /openapi.json` and `GET /docs`. Both are made at the first request, in a thread, and kept."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.dialects.common.sse import encode
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.reference.document import Json, document
from gateway.dialects.reference.models import DescribedModel
from gateway.dialects.reference.page import POLICY, page
from mesh.config.door_config import DoorConfig


class ApiReference:
    def __init__(self, limits: DoorConfig, model: DescribedModel, paths: Sequence[str]) -> None:
        """`paths`: those that the gateway serves."""
        self._limits = limits
        self._model = model
        self._paths = paths

    def routes(self) -> list[BaseRoute]:
        return routes_of({"/openapi.json": self._json, "/docs": self._docs})

    async def _json(self, request: Request) -> Response:
        return Response(await _made(lambda: self._encoded), media_type="application/json")

    async def _docs(self, request: Request) -> Response:
        content = await _made(lambda: self._page)
        return Response(content, headers={"content-security-policy": POLICY}, media_type="text/html")

    @cached_property
    def _document(self) -> Json:
        return document(self._limits, self._model, self._paths)

    @cached_property
    def _encoded(self) -> bytes:
        return encode(self._document)

    @cached_property
    def _page(self) -> bytes:
        return page(self._document)


async def _made(make: Callable[[], bytes]) -> bytes:
    return await asyncio.to_thread(make)
