"""Answers of a model, with the names that vLLM's outputs have."""

from dataclasses import dataclass, field

Logprobs = list[dict[int, "Logprob"]]  # for each token: candidates by their ids
PromptLogprobs = list[dict[int, "Logprob"] | None]  # the first token has none


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int | None = None  # 1: the most likely token; None: the token is not among those that were asked for
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None  # stop | length
    stop_reason: int | str | None = None  # the stop string or token id that ended it

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int = 0  # tokens of the prompt whose pages were in a cache
    metrics: dict[str, float] = field(default_factory=dict)  # seconds of the slowest answer: docs/api.md, "timings"


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    request_id: str
    outputs: EmbeddedText
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(frozen=True, slots=True)
class TextScore:
    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    request_id: str
    outputs: TextScore
    prompt_token_ids: list[int]  # those of both texts, one behind the other
    finished: bool = True
