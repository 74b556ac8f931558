"""The header by which a client says how long it waits for its whole answer.

Step 1 of a request's life over HTTP. gRPC has deadlines of its own; over HTTP nothing else tells a gateway that a
client will have gone by then."""

import asyncio
import re

from starlette.types import Scope

from mesh.config.config_checks import MAX_SECONDS
from mesh.errors import BatonError, DeadlineExceeded, InvalidRequest

HEADER = "x-request-timeout-ms"


def deadline_of(scope: Scope) -> float | None:
    """When the client stops waiting, by the event loop's clock; None: it does not say."""
    values, most = _values(scope), int(MAX_SECONDS * 1000)
    if not values:
        return None
    if len(values) > 1:
        raise InvalidRequest(HEADER, f"{HEADER} comes {len(values)} times; send it once")
    if not re.fullmatch(r"[0-9]{1,12}", values[0]) or not 1 <= int(values[0]) <= most:
        what = f"{HEADER} is {values[0][:40]!r}; send the milliseconds in which you need the whole answer"
        raise InvalidRequest(HEADER, f"{what}, from 1 to {most}")
    return asyncio.get_running_loop().time() + int(values[0]) / 1000


def named(error: BatonError, scope: Scope) -> BatonError:
    """The error of a deadline names the header that has set it, with what the client sent."""
    if isinstance(error, DeadlineExceeded) and error.field is None and (values := _values(scope)):
        error.field, error.message = HEADER, f"{error.message} ({HEADER}: {values[0]})"
    return error


def _values(scope: Scope) -> list[str]:
    found = [value for name, value in scope["headers"] if name == HEADER.encode()]
    return [value.decode(errors="backslashreplace").strip() for value in found]
