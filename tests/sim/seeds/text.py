"""The text that a request must have, token by token: what each numerics class says behind the tokens so far."""

from mesh.messages.jobs import End, Sampling
from tests.sim.model import choose, mix

_MASK = (1 << 64) - 1


class ExpectedText:
    def __init__(
        self,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        layers: int,
        vocabulary: int,
        window: int = 0,
        full_layers: int = 0,  # the last layers, which have no window
    ) -> None:
        self.sampling, self.tokens, self.end = sampling, list[int](), End.NONE
        self._vocabulary, self._kv, self._state = vocabulary, [0] * layers, 0
        self._window, self._seen = window, list[int]()  # what a row reads of each slot in layers with windows
        self._windowed = layers - full_layers
        for token in prompt:
            self._read(token)

    def next(self, numerics: str) -> int:
        """The token that comes next if a worker of this class samples it."""
        accent = 0 if numerics.startswith("class-a ") else 1
        return choose(self._state + accent, self.sampling, len(self.tokens), self._vocabulary)

    def add(self, token: int) -> None:
        self.end = self.sampling.end(len(self.tokens), token)
        self.tokens.append(token)
        self._read(token)

    def _read(self, token: int) -> None:
        for layer, value in enumerate(self._kv):
            self._kv[layer] = mix(value, mix(token, layer))
        slot = len(self._seen)
        read = [mix(value, slot) for value in self._kv]
        self._seen.append(sum(read[: self._windowed]))
        hidden = self._seen[slot - self._window] if self._window and slot >= self._window else 0
        self._state = (self._state + sum(read) - hidden) & _MASK
