"""Beam search from Python, with the names of vLLM's `LLM.beam_search`."""

from dataclasses import dataclass
from typing import Any

from library.outputs import Logprobs, RequestOutput
from library.params import SamplingParams, finite_number, whole_number


@dataclass(kw_only=True)
class BeamSearchParams:
    beam_width: int  # beams that are kept, and answers that come back
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0  # no token is drawn
    length_penalty: float = 1.0  # above 0 longer answers gain

    def __post_init__(self) -> None:
        self.beam_width = whole_number("beam_width", self.beam_width)
        self.max_tokens = whole_number("max_tokens", self.max_tokens)
        self.length_penalty = finite_number("length_penalty", self.length_penalty)
        for name in ("beam_width", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.temperature not in (0, 1):
            raise ValueError(f"temperature must be 0 or 1, not {self.temperature}: a beam search draws no token")

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            n=self.beam_width, temperature=0.0, max_tokens=self.max_tokens, ignore_eos=self.ignore_eos, logprobs=0
        )

    def more(self) -> dict[str, Any]:
        """Fields of a completion that sampling has not."""
        return {"use_beam_search": True, "length_penalty": self.length_penalty}


@dataclass(slots=True)
class BeamSearchSequence:
    """One answer; the best ones come first."""

    tokens: list[int]  # those of the prompt, then those of the answer
    logprobs: Logprobs  # the answer's
    cum_logprob: float
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    sequences: list[BeamSearchSequence]


def beams_of(output: RequestOutput) -> BeamSearchOutput:
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                output.prompt_token_ids + one.token_ids,
                one.logprobs or [],
                one.cumulative_logprob or 0.0,
                one.text,
                one.finish_reason,
                one.stop_reason,
            )
            for one in output.outputs
        ]
    )
