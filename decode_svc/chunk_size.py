"""How many rows of prompts a step may have beside those that decode, so that it stays below `itl_target_ms`.

Step 7 of a request's life. Who decodes gets a token per step, so a long step is a long gap between two tokens, also for
those that land while it runs. The size follows from measured steps (decode_svc/step_cost.py) and changes no bit of any
answer: a row does not depend on the other rows of its step. A target that the decode rows alone miss or nearly miss
does not stop prompts: they may double the time of such a step. While prompts wait behind the one that is read, longer
steps pay: the fixed part of a step comes once for more rows, and requests that decode are sooner among themselves."""

from decode_svc.step_cost import StepCost
from mesh.timing.speed import SteadyFigure

FIRST_ROWS = 16  # prompt rows in a step before any step with prompts was measured
GROWTH = 2  # the prompt rows of a step are at most this multiple of the largest measured step's
LEAST_ROWS = 8
MARGIN = 2.0  # this multiple of the expectation's average error stays free
BEYOND_TIMES = 1.0  # prompts may add this multiple of a step's time without them, even beyond the target
CROWD_SHARE = 0.5  # each prompt that waits adds this share of the target to it
MOST_CROWD = 2.5  # the factor by which they lengthen it at most
SHORTEST_SECONDS = 1e-6  # an expectation below it is none


class ChunkSize:
    def __init__(self, *, chunk_tokens: int, itl_target_ms: float) -> None:
        """`itl_target_ms` 0: every chunk has its full size."""
        self._most, self._target_seconds = chunk_tokens, itl_target_ms / 1000
        self._cost = StepCost()
        self._largest = 0
        self._speed = SteadyFigure()

    @property
    def most(self) -> int:
        """Rows of one prompt in the longest step."""
        return self._most

    def rows(self, decoding: int, behind: int = 0) -> int:
        """Prompt rows of the next step, beside `decoding` requests that decode, while the prompts of `behind` others
        wait for those rows."""
        if not self._target_seconds:
            return self._most
        least, known = min(LEAST_ROWS, self._most), max(FIRST_ROWS, GROWTH * self._largest)
        if not self._cost.measured:
            return min(self._most, FIRST_ROWS)
        alone = self._cost.seconds(decoding, 0)
        crowd = min(MOST_CROWD, 1 + CROWD_SHARE * behind)
        room = max(crowd * self._target_seconds - MARGIN * self._cost.off_seconds - alone, crowd * BEYOND_TIMES * alone)
        fits = int(room / max(self._cost.prompt_row_seconds, 1e-9))
        return min(self._most, known, max(least, fits))

    def measure(self, decoding: int, prompt: int, seconds: float) -> None:
        """A step with `decoding` requests that decode and `prompt` rows of prompts took `seconds`."""
        if self._target_seconds:
            self._cost.measure(decoding, prompt, seconds)
            self._largest = max(self._largest, prompt)

    def tokens_per_second(self, decoding: int) -> float:
        """The speed of prompts beside `decoding` requests; before any step that of first chunks in steps as long as the
        target. 0: there is no target, and gateways send no prompt here that a prefill worker can compute."""
        if not self._cost.measured:
            return FIRST_ROWS / self._target_seconds if self._target_seconds else 0.0
        rows = self.rows(decoding)
        seconds = self._cost.seconds(decoding, rows)
        return self._speed.of(rows / seconds) if seconds > SHORTEST_SECONDS else 0.0
