"""Routes of receipts: one by its id, and the public key that signs them.

An id has 128 random bits, and with tenants only the one whose answer it was finds the receipt; every other path below
gets the same 404."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.dialects.common.missing import missing
from gateway.dialects.common.sse import encode
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.guard import admission_of
from gateway.receipts.receipts import Receipts
from gateway.receipts.signing import ALGORITHM, KeyFileError
from gateway.tenants.admission import OPEN
from mesh.errors import brief

JSON = "application/json"
MAX_ID = 64  # characters; no id is longer


def receipt_routes(receipts: Receipts) -> list[BaseRoute]:
    async def key(request: Request) -> Response:
        try:
            found = await receipts.key()
        except (OSError, KeyFileError):
            return missing("this gateway has no key to sign receipts with; its log says why at the first receipt")
        content = {"algorithm": ALGORITHM, "key": found.public, "pem": found.public_pem}
        return Response(encode(content), media_type=JSON)

    async def one(request: Request) -> Response:
        id = str(request.path_params["id"])
        owner = admission_of(request.scope, OPEN).tenant
        found = await receipts.find(id, owner) if len(id) <= MAX_ID else None
        if found is None:
            return missing(f"there is no receipt {brief(id)!r}, or not any more: keep the one that the answer carries")
        return Response(found, media_type=JSON)

    return routes_of({"/v1/receipts/key": key, "/v1/receipts/{id}": one})
