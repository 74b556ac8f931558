"""Knows of each word in a simulated page whose text it comes from, and so whether a page holds another tenant's.

KV of a slot is a mix of its token and of all tokens before it. So equal words come from texts that begin alike: then
they belong to every tenant that has such a text, and tell nobody anything."""

from collections.abc import Callable, Sequence

from kvtransfer.memory import MemoryPool, Write
from mesh.messages.jobs import Sampling, Ticket
from tests.sim.model import mix, reference
from tests.sim.workers import SHAPE


class TenantTexts:
    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self.requests: dict[int, bytes] = {}  # a request's number at its gateway -> the salt of its tenant
        self._salts: dict[int, set[bytes]] = {}  # word of a page -> salts of the tenants whose text it comes from

    def add(
        self,
        salt: bytes,
        prompt: tuple[int, ...],
        sampling: Sampling,
        accents: Sequence[int],
        words: int,
        window: int = 0,
        full_layers: int = 0,
    ) -> None:
        """A tenant has this prompt, and each class (`accents`) answers it with a text of its own; `words` is the size
        of the vocabulary."""
        for accent in accents:
            kv = [0] * SHAPE.layers
            layers = {"window": window, "full_layers": full_layers}
            for token in (*prompt, *reference(prompt, sampling, SHAPE.layers, accent, words, **layers)):
                kv = [mix(value, mix(token, layer)) for layer, value in enumerate(kv)]
                for value in kv:
                    self._salts.setdefault(value, set()).add(salt)

    def strangers(self, data: bytes | memoryview, salt: bytes) -> set[bytes]:
        """Salts of other tenants whose text is in these bytes."""
        found = set[bytes]()
        for word in memoryview(data).cast("B").cast("Q"):
            if (salts := self._salts.get(word)) is not None and salt not in salts:
                found.update(salts)
        return found

    def handed(self, worker: str, pool: MemoryPool, pages: Sequence[int], salt: bytes) -> None:
        """A request of this tenant gets pages: they must not hold text of another one."""
        for page in pages:
            if others := self.strangers(pool.view(page, 0, pool.shape.layers), salt):
                self._violate(f"{worker}: tenant {salt!r} gets page {page} with text of {sorted(others)}")

    def written(self, worker: str, write: Write) -> None:
        """A write arrives: it must not carry text of another tenant than its request's."""
        salt = self.requests.get(Ticket.unpack(write.ticket).request)
        if salt is not None and (others := self.strangers(write.payload, salt)):
            self._violate(f"{worker}: a write for tenant {salt!r} carries text of {sorted(others)}")
