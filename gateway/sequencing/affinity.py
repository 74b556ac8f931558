"""Remembers to which workers the last request with a client's key went, so that the next one finds its cached prefix.

Step 2 of a request's life. A key is a hint: the router follows it only where another route would hardly be faster
(gateway/routing/router.py). The memory is bounded; the key that was used longest ago is forgotten."""

from collections import OrderedDict

from gateway.core.interface import ChoiceRequest

MOST_KEYS = 16_384
NOWHERE: frozenset[int] = frozenset()


class Affinities:
    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._workers: OrderedDict[tuple[str, bytes, str], frozenset[int]] = OrderedDict()

    def preferred(self, choice: ChoiceRequest) -> frozenset[int]:
        """Incarnations of the workers that the last request to this model with this key, salt and adapter went to."""
        key = choice.model, choice.cache_salt, choice.affinity
        return self._workers.get(key, NOWHERE) if choice.affinity else NOWHERE

    def remember(self, choice: ChoiceRequest, *workers: int | None) -> None:
        if choice.affinity:
            key = choice.model, choice.cache_salt, choice.affinity
            self._workers[key] = frozenset(worker for worker in workers if worker is not None)
            self._workers.move_to_end(key)
            if len(self._workers) > self._most:
                self._workers.popitem(last=False)
