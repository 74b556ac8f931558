"""The outcome of one request, and its line in the output file, in OpenAI's format."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.batches.lines import digest

ID_PREFIX = "batch_req_"


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """A whole answer, of whatever status."""

    status: int
    request_id: str
    body: Any  # decoded JSON
    retry_after_seconds: float = 0.0  # as the server asks; 0: it does not


class NoAnswer(Exception):
    """A try that brought no answer."""

    def __init__(self, code: str, message: str, *, final: bool = False) -> None:
        """`final`: another try would end in the same way."""
        super().__init__(message)
        self.code, self.message, self.final = code, message, final


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    custom_id: str
    answer: BatchAnswer | None
    error: NoAnswer | None = None

    @property
    def failed(self) -> bool:
        return self.answer is None or self.answer.status >= 400

    def line(self) -> bytes:
        """The line with its end. Its id follows from the custom_id, so that two runs name a request alike."""
        answer, error = self.answer, self.error
        value = {
            "id": ID_PREFIX + digest(self.custom_id).hex(),
            "custom_id": self.custom_id,
            "response": answer and {"status_code": answer.status, "request_id": answer.request_id, "body": answer.body},
            "error": error and {"code": error.code, "message": error.message},
        }
        return json.dumps(value).encode() + b"\n"


def tokens_of(answer: BatchAnswer | None) -> tuple[int, int]:
    """Tokens of the prompt and new ones, as the answer's usage counts them in one of OpenAI's two spellings."""
    usage = answer.body.get("usage") if answer is not None and isinstance(answer.body, dict) else None
    if not isinstance(usage, dict):
        return 0, 0
    return (
        _count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        _count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
