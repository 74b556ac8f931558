"""The HTTP API at a free port, for the length of an `async with`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from gateway.dialects.api import HttpApi
from gateway.http.server import serve_http


@asynccontextmanager
async def served_api(
    core: Any, models: Any, *, clock: Callable[[], float] = lambda: 1_700_000_000.0, **more: Any
) -> AsyncIterator[str]:
    """The API over this core; yields HOST:PORT. `more`: what else HttpApi is given."""
    api = HttpApi(core, models, random=Random(7), clock=clock, **more)
    server = await serve_http(api.app, "127.0.0.1:0", limits=core.limits)
    try:
        yield server.address
    finally:
        await server.close()
        await api.aclose()
