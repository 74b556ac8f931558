"""Files and servers for the tests of batches."""

import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from tests.unit.cli.load.fake_server import FakeRequest, whole

URL = "/v1/completions"


def entry(custom_id: object, /, **changes: Any) -> dict[str, Any]:
    """A request that has no fault, but for the changes; a value of `...` removes the field."""
    fields = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": str(custom_id)}} | changes
    return {key: value for key, value in fields.items() if value is not ...}


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def numbered(path: Path, count: int, first: int = 0) -> Path:
    return write_lines(path, (entry(f"r-{number}") for number in range(first, first + count)))


def outcomes(*paths: Path) -> dict[str, dict[str, Any]]:
    """The outcomes by custom_id. Every line is whole, and no custom_id stands twice."""
    found = dict[str, dict[str, Any]]()
    for path in paths:
        data = path.read_bytes()
        assert data == b"" or data.endswith(b"\n"), "the last line is torn"
        for line in data.splitlines():
            value = json.loads(line)
            assert value["custom_id"] not in found, f"{value['custom_id']} stands twice"
            found[value["custom_id"]] = value
    return found


class EchoServer:
    """Answers each completion with its prompt; `scripted` are the answers that it gives first."""

    def __init__(self, *scripted: bytes) -> None:
        self.scripted = list(scripted)
        self.requests: list[FakeRequest] = []

    async def answers(self, request: FakeRequest) -> AsyncIterator[bytes]:
        if request.path == "/v1/models":
            yield whole(200, {"data": [{"id": "fake"}]})
            return
        self.requests.append(request)
        yield self.scripted.pop(0) if self.scripted else self.echo(request)

    @staticmethod
    def echo(request: FakeRequest) -> bytes:
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        answer = {"choices": [{"text": request.fields["prompt"]}], "usage": usage}
        return whole(200, answer, "x-request-id: id-of-" + ascii(request.fields["prompt"])[1:-1][:8])
