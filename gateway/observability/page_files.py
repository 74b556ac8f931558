"""The files of the page `/ui`, read once at start: HTML, one style sheet, modules, pictures. No build step made them.

The policy lets the page load from its own gateway only and run no script but these files; nothing a mesh reports, and
nothing a model answers, can become markup or script."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # browsers ask each time, and get 304 while the file is the same
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    kind: str
    etag: str

    def answer(self, request: Request) -> Response:
        headers = HEADERS | {"etag": self.etag}
        known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
        if self.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers | {"content-type": self.kind})


def read_page_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Files of the page, by name."""
    return {path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in KINDS}


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    return PageFile(content, KINDS[path.suffix], f'"{sha256(content).hexdigest()[:24]}"')
