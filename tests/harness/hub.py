"""A Hugging Face hub on this machine: repositories of files, served by the hub's protocol as its library asks for it.

Model information, HEAD requests with ETag and commit, ranges, and the errors that a hub answers. It counts what was
asked of it, and breaks off downloads where a test wants that."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secret_of_the_tests"


@dataclass
class HubRepository:
    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": "1" * 40})
    gated: bool = False


@dataclass
class FakeHub:
    repositories: dict[str, HubRepository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)  # method and path
    ranges: list[str] = field(default_factory=list)
    sent: int = 0  # bytes of files
    breaks: list[int] = field(default_factory=list)  # the next downloads of longer files end before these bytes
    stalls: list[int] = field(default_factory=list)  # the next downloads of longer files stop after these bytes
    stalled: threading.Event = field(default_factory=threading.Event)  # lets them end
    lost: set[str] = field(default_factory=set)  # files that are listed and cannot be downloaded
    down: bool = False  # every request is answered with 503
    endpoint: str = ""

    def of(self, path: str) -> tuple[str, HubRepository | None]:
        name = "/".join(path.strip("/").removeprefix("api/models/").split("/")[:2])
        return name, self.repositories.get(name)


@contextmanager
def serve_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(_HubHandler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.stalled.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    state: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `requests` instead."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append(f"{self.command} {path}")
        name, repository = self.state.of(path)
        if self.state.down:
            self._send(503, {}, b"the hub rests")
        elif repository is None:
            self._fail(401, "RepoNotFound", "Invalid username or password.")
        elif repository.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._fail(403, "GatedRepo", "Access to this model is restricted.")
        elif path.startswith("/api/"):
            self._information(name, repository, path)
        else:
            self._file(repository, path.removeprefix(f"/{name}/resolve/"), body=body)

    def _information(self, name: str, repository: HubRepository, path: str) -> None:
        revision = path.partition("/revision/")[2] or "main"
        commit = self._commit(repository, revision)
        if commit is None:
            return self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = [{"rfilename": file, "size": len(data)} for file, data in repository.files.items()]
        about = {"id": name, "modelId": name, "sha": commit, "private": False, "siblings": siblings, "tags": []}
        return self._send(200, {"Content-Type": "application/json"}, json.dumps(about).encode())

    def _file(self, repository: HubRepository, rest: str, *, body: bool) -> None:
        revision, _, file = rest.partition("/")
        commit, data = self._commit(repository, revision), repository.files.get(file)
        if commit is None:
            return self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if data is None or file in self.state.lost:
            return self._fail(404, "EntryNotFound", "Entry not found")
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        first, status = 0, 200
        if wanted := self.headers.get("Range"):
            self.state.ranges.append(wanted)
            first, status = int(wanted.removeprefix("bytes=").split("-")[0]), 206
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        part = data[first:]
        if not body:
            return self._send(status, headers | {"Content-Length": str(len(part))}, b"")
        if self.state.breaks and len(data) > self.state.breaks[0]:
            self._send(status, headers | {"Content-Length": str(len(part))}, data[first : self.state.breaks.pop(0)])
            self.close_connection = True
            return None
        if self.state.stalls and len(data) > self.state.stalls[0]:
            self._send(status, headers | {"Content-Length": str(len(part))}, data[first : self.state.stalls.pop(0)])
            self.state.stalled.wait(60)
            self.close_connection = True
            return None
        self.state.sent += len(part)
        return self._send(status, headers, part)

    def _commit(self, repository: HubRepository, revision: str) -> str | None:
        return revision if revision in repository.revisions.values() else repository.revisions.get(revision)

    def _fail(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"}
        self._send(status, headers, json.dumps({"error": message}).encode())

    def _send(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
