"""Decode workers that compute on the cores of prefill workers: a prompt at prefill then takes time from their batches.

Step 2 of a request's life. Both name one host, and the decode worker has a thread for each of its cores. The figures of
such a prefill worker (gateway/figures.py) follow from theirs, so they change together."""

from gateway.attached import AttachedWorker
from mesh.jobs import Tier


class SharedCores:
    """Keeps `core_mates` of each prefill worker."""

    def __init__(self) -> None:
        self._prefills: dict[str, list[AttachedWorker]] = {}  # by host
        self._decodes: dict[str, list[AttachedWorker]] = {}  # those with a thread for each core

    def add(self, worker: AttachedWorker) -> None:
        if (place := self._place(worker)) is not None:
            place.append(worker)
            self._changed(worker)

    def remove(self, worker: AttachedWorker) -> None:
        if (place := self._place(worker)) is not None:
            place[:] = [each for each in place if each is not worker]
            worker.core_mates = ()
            self._changed(worker)

    def beside(self, decode: AttachedWorker) -> list[AttachedWorker]:
        """The prefill workers on whose cores this decode worker computes."""
        taken = decode.tier is Tier.DECODE and decode.hello.all_cores and decode.hello.pages is not None
        return self._prefills.get(_host(decode), []) if taken else []

    def _place(self, worker: AttachedWorker) -> list[AttachedWorker] | None:
        if worker.hello.pages is None or not (worker.tier is Tier.PREFILL or worker.hello.all_cores):
            return None
        tier = self._prefills if worker.tier is Tier.PREFILL else self._decodes
        return tier.setdefault(_host(worker), [])

    def _changed(self, worker: AttachedWorker) -> None:
        mates = tuple(self._decodes.get(host := _host(worker), ()))
        for prefill in self._prefills.get(host, ()):
            prefill.core_mates = mates
        for tier in (self._prefills, self._decodes):
            if not tier.get(host):
                tier.pop(host, None)


def _host(worker: AttachedWorker) -> str:
    return worker.hello.pages.host if worker.hello.pages is not None else ""
