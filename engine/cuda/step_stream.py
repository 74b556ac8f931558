"""The CUDA stream on which steps run, and marks in it for which a thread can wait.

On a CPU every launch has ended when it returns, so every mark is reached at once: in Triton's interpreter the whole
runner works there, step by step as on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StepStream:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside this context, the launches of the calling thread go to this stream."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                yield

    def mark(self) -> torch.cuda.Event | None:
        """A mark that is reached when everything launched so far has ended. A thread that waits for it sleeps."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def host_words(self, count: int) -> torch.Tensor:
        """Pinned host memory for asynchronous copies to and from the device; torch keeps it until they have ended."""
        return torch.empty(count, dtype=torch.int32, pin_memory=self._stream is not None)


def wait(mark: torch.cuda.Event | None) -> None:
    if mark is not None:
        mark.synchronize()
