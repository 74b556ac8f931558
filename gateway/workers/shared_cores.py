"""Workers that compute on the same cores: a prompt at prefill takes time from the batches there, and a second batch
from the first.

Step 2 of a request's life. They name one host, and the decode worker has a thread for each of its cores. The figures of
workers that share its cores (gateway/workers/worker_figures.py) follow from its own, so they change together."""

from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier


class SharedCores:
    """Keeps `core_mates` of each worker: the decode workers, other than itself, that compute on all of its cores."""

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
        """The workers on whose cores this decode worker computes."""
        if decode.tier is not Tier.DECODE or not decode.hello.all_cores or decode.hello.pages is None:
            return []
        others = [each for each in self._decodes.get(_host(decode), ()) if each is not decode]
        return others + self._prefills.get(_host(decode), [])

    def _place(self, worker: AttachedWorker) -> list[AttachedWorker] | None:
        if worker.hello.pages is None or not (worker.tier is Tier.PREFILL or worker.hello.all_cores):
            return None
        tier = self._prefills if worker.tier is Tier.PREFILL else self._decodes
        return tier.setdefault(_host(worker), [])

    def _changed(self, worker: AttachedWorker) -> None:
        decodes = tuple(self._decodes.get(host := _host(worker), ()))
        for prefill in self._prefills.get(host, ()):
            prefill.core_mates = decodes
        for decode in decodes:
            decode.core_mates = tuple(each for each in decodes if each is not decode)
        for tier in (self._prefills, self._decodes):
            if not tier.get(host):
                tier.pop(host, None)


def _host(worker: AttachedWorker) -> str:
    return worker.hello.pages.host if worker.hello.pages is not None else ""
