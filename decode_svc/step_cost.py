"""How long a step takes: a fixed part, a part for each request that decodes, and one for each row of a prompt.

Step 7 of a request's life. The three parts are fitted to the recent steps, the latest counting most; none is negative.
What recent steps say nothing of stays as it was known last: while no prompts come, the cost of their rows is kept, and
steps that are all alike, as those of a steady load are, move none of the three.
Before anything is known of a part, the time of a step is divided equally."""

FADES = 0.98  # weight that earlier steps keep with each further step
DOUBT = 0.01  # weight of what was known before, for each step that counts
OUTLIER = 3.0  # a step counts as no longer than this multiple of the expected time: another program had the cores
WEIGHT = 0.1  # weight of the latest step in `off_seconds`

Parts = tuple[float, float, float]  # a step's time: fixed part, that of a request that decodes, that of a prompt's row
# Sums over the steps of (1, decoding, prompt) with themselves: 1 1, 1 d, 1 p, d d, d p, p p.
Products = tuple[float, float, float, float, float, float]


class StepCost:
    """Plain numbers: for nine of them an array costs more than the sums, and this is computed between all steps."""

    def __init__(self) -> None:
        self._products: Products = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._sums: Parts = (0.0, 0.0, 0.0)
        self._rows = self._seconds = self._steps = 0.0
        self._parts: Parts = (0.0, 0.0, 0.0)
        self._decoded = self._read = False  # any step had requests that decode, or rows of prompts
        self.off_seconds = 0.0  # by how much steps missed the expectation, on average
        self.measured = False

    def measure(self, decoding: int, prompt: int, seconds: float) -> None:
        """A step with `decoding` requests that decode and `prompt` rows of prompts took `seconds`."""
        if self.measured:
            expected = self.seconds(decoding, prompt)
            seconds = min(seconds, OUTLIER * max(expected, self._seconds / self._steps))
            self.off_seconds += WEIGHT * (abs(seconds - expected) - self.off_seconds)
        one, fixed_d, fixed_p, d_d, d_p, p_p = self._products
        self._products = (
            FADES * one + 1,
            FADES * fixed_d + decoding,
            FADES * fixed_p + prompt,
            FADES * d_d + decoding * decoding,
            FADES * d_p + decoding * prompt,
            FADES * p_p + prompt * prompt,
        )
        fixed, of_decode, of_prompt = self._sums
        fixed, of_decode = FADES * fixed + seconds, FADES * of_decode + decoding * seconds
        self._sums = fixed, of_decode, FADES * of_prompt + prompt * seconds
        self._steps = FADES * self._steps + 1
        self._rows, self._seconds = FADES * self._rows + decoding + prompt, FADES * self._seconds + seconds
        each = self._seconds / max(1.0, self._rows)
        known = self._parts[0], self._parts[1] if self._decoded else each, self._parts[2] if self._read else each
        self._decoded, self._read = self._decoded or decoding > 0, self._read or prompt > 0
        self._parts = _fitted(self._products, self._sums, doubt=DOUBT * self._steps, known=known)
        self.measured = self.measured or seconds > 0

    def seconds(self, decoding: int, prompt: int) -> float:
        """The expected time of such a step."""
        fixed, of_decode, of_prompt = self._parts
        return fixed + of_decode * decoding + of_prompt * prompt

    @property
    def prompt_row_seconds(self) -> float:
        return self._parts[2]


def _fitted(products: Products, sums: Parts, *, doubt: float, known: Parts) -> Parts:
    """The parts that fit best, none of them negative: those that the others leave nothing for are 0. `doubt` is the
    weight of what is `known` of each."""
    a, b, c, d, e, f = products
    a, d, f = a + doubt, d + doubt, f + doubt
    x, y, z = (total + doubt * part for total, part in zip(sums, known, strict=True))
    e_left, d_left = e - b * c / a, d - b * b / a
    third = z - c * x / a - e_left / d_left * (y - b * x / a)
    third /= f - c * c / a - e_left * e_left / d_left
    second = (y - b * x / a - e_left * third) / d_left
    first = (x - b * second - c * third) / a
    if min(first, second, third) >= 0:
        return first, second, third
    one, two = _pair(a, b, d, x, y)
    found = [(one, two, 0.0), (x / a, 0.0, 0.0), (0.0, y / d, 0.0), (0.0, 0.0, z / f)]
    one, two = _pair(a, c, f, x, z)
    found.append((one, 0.0, two))
    one, two = _pair(d, e, f, y, z)
    found.append((0.0, one, two))
    return max(
        (parts for parts in found if min(parts) >= 0), key=lambda parts: x * parts[0] + y * parts[1] + z * parts[2]
    )


def _pair(a: float, b: float, c: float, x: float, y: float) -> tuple[float, float]:
    """Solves a s + b t = x, b s + c t = y."""
    second = (y - b * x / a) / (c - b * b / a)
    return (x - b * second) / a, second
