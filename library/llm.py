"""`LLM`: a model from Python, with the calls of vLLM's class of this name.

It runs an event loop in a thread of its own, so it works in a script and in a notebook alike. What it opened ends with
`close`, with the `with` block, when the object goes, or with the process."""

import math
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from library.asking import Asking, Message, Prompt, many
from library.loop_thread import LoopThread
from library.opened import Workers, opened
from library.outputs import EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput, TextScore
from library.params import SamplingParams
from library.progress import PromptProgress

Params = SamplingParams | Sequence[SamplingParams]


class LLM:
    """`model`: a folder, ORG/NAME of the hub, a GGUF file; None: the built-in model. `workers`: None computes in this
    process; a number, or (prefill, decode), starts a mesh of so many processes. All other arguments are settings of
    docs/configuration.md or names that vLLM has for them."""

    def __init__(
        self, model: str | None = None, *, workers: Workers | None = None, seed: int | None = None, **settings: Any
    ) -> None:
        self._thread, stack = LoopThread(), AsyncExitStack()
        self._closes = weakref.finalize(self, _close, self._thread, stack)
        try:
            found = self._thread.run(stack.enter_async_context(opened(model, workers, settings)))
        except BaseException:
            self._closes()
            raise
        self._asking = Asking(found.door, found.at_once, seed)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts. `sampling_params`: one for all, or one for each."""
        _refuse_adapter(lora_request)
        asked = many(prompts)
        with PromptProgress(len(asked), shown=use_tqdm) as progress:
            params = _for_each(sampling_params, len(asked))
            return self._thread.run(self._asking.generate(asked, params, progress.done, priority))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params | None = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """One conversation or several; the text of an answer is what the model wrote, tool calls and all."""
        _refuse_adapter(lora_request)
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if one else messages
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message or None,
            "tools": list(tools) if tools else None,
            "chat_template_kwargs": dict(chat_template_kwargs) if chat_template_kwargs else None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        with PromptProgress(len(conversations), shown=use_tqdm) as progress:
            params = _for_each(sampling_params, len(conversations))
            return self._thread.run(self._asking.chat(conversations, params, given, progress.done))

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True, dimensions: int | None = None
    ) -> list[EmbeddingRequestOutput]:
        asked = many(prompts)
        with PromptProgress(len(asked), shown=use_tqdm) as progress:
            return self._thread.run(self._asking.embed(asked, dimensions, progress.done))

    def score(
        self, data_1: Prompt | Sequence[Prompt], data_2: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[ScoringRequestOutput]:
        """How alike two texts are: the cosine of their embeddings. One text against many, or pairs of texts."""
        left, right = many(data_1), many(data_2)
        if len(left) not in (1, len(right)):
            raise ValueError(f"data_1 has {len(left)} texts and data_2 {len(right)}: give as many, or one in data_1")
        found = self.embed([*left, *right], use_tqdm=use_tqdm)
        firsts, seconds = found[: len(left)], found[len(left) :]
        pairs = zip(firsts * len(seconds) if len(firsts) == 1 else firsts, seconds, strict=True)
        return [_scored(one, two) for one, two in pairs]

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt."""
        return list(self._thread.run(self._asking.door.encode(text)).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._thread.run(self._asking.door.decode(token_ids))

    def close(self) -> None:
        """End what was opened. Idempotent."""
        self._closes()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(thread: LoopThread, stack: AsyncExitStack) -> None:
    try:
        thread.run(stack.aclose())
    finally:
        thread.close()


def _for_each(params: Params | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    return list(params)


def _refuse_adapter(lora_request: Any) -> None:
    if lora_request is not None:
        raise ValueError("lora_request is not supported: adapters are not served; merge it into the model's weights")


def _scored(one: EmbeddingRequestOutput, two: EmbeddingRequestOutput) -> ScoringRequestOutput:
    ids = one.prompt_token_ids + two.prompt_token_ids
    return ScoringRequestOutput(two.request_id, TextScore(_cosine(one, two)), ids)


def _cosine(one: EmbeddingRequestOutput, two: EmbeddingRequestOutput) -> float:
    first, second = one.outputs.embedding, two.outputs.embedding
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / (math.hypot(*first) * math.hypot(*second))
