"""How fast a worker's steps are. The gateway estimates waiting times from the rate and admits requests by it, and
decode derives a landing's progress deadline from the longest step."""

FADES = 0.99  # part of the longest step's time that is left after a step with as many rows
WEIGHT = 0.2  # weight of the latest step; in the rate it is smaller where an earlier step had more rows
CHANGE = 0.15  # a figure that differs by less from the one reported last is not reported


class Speed:
    def __init__(self) -> None:
        self._longest_seconds, self._longest_rows = 0.0, 1
        self.step_seconds = 0.0  # average time of recent steps
        self._rate = 0.0
        self._most_rows = 0

    def measure(self, rows: int, seconds: float) -> None:
        # A step of few rows tells little about how long one of many rows takes.
        self._longest_seconds *= FADES ** min(1.0, rows / self._longest_rows)
        if seconds >= self._longest_seconds:
            self._longest_seconds, self._longest_rows = seconds, max(1, rows)
        if seconds <= 0:
            return
        self.step_seconds += WEIGHT * (seconds - self.step_seconds) if self.step_seconds else seconds
        if rows > 1:
            # A step of few rows spends most of its time on what every step costs: it says little about full ones.
            self._most_rows = max(self._most_rows, rows)
            weight = WEIGHT * rows / self._most_rows
            self._rate += weight * (rows / seconds - self._rate) if self._rate else rows / seconds

    @property
    def longest_ms(self) -> int:
        """The longest step, which fades as others of its size follow: one freeze does not count for ever."""
        return int(self._longest_seconds * 1000)

    @property
    def tokens_per_second(self) -> float:
        """The rate, rounded to two digits so that small changes cause no new report."""
        return float(f"{self._rate:.1e}")


class SteadyFigure:
    """A figure that gateways get: two digits, and another one only when it has changed by more than a little, so that
    small changes cause no new report."""

    def __init__(self) -> None:
        self._reported = 0.0

    def of(self, value: float) -> float:
        if abs(value - self._reported) > CHANGE * self._reported:
            self._reported = float(f"{value:.1e}")
        return self._reported
