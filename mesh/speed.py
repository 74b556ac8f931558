"""How fast a worker's steps are. The gateway's router estimates waiting times from the rate, and decode derives a
landing's progress deadline from the longest step."""


class Speed:
    def __init__(self) -> None:
        self.longest_ms = 0
        self._rate = 0.0

    def measure(self, rows: int, seconds: float) -> None:
        self.longest_ms = max(self.longest_ms, int(seconds * 1000))
        if seconds > 0 and rows > 1:
            self._rate += 0.2 * (rows / seconds - self._rate) if self._rate else rows / seconds

    @property
    def tokens_per_second(self) -> float:
        """The rate, rounded to two digits so that small changes cause no new report."""
        return float(f"{self._rate:.1e}")
