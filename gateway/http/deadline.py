"""The header by which a client says how long it waits for its whole answer.

Step 1 of a request's life over HTTP. gRPC has deadlines of its own; over HTTP nothing else tells a gateway that a
client will have gone by then."""

import asyncio
import re

from starlette.types import Scope

from mesh.config_checks import MAX_SECONDS
from mesh.errors import InvalidRequest

HEADER = "x-request-timeout-ms"


def deadline_of(scope: Scope) -> float | None:
    """When the client stops waiting, by the event loop's clock; None: it does not say."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == HEADER.encode()]
    if not values:
        return None
    value, most = values[-1].strip(), int(MAX_SECONDS * 1000)
    if not re.fullmatch(r"[0-9]{1,12}", value) or not 1 <= int(value) <= most:
        what = f"{HEADER} is {value[:40]!r}; send the milliseconds in which you need the whole answer, from 1 to {most}"
        raise InvalidRequest(HEADER, what)
    return asyncio.get_running_loop().time() + int(value) / 1000
