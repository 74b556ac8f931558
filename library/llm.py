"""`LLM`: a model from Python, with the calls of vLLM's class of this name.

It runs an event loop in a thread of its own, so it works in a script and in a notebook alike. What it opened ends with
`close`, with the `with` block, when the object goes, or with the process."""

import gc
import math
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from library.adapters import LoRARequest, adapter_of, adapters_for_each
from library.asking import Asking
from library.beams import BeamSearchOutput, BeamSearchParams, beams_of
from library.loop_thread import CLOSED, LoopThread
from library.opened import ModelOrder, OpenModel, Workers, opened
from library.outputs import EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput, TextScore
from library.params import SamplingParams, ids_of, listed_of, whole_number
from library.progress import PromptProgress
from library.prompts import Message, Prompt, encodable, given_prompt, many_chats, many_prompts

Params = SamplingParams | Sequence[SamplingParams]
Adapters = LoRARequest | Sequence[LoRARequest | None]  # one for all, or one for each


class LLM:
    """`model`: a folder, ORG/NAME of the hub, a GGUF file; None: the built-in model. `workers`: None computes in this
    process; a number, or (prefill, decode), starts a mesh of so many processes. All other arguments are settings of
    docs/configuration.md or names that vLLM has for them."""

    def __init__(
        self, model: str | None = None, *, workers: Workers | None = None, seed: int | None = None, **settings: Any
    ) -> None:
        order = ModelOrder.of(model, workers, settings)
        seed = None if seed is None else whole_number("seed", seed)
        self._thread = LoopThread()
        self._closes = weakref.finalize(self, close_thread, self._thread)
        try:
            found: OpenModel = self._thread.run(self._thread.stack.enter_async_context(opened(order)))
        except BaseException:
            self._closes()
            raise
        self._asking = Asking(found.door, found.at_once, seed)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | None = None,
        use_tqdm: bool = True,
        lora_request: Adapters | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts. `sampling_params`: one for all, or one for each."""
        asked = many_prompts("prompts", prompts)
        params, adapters = _for_each(sampling_params, len(asked)), adapters_for_each(lora_request, len(asked))
        ranks = None if priority is None else ids_of("priority", priority)
        if ranks is not None and len(ranks) != len(asked):
            raise ValueError(f"priority has {len(ranks)} entries for {len(asked)} prompts: give one for each")
        with PromptProgress(len(asked), shown=use_tqdm) as progress:
            return self._thread.run(self._asking.generate(asked, params, progress.done, ranks, adapters))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params | None = None,
        use_tqdm: bool = True,
        lora_request: Adapters | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """One conversation or several; the text of an answer is what the model wrote, tool calls and all."""
        conversations = many_chats(messages)
        count = len(conversations)
        params, adapters = _for_each(sampling_params, count), adapters_for_each(lora_request, count)
        if not isinstance(chat_template_kwargs, Mapping | None):
            raise TypeError("chat_template_kwargs must be a dict")
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message or None,
            "tools": listed_of("tools", tools, "tools") if tools is not None else None,
            "chat_template_kwargs": dict(chat_template_kwargs) if chat_template_kwargs else None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        with PromptProgress(len(conversations), shown=use_tqdm) as progress:
            return self._thread.run(self._asking.chat(conversations, params, given, progress.done, adapters))

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        use_tqdm: bool = True,
        lora_request: Adapters | None = None,
    ) -> list[BeamSearchOutput]:
        """The answers with the highest scores, `beam_width` for each prompt, the best one first."""
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params must be BeamSearchParams, not {type(params).__name__}")
        asked = many_prompts("prompts", prompts)
        adapters = adapters_for_each(lora_request, len(asked))
        with PromptProgress(len(asked), shown=use_tqdm) as progress:
            found = self._thread.run(self._asking.beam_search(asked, params, progress.done, adapters))
        return [beams_of(each) for each in found]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        use_tqdm: bool = True,
        dimensions: int | None = None,
        lora_request: Adapters | None = None,
    ) -> list[EmbeddingRequestOutput]:
        asked = many_prompts("prompts", prompts)
        adapters = adapters_for_each(lora_request, len(asked))
        with PromptProgress(len(asked), shown=use_tqdm) as progress:
            return self._thread.run(self._asking.embed(asked, dimensions, progress.done, adapters))

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """How alike two texts are: the cosine of their embeddings. One text against many, or pairs of texts."""
        left, right = many_prompts("data_1", data_1), many_prompts("data_2", data_2)
        if len(left) not in (1, len(right)):
            raise ValueError(f"data_1 has {len(left)} texts and data_2 {len(right)}: give as many, or one in data_1")
        adapters = adapters_for_each(adapter_of(lora_request), len(left) + len(right))
        with PromptProgress(len(left) + len(right), shown=use_tqdm) as progress:
            found = self._thread.run(self._asking.embed([*left, *right], None, progress.done, adapters))
        firsts, seconds = found[: len(left)], found[len(left) :]
        pairs = zip(firsts * len(seconds) if len(firsts) == 1 else firsts, seconds, strict=True)
        return [_scored(one, two) for one, two in pairs]

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt."""
        if not isinstance(text, str):
            raise TypeError(f"text must be a text, not {type(text).__name__}")
        prompt = given_prompt("text", encodable("text", text))
        return list(self._thread.run(self._asking.door.read(prompt)).ids or ())

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._thread.run(self._asking.door.decode(ids_of("token_ids", token_ids)))

    def close(self) -> None:
        """End what was opened; calls that still run raise RuntimeError. Idempotent."""
        self._closes()

    def __enter__(self) -> "LLM":
        if self._thread.closed:
            raise RuntimeError(CLOSED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a model that is open cannot be copied or sent to another process: open it there")


def close_thread(thread: LoopThread) -> None:
    thread.close()
    gc.collect()  # parts of the model refer to each other, and hold its pages


def _for_each(params: Params | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    given: Any = params
    listed: list[Any] = [given]
    if not isinstance(given, Mapping | str):
        listed = listed_of("sampling_params", given, "SamplingParams")
    for each in listed:
        if not isinstance(each, SamplingParams):
            raise TypeError(f"sampling_params must be SamplingParams, one or one for each prompt, not {each!r}")
    if len(listed) != count:
        raise ValueError(f"sampling_params has {len(listed)} entries for {count} prompts: give one, or one for each")
    return listed


def _scored(one: EmbeddingRequestOutput, two: EmbeddingRequestOutput) -> ScoringRequestOutput:
    ids = one.prompt_token_ids + two.prompt_token_ids
    return ScoringRequestOutput(two.request_id, TextScore(_cosine(one, two)), ids)


def _cosine(one: EmbeddingRequestOutput, two: EmbeddingRequestOutput) -> float:
    first, second = one.outputs.embedding, two.outputs.embedding
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / (math.hypot(*first) * math.hypot(*second))
