"""How fast a worker's steps are. The gateway estimates waiting times from the rate and admits requests by it, and
decode derives a landing's progress deadline from the longest step."""

WEIGHT = 0.2  # of the latest step, if none before was larger


class Speed:
    def __init__(self) -> None:
        self.longest_ms = 0
        self.step_seconds = 0.0  # of recent steps, on average
        self._rate = 0.0
        self._most_rows = 0

    def measure(self, rows: int, seconds: float) -> None:
        self.longest_ms = max(self.longest_ms, int(seconds * 1000))
        if seconds <= 0:
            return
        self.step_seconds += WEIGHT * (seconds - self.step_seconds) if self.step_seconds else seconds
        if rows > 1:
            # A step of few rows spends most of its time on what every step costs: it says little about full ones.
            self._most_rows = max(self._most_rows, rows)
            weight = WEIGHT * rows / self._most_rows
            self._rate += weight * (rows / seconds - self._rate) if self._rate else rows / seconds

    @property
    def tokens_per_second(self) -> float:
        """The rate, rounded to two digits so that small changes cause no new report."""
        return float(f"{self._rate:.1e}")
