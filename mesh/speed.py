"""How fast a worker's steps go: the router estimates with it, and a landing's progress deadline is measured in it."""


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
        """Two digits, so that reports change only when it matters."""
        return float(f"{self._rate:.1e}")
