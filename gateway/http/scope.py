"""The scope of a request: what an ASGI application learns from its head and its connection."""

import asyncio
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.types import Scope

from gateway.http.head import Headers
from gateway.http.writing import EXTENSION, ClientWriter


def request_scope(writer: ClientWriter, method: str, version: str, target: bytes, headers: Headers) -> Scope:
    url, transport = httptools.parse_url(target), writer.transport
    path = (url.path or b"/").decode("ascii")
    if url.host is not None:  # the whole URL is the target: it decides, not the Host header
        named = url.host if url.port is None else b"%b:%d" % (url.host, url.port)
        headers = [(name, named if name == b"host" else value) for name, value in headers]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": method,
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        "server": _host_and_port(transport, "sockname"),
        "client": _host_and_port(transport, "peername"),
        "root_path": "",
        "path": unquote(path) if "%" in path else path,
        "raw_path": url.path or b"/",
        "query_string": url.query or b"",
        "headers": headers,
        "extensions": {EXTENSION: writer},
    }


def _host_and_port(transport: asyncio.Transport, which: str) -> tuple[str, int] | None:
    """Host and port of one end of the connection; None where a file names it."""
    name: Any = transport.get_extra_info(which)
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else None
