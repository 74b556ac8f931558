"""A wall clock that tests set."""


class WallClock:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # since 1970

    def __call__(self) -> float:
        return self.seconds
