"""Pages of lists: how many entries, in which order, and behind which one."""

from starlette.requests import Request

from gateway.dialects.guard import admission_of
from gateway.tenants.admission import OPEN
from mesh.errors import InvalidRequest, brief

MOST_ID = 256  # characters; no id is longer


def whose(request: Request) -> tuple[str, str]:
    """The id in the path, and the tenant who asks."""
    return str(request.path_params.get("id", ""))[: MOST_ID + 1], tenant_of(request)


def tenant_of(request: Request) -> str:
    return admission_of(request.scope, OPEN).tenant


def limit_of(request: Request, usual: int, most: int) -> int:
    text = request.query_params.get("limit")
    limit = usual if text is None else int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not 1 <= limit <= most:
        raise InvalidRequest("limit", f"limit must be a number from 1 to {most}")
    return limit


def newest_first(request: Request) -> bool:
    text = request.query_params.get("order")
    if text not in (None, "asc", "desc"):
        raise InvalidRequest("order", "order must be asc or desc")
    return text != "asc"


def no_such(after: str | None) -> InvalidRequest:
    return InvalidRequest("after", f"after: there is no entry with the id {brief(repr(after))}")
