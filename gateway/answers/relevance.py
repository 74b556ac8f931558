"""How relevant a document is for a query, by a model that generates: the share of "yes" among "yes" and "no" as its
next token.

Step 8 of a request's life. A pair is a request of one token; both logprobs are those of the model, before any change.
Where one of the two is not among the listed ones, the prompt with that token behind it is examined."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.answers.window import ChoiceWindow
from gateway.core.interface import ChoiceRequest, Core, ExaminationStream, TokenStream
from gateway.prompts.assets import Assets
from gateway.validation.ranges import MAX_TOP_LOGPROBS
from gateway.validation.validate import ValidRequest
from mesh.errors import Cancelled, InvalidRequest
from mesh.messages.jobs import Token
from mesh.messages.orders import Examination

YES, NO = "yes", "no"


@dataclass(frozen=True, slots=True)
class Judging:
    """The two tokens by which a model judges."""

    yes: int
    no: int

    @classmethod
    def of(cls, assets: Assets) -> "Judging":
        found = [assets.tokenizer.encode(word, special=False) for word in (YES, NO)]
        if any(len(ids) != 1 for ids in found):
            what = f"model {assets.name!r} cannot judge: its tokenizer has no single tokens for {YES!r} and {NO!r}"
            raise InvalidRequest("model", what)
        return cls(found[0][0], found[1][0])

    def score(self, yes: float, no: float) -> float:
        """The share of yes, from two logprobs."""
        return 1.0 / (1.0 + math.exp(min(no - yes, 700.0)))


class Relevances:
    """The scores of the pairs of one valid request, each a prompt of one choice."""

    def __init__(self, core: Core, pairs: Sequence[ValidRequest], judging: Judging) -> None:
        self._core, self._judging = core, judging
        self._window = ChoiceWindow([choice for pair in pairs for choice in pair.choices], core.submit)
        self._examined: list[ExaminationStream] = []
        self.numerics = ""  # numerics class of the last one
        self.cached_tokens = 0

    @property
    def prompt_tokens(self) -> int:
        return self._window.prompt_tokens

    async def scores(self) -> list[float]:
        """Wait for all, in order. Raises mesh.errors only."""
        try:
            return await self._window.results(self._score)
        finally:
            self.cancel()

    async def _score(self, choice: ChoiceRequest, stream: TokenStream) -> float:
        async for token in stream.events():
            listed = _listed(token)
            self.numerics, self.cached_tokens = stream.numerics, self.cached_tokens + stream.timings.cached_tokens
            judging = self._judging
            yes = listed[judging.yes] if judging.yes in listed else await self._logprob(choice, judging.yes)
            no = listed[judging.no] if judging.no in listed else await self._logprob(choice, judging.no)
            return judging.score(yes, no)
        raise Cancelled("the answer was cancelled")

    async def _logprob(self, choice: ChoiceRequest, token: int) -> float:
        """The logprob of a token that is not among the likeliest ones."""
        examined = ChoiceRequest(
            request_id=choice.request_id,
            model=choice.model,
            prompt=(*choice.prompt, token),
            emitted=(),
            sampling=choice.sampling,
            deadline_seconds=choice.deadline_seconds,
            numerics=self.numerics,
            trace=choice.trace,
            salt=choice.salt,
            adapter=choice.adapter,
            priority=choice.priority,
            examination=Examination(0),
            prompt_field=choice.prompt_field,
        )
        self._examined.append(stream := self._core.examine(examined))
        (*_, last) = (await stream.scores()).entries()
        return last.logprob

    def cancel(self) -> None:
        self._window.cancel()
        for examined in self._examined:
            examined.cancel()


def _listed(token: Token) -> dict[int, float]:
    """Logprobs by token: those of the likeliest ones, and of the token that came."""
    return dict(zip(token.top_ids, token.top_logprobs, strict=True)) | {token.token: token.logprob}


ASKED_LOGPROBS = MAX_TOP_LOGPROBS  # the likeliest tokens that are listed
