"""The requests of the library: prompts go to the mesh over HTTP, and answers become outputs."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cli.connecting.http_client import HttpClient, HttpResponse, RequestFailed, decoded
from cli.load.event_stream import EventParser
from library.outputs import (
    CompletionOutput,
    EmbeddedText,
    EmbeddingRequestOutput,
    Logprob,
    Logprobs,
    PromptLogprobs,
    RequestOutput,
)
from library.params import SamplingParams
from library.prompts import GivenPrompt

Json = dict[str, Any]
MOST_ANSWER_BYTES = 1 << 30
_NOT_ENABLED = "gateway.load_adapters"  # the setting that an error of the mesh names
MOST_NAMED = 1000  # candidates of a token whose texts are asked for
_ID = "token_id:"  # begins the name of a token whose id is its name


class RequestRefused(ValueError):
    """The mesh refuses a request; the message names the field and says what to do."""


class MeshUnavailable(RuntimeError):
    """The mesh cannot answer now."""


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as the mesh gets it."""

    text: str | None
    ids: tuple[int, ...] | None  # None: the text goes as it is, because it will be cut
    room: int  # tokens that the model's context has behind it


class ModelDoor:
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._names = dict[int, str]()  # texts of tokens, as far as they were asked for
        self._context_tokens = 0  # once it is known

    def close(self) -> None:
        self._client.close()

    # ---- prompts

    async def read(self, prompt: GivenPrompt, *, cut: bool = False) -> ReadPrompt:
        """`cut`: the mesh will cut the prompt."""
        context = await self.context_tokens()
        if prompt.ids is not None:
            return ReadPrompt(prompt.text, prompt.ids, context if cut else context - len(prompt.ids))
        if cut:
            return ReadPrompt(prompt.text, None, context)
        return _prompt(prompt.text, await self._ask("/tokenize", {"prompt": prompt.text}))

    async def render(self, messages: Sequence[Mapping[str, Any]], options: Json) -> ReadPrompt:
        """The prompt that a chat becomes."""
        found = await self._ask("/tokenize", {"messages": list(messages), **options})
        return _prompt(await self.decode(found["tokens"]), found)

    async def context_tokens(self) -> int:
        if not self._context_tokens:
            models = await self._get("/v1/models")
            self._context_tokens = int(models["data"][0]["max_model_len"])
        return self._context_tokens

    async def decode(self, ids: Sequence[int]) -> str:
        return str((await self._ask("/detokenize", {"tokens": list(ids)}))["prompt"])

    async def load_adapter(self, name: str, folder: str) -> None:
        """All workers have the adapter when this returns."""
        body = {"lora_name": name, "lora_path": folder, "load_inplace": True}
        try:
            await self._ask("/v1/load_lora_adapter", body)
        except RequestRefused as error:
            if _NOT_ENABLED not in str(error):
                raise
            raise RequestRefused("lora_request: this model loads no adapters; open it with enable_lora=True") from None

    # ---- answers

    async def complete(self, request_id: str, prompt: ReadPrompt, params: SamplingParams, **more: Any) -> RequestOutput:
        answer = await self._ask("/v1/completions", {**_body(prompt, params), **more})
        output = RequestOutput(request_id, prompt.text, answer["choices"][0]["prompt_token_ids"], [])
        for choice in answer["choices"]:
            output.outputs.append(one := CompletionOutput(choice["index"], "", []))
            _add(one, choice, params)
            output.prompt_logprobs = output.prompt_logprobs or _of_prompt(choice.get("prompt_logprobs"))
        output.num_cached_tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        output.metrics = answer["timings"]
        if params.logprobs is not None:
            await self._name([one.logprobs for one in output.outputs if one.logprobs])
        return output

    async def stream(
        self, request_id: str, prompt: ReadPrompt, params: SamplingParams, **more: Any
    ) -> AsyncIterator[RequestOutput]:
        """The answer as it grows: each output has everything so far."""
        body = _body(prompt, params) | {"stream": True, "stream_options": {"include_usage": True}, **more}
        output = RequestOutput(request_id, prompt.text, list(prompt.ids or ()), [], finished=False)
        output.outputs = [CompletionOutput(index, "", []) for index in range(params.n)]
        async for event in self._events("/v1/completions", body):
            for choice in event["choices"]:
                _add(output.outputs[choice["index"]], choice, params)
                output.prompt_token_ids = choice.get("prompt_token_ids") or output.prompt_token_ids
                output.prompt_logprobs = output.prompt_logprobs or _of_prompt(choice.get("prompt_logprobs"))
            if usage := event.get("usage"):
                output.num_cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
                output.metrics, output.finished = event.get("timings", {}), True
            if params.logprobs is not None:
                await self._name([one.logprobs for one in output.outputs if one.logprobs])
            yield output

    async def embed(self, request_id: str, prompt: ReadPrompt, **more: Any) -> EmbeddingRequestOutput:
        ids = list(prompt.ids or ())
        answer = await self._ask("/v1/embeddings", {"input": ids, **more})
        embedded = EmbeddedText(answer["data"][0]["embedding"])
        return EmbeddingRequestOutput(request_id, embedded, ids)

    # ---- requests

    async def _get(self, path: str) -> Any:
        async with self._sent("GET", path) as response:
            return await _content(response)

    async def _ask(self, path: str, body: Json) -> Any:
        async with self._sent("POST", path, _encoded(body)) as response:
            return await _content(response)

    @asynccontextmanager
    async def _sent(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[HttpResponse]:
        try:
            async with self._client.send(method, path, body) as response:
                yield response
        except RequestFailed as error:
            raise MeshUnavailable(f"the mesh does not answer ({error}): close the model and open it again") from None

    async def _events(self, path: str, body: Json) -> AsyncIterator[Json]:
        async with self._sent("POST", path, _encoded(body)) as response:
            if response.status >= 400:
                await _content(response)
            parser = EventParser()
            async for piece in response.pieces():
                for data in parser.feed(piece):
                    if data == b"[DONE]":
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        raise MeshUnavailable(event["error"]["message"])
                    yield event

    async def _name(self, every: Sequence[Logprobs]) -> None:
        """Fill in the texts of the tokens, where they are not too many."""
        every = [each for each in every if max(map(len, each)) <= MOST_NAMED]
        unknown = {token for each in every for position in each for token in position} - self._names.keys()
        texts = await asyncio.gather(*(self.decode([token]) for token in unknown))
        self._names.update(zip(unknown, texts, strict=True))
        for each in every:
            for position in each:
                for token, about in position.items():
                    if about.decoded_token is None:
                        position[token] = Logprob(about.logprob, about.rank, self._names[token])


def _encoded(body: Json) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value cannot be sent as JSON: {error}") from None


async def _content(response: HttpResponse) -> Any:
    raw = await response.body(MOST_ANSWER_BYTES)
    content = decoded(raw)
    if response.status < 400:
        return content
    error = content.get("error", {}) if isinstance(content, dict) else {}
    message = error.get("message") or f"HTTP {response.status}"
    raise RequestRefused(message) if response.status < 500 and response.status != 429 else MeshUnavailable(message)


def _prompt(text: str | None, found: Json) -> ReadPrompt:
    return ReadPrompt(text, tuple(found["tokens"]), found["max_model_len"] - found["count"])


def _body(prompt: ReadPrompt, params: SamplingParams) -> Json:
    """An answer ends where the context is full. A prompt that leaves no room is refused by the mesh."""
    given = prompt.text if prompt.ids is None else list(prompt.ids)
    body = params.body() | {"prompt": given, "return_token_ids": True}
    if params.logprobs is not None:
        body["return_tokens_as_token_ids"] = True
    if params.truncate_prompt_tokens is None and (params.max_tokens is None or params.max_tokens > prompt.room):
        body["max_tokens"] = max(1, prompt.room)
        body["min_tokens"] = min(params.min_tokens, body["max_tokens"])
    return body


def _add(output: CompletionOutput, choice: Json, params: SamplingParams) -> None:
    """Appends a part of an answer, or all of it."""
    output.token_ids += choice.get("token_ids") or ()
    output.text += choice["text"] if params.detokenize else ""
    if choice.get("logprobs"):
        likely, taken = _likely(choice["logprobs"], math.inf if params.logprobs == -1 else params.logprobs or 0)
        output.logprobs = (output.logprobs or []) + likely
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + taken
    if choice.get("finish_reason") is not None:
        output.finish_reason, output.stop_reason = choice["finish_reason"], choice.get("stop_reason")


def _likely(logprobs: Json, asked: float) -> tuple[Logprobs, float]:
    """The candidates of each token, and the sum of the logprobs of those that were taken. Behind the most likely ones,
    as many as were asked for, comes the token that was taken if it is none of these."""
    found: Logprobs = []
    names, taken = logprobs["tokens"], logprobs["token_logprobs"]
    for name, logprob, top in zip(names, taken, logprobs["top_logprobs"] or [None] * len(names), strict=True):
        order = sorted((top or {name: logprob}).items(), key=lambda each: -each[1])
        found.append(
            {
                int(each.removeprefix(_ID)): Logprob(value, rank if rank <= asked else None)
                for rank, (each, value) in enumerate(order, 1)
            }
        )
    return found, sum(taken)


def _of_prompt(given: list[Json | None] | None) -> PromptLogprobs | None:
    if given is None:
        return None
    return [None if each is None else _candidates(each) for each in given]


def _candidates(given: Json) -> dict[int, Logprob]:
    return {int(token): Logprob(one["logprob"], one["rank"], one["decoded_token"]) for token, one in given.items()}
