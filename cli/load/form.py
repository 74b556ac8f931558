"""The JSON body of every request of a run: which endpoint, which optional fields, and the prompt."""

import json
from dataclasses import dataclass
from enum import Enum

from cli.load.plan import LoadRequest
from cli.load.prompts import PromptMaker


class Endpoint(Enum):
    COMPLETIONS = "completions"  # prompts as token ids where the server takes them
    CHAT = "chat"  # prompts as one user message


@dataclass(frozen=True, slots=True)
class RequestForm:
    model: str
    endpoint: Endpoint
    prompts: PromptMaker
    ignores_end: bool = True  # answers go on to their planned length
    wants_usage: bool = True  # the last chunk tells the numbers of tokens

    @property
    def path(self) -> str:
        """Below the base URL."""
        return "/completions" if self.endpoint is Endpoint.COMPLETIONS else "/chat/completions"

    def body(self, number: int, request: LoadRequest) -> bytes:
        fields: dict[str, object] = {
            "model": self.model,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "stream": True,
        }
        if self.wants_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.ignores_end:
            fields["ignore_eos"] = True
        prompt = self.prompts.prompt(number, request)
        if self.endpoint is Endpoint.CHAT:
            named = b'"messages":[{"role":"user","content":' + prompt + b"}]"
        else:
            named = b'"prompt":' + prompt
        return json.dumps(fields).encode()[:-1] + b"," + named + b"}"
