"""The page for a thing that is not there: a receipt, a stored response, a file or a batch."""

from starlette.responses import Response

from gateway.dialects.common.sse import encode
from gateway.http import errors as http_errors

JSON = "application/json"


def missing(message: str) -> Response:
    content = http_errors.body(404, message, "NOT_FOUND")
    return Response(encode(content), 404, http_errors.page_headers(content), media_type=JSON)
