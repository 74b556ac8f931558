"""The order of things on a device: a stream of its own for steps, and marks in it that a thread can wait for.

On a CPU every launch is over when it returns, so marks are reached when they are made: the whole runner works there,
in Triton's interpreter, step by step as on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Lane:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Launches of this thread go here."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                yield

    def mark(self) -> torch.cuda.Event | None:
        """Reached when everything launched so far is over. Whoever waits for it sleeps."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def host_words(self, count: int) -> torch.Tensor:
        """Host memory that copies to and from the device need not stop for; torch keeps it until they are over."""
        return torch.empty(count, dtype=torch.int32, pin_memory=self._stream is not None)


def wait(mark: torch.cuda.Event | None) -> None:
    if mark is not None:
        mark.synchronize()
