"""A small HTTP server in a thread of its own, for tests of commands that run a loop themselves."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def small_server(answer: Callable[[str], tuple[int, Any]]) -> Iterator[str]:
    """Answers every GET with the status and the JSON value that `answer` returns for its target; yields HOST:PORT."""

    class SmallHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, value = answer(self.path)
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), SmallHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
