"""Checks each job once more at the worker that gets it, so that no gateway can end a worker or harm its other requests.

The gateway has validated the client's request (gateway/validation/validate.py), so a job that fails here comes from a
gateway with a defect, or of another version. The worker answers Lost with the text from here and goes on; the gateway
ends that request, or tries another worker if only the length is at fault."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mesh.messages.jobs import Adjustments, Job, Reason, ReasoningBudget, Sampling
from mesh.messages.orders import Examination, Examine, Open, Prefill
from mesh.messages.reports import Hello

MOST_PRIORITY = 1_000_000  # steps of priority, in either direction: far beyond what gateways send
MOST_SECONDS = 1e15  # seconds until a deadline, at most; gRPC allows 1e8 hours
INT32 = 2**31


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The bounds of every job for one worker."""

    vocabulary: int  # token ids of the model; 0: not known, then only numbers that no model can have are refused
    context_tokens: int  # longest prompt and answer together

    @classmethod
    def of(cls, hello: Hello) -> "JobLimits":
        return cls(hello.vocabulary, hello.context_tokens)

    def refusal(self, message: Open | Prefill | Examine) -> tuple[Reason, str] | None:
        """Why this worker cannot compute the job; None: it can. A model of another context may take a longer one."""
        if fault := self._fault(message):
            return Reason.FAILED, fault
        if too_long := self._too_long(message.job, examined=isinstance(message, Examine)):
            return Reason.TOO_LARGE, too_long
        return None

    def _fault(self, message: Open | Prefill | Examine) -> str:
        """Why no worker can compute this job, as a text that names the field; empty: it is sound."""
        job = message.job
        faults = [
            "prompt is empty" if not job.prompt else "",
            self._ids("prompt", job.prompt),
            self._ids("emitted", job.emitted),
            _within("priority", job.priority, -MOST_PRIORITY, MOST_PRIORITY),
            _within("deadline_seconds", job.deadline_seconds or 0.0, 0.0, MOST_SECONDS),
            _within("start_seconds", job.start_seconds or 0.0, 0.0, MOST_SECONDS),
        ]
        if isinstance(message, Examine):
            faults += self._examination(message.examination)
        else:
            faults += self._sampling(job)
        return next(filter(None, faults), "")

    def _too_long(self, job: Job, *, examined: bool) -> str:
        """An answer's last token needs no slot of its own, but the gateway counts it too."""
        answer = 0 if examined else max(job.base + 1, job.sampling.max_tokens)
        tokens = len(job.prompt) + answer
        if tokens <= self.context_tokens:
            return ""
        return f"prompt and answer need {tokens} tokens, the model's context is {self.context_tokens}"

    def _sampling(self, job: Job) -> list[str]:
        sampling = job.sampling
        faults = [
            _within("max_tokens", sampling.max_tokens, len(job.emitted) + 1, INT32 - 1),
            _within("min_tokens", sampling.min_tokens, 0, INT32 - 1),
            _within("temperature", sampling.temperature, 0.0, 1e6),
            _within("top_p", sampling.top_p, 0.0, 1.0),
            "" if sampling.top_p > 0 else "top_p is 0",
            _within("min_p", sampling.min_p, 0.0, 1.0),
            _within("top_k", sampling.top_k, 0, INT32 - 1),
            _within("choice", sampling.choice, 0, INT32 - 1),
            _within("top_logprobs", sampling.top_logprobs or 0, 0, INT32 - 1),
            self._ids("logprob_ids", sampling.logprob_ids),
            _within("a stop id", min(sampling.stop_ids, default=0), 0, INT32 - 1),
            _within("a stop id", max(sampling.stop_ids, default=0), 0, INT32 - 1),
        ]
        return faults + self._adjustments(sampling)

    def _adjustments(self, sampling: Sampling) -> list[str]:
        wanted = sampling.adjustments or Adjustments()
        words = [word.tokens for word in wanted.bad_words]
        penalty = wanted.repetition_penalty
        return [
            self._ids("biases", [each.token for each in wanted.biases]),
            *(_finite("biases", each.bias) for each in wanted.biases),
            _finite("repetition_penalty", penalty) or ("" if penalty > 0 else f"repetition_penalty is {penalty}"),
            _finite("frequency_penalty", wanted.frequency_penalty),
            _finite("presence_penalty", wanted.presence_penalty),
            self._ids("suppressed_ids", wanted.suppressed_ids),
            "" if all(words) else "bad_words holds an empty sequence",
            *(self._ids("bad_words", word) for word in words),
            _within("no_repeat_ngram", wanted.no_repeat_ngram, 0, INT32 - 1),
            *self._reasoning(wanted.reasoning),
        ]

    def _reasoning(self, budget: ReasoningBudget | None) -> list[str]:
        if budget is None:
            return []
        places = [place.tokens for place in (*budget.begin, *budget.end)]
        return [
            "" if budget.begin and budget.end and all(places) else "reasoning has an empty mark",
            *(self._ids("reasoning", place) for place in (*places, budget.ends, budget.spaces)),
            _within("reasoning.tokens", budget.tokens, 0, INT32 - 1),
            _within("reasoning.barred", budget.barred, 0, len(budget.begin) - 1),
        ]

    def _examination(self, examination: Examination) -> list[str]:
        return [
            _within("top", examination.top, 0, INT32 - 1),
            _within("dimensions", examination.dimensions, 0, INT32 - 1),
        ]

    def _ids(self, name: str, ids: Iterable[int]) -> str:
        ids, limit = tuple(ids), self.vocabulary or INT32
        if not ids or (min(ids) >= 0 and max(ids) < limit):
            return ""
        wrong = next(token for token in ids if not 0 <= token < limit)
        return f"{name} holds token {wrong}, the vocabulary has {limit} ids"


def _finite(name: str, value: float) -> str:
    return "" if math.isfinite(value) else f"{name} is {value}"


def _within(name: str, value: float, low: float, high: float) -> str:
    """NaN is within nothing."""
    return "" if low <= value <= high else f"{name} is {value}, it must be between {low:g} and {high:g}"
