"""Headers that every answer of the gateway carries except generated text: what browsers may do with it.

Answers show operations; a page of another site may not embed them, and no browser may guess another type or keep them.
What an answer sets itself stays. A redirect names a path only, never the host that the client wrote."""

from urllib.parse import urlsplit, urlunsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

GENERATES = ("/v1/chat/completions", "/v1/completions")  # each token there is one write: nothing stands between
DEFAULTS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class SafeHeaders:
    """An ASGI application: another one, with these headers where it sets none of the name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _completed(message.get("headers", ()))
            await send(message)

        plain = scope["type"] != "http" or scope["path"] in GENERATES
        await self._app(scope, receive, send if plain else send_safely)


def _completed(given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    headers = [(name, _path_of(value) if name == b"location" else value) for name, value in given]
    names = {name for name, _ in headers}
    return [*headers, *(header for header in DEFAULTS if header[0] not in names)]


def _path_of(location: bytes) -> bytes:
    _, _, path, query, _ = urlsplit(location.decode("latin-1"))
    return urlunsplit(("", "", f"/{path.lstrip('/')}", query, "")).encode("latin-1")
