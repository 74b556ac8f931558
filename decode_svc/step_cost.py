"""How long a step takes: a fixed part, a part for each request that decodes, and one for each row of a prompt.

Step 7 of a request's life. The three parts are fitted to the recent steps, the latest counting most; none is negative.
What recent steps say nothing of stays as it was known last: while no prompts come, the cost of their rows is kept.
Before anything is known of a part, the time of a step is divided equally."""

from itertools import combinations

import numpy as np

FADES = 0.98  # of what earlier steps say, with each step
DOUBT = 0.01  # weight of what was known before, for each step that counts
OUTLIER = 3.0  # a step counts as no longer than so many times what was expected: another program had the cores
WEIGHT = 0.1  # of the latest step in `off_seconds`
# Parts that the others leave nothing for are 0: which ones, is tried out. The fixed part is the first.
FREE = [list(parts) for count in (3, 2, 1) for parts in combinations(range(3), count)]


class StepCost:
    def __init__(self) -> None:
        self._products, self._sums = np.zeros((3, 3)), np.zeros(3)
        self._rows = self._seconds = self._steps = 0.0
        self._parts = np.zeros(3)
        self._seen = [True, False, False]  # the parts that any step had
        self.off_seconds = 0.0  # by how much steps missed the expectation, on average
        self.measured = False

    def measure(self, decoding: int, prompt: int, seconds: float) -> None:
        """A step with so many requests that decode and so many rows of prompts took so long."""
        if self.measured:
            expected = self.seconds(decoding, prompt)
            seconds = min(seconds, OUTLIER * max(expected, self._seconds / self._steps))
            self.off_seconds += WEIGHT * (abs(seconds - expected) - self.off_seconds)
        rows = np.array([1.0, decoding, prompt])
        self._products = FADES * self._products + np.outer(rows, rows)
        self._sums = FADES * self._sums + rows * seconds
        self._steps = FADES * self._steps + 1
        self._rows, self._seconds = FADES * self._rows + decoding + prompt, FADES * self._seconds + seconds
        each = self._seconds / max(1.0, self._rows)
        known = [0.0, *(self._parts[part] if self._seen[part] else each for part in (1, 2))]
        self._seen = [True, self._seen[1] or decoding > 0, self._seen[2] or prompt > 0]
        doubt = DOUBT * self._steps * np.eye(3)
        self._parts = _fitted(self._products + doubt, self._sums + doubt @ known)
        self.measured = self.measured or seconds > 0

    def seconds(self, decoding: int, prompt: int) -> float:
        """The expected time of such a step."""
        fixed, of_decode, of_prompt = self._parts.tolist()
        return float(fixed + of_decode * decoding + of_prompt * prompt)

    @property
    def prompt_row_seconds(self) -> float:
        return float(self._parts[2])


def _fitted(products: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The parts without a negative one that fit best."""
    best, least = np.zeros(3), 0.0
    for free in FREE:
        parts = np.zeros(3)
        parts[free] = np.linalg.solve(products[np.ix_(free, free)], sums[free])
        if (parts >= 0).all():
            if len(free) == 3:
                return parts
            miss = float(parts @ products @ parts - 2 * sums @ parts)
            if miss < least:
                best, least = parts, miss
    return best
