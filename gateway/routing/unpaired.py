"""Names the workers that fit no worker of the other tier (gateway/workers/pairs.py): in the gateway's log, in their own
and in /health. Such a worker stays attached, because one that fits may come; it gets no requests meanwhile."""

import asyncio
import logging
from collections.abc import Iterator

from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.workers.pairs import any_pair, hosts_matter, kinds, misfit
from mesh.messages.jobs import Tier
from mesh.messages.orders import Refused

log = logging.getLogger("baton.gateway")


def mismatch(workers: Workers, local: Local) -> str:
    """Why no worker of this model can serve a request, though both tiers are there; empty: some can."""
    prefills, decodes = workers.tier(Tier.PREFILL), workers.tier(Tier.DECODE)
    if local is not Local.NEVER or not prefills or not decodes or any_pair(prefills, decodes):
        return ""
    return f"{prefills[0].name} does not fit {decodes[0].name}: {misfit(prefills[0], decodes[0])}"


class Pairing:
    """Keeps the workers that fit nobody."""

    def __init__(self, workers: Workers, local: Local) -> None:
        self._workers, self._local = workers, local
        self.unfit: dict[int, str] = {}  # by incarnation: who it is, and why it gets no requests
        self._mismatched: dict[str, float] = {}  # models whose tiers do not fit each other, and since when

    def judge(self) -> None:
        """A worker has attached, drains or has left."""
        models = {worker.model for worker in self._workers}
        found = dict(each for model in sorted(models) for each in self._unfit(self._workers.of(model)))
        for incarnation in found.keys() - self.unfit.keys():
            self._tell(incarnation, found[incarnation])
        for incarnation in self.unfit.keys() - found.keys():
            self._tell(incarnation, "")
        self.unfit = found
        now = asyncio.get_running_loop().time()
        broken = [model for model in models if mismatch(self._workers.of(model), self._local)]
        self._mismatched = {model: self._mismatched.get(model, now) for model in broken}

    def mismatch(self, model: str, now: float, seconds: float) -> str:
        """The reason why no request of this model can be served, once that has been so for `seconds`; else empty."""
        if now - self._mismatched.get(model, now) < seconds:
            return ""
        return mismatch(self._workers.of(model), self._local)

    def _unfit(self, workers: Workers) -> Iterator[tuple[int, str]]:
        """Prefill workers whose pages no decode worker can take. Decode workers that get pages from nobody compute
        prompts themselves, unless the setting `local` forbids it."""
        prefills, decodes = workers.tier(Tier.PREFILL), workers.tier(Tier.DECODE)
        hosts = hosts_matter([*prefills, *decodes])
        some_prefills, some_decodes = kinds(prefills, hosts=hosts), kinds(decodes, hosts=hosts)
        for prefill in prefills if decodes else ():
            reasons = [misfit(prefill, decode) for decode in some_decodes]
            if all(reasons):
                yield prefill.incarnation, f"it fits no decode worker; {some_decodes[0].name}: {reasons[0]}"
        for decode in decodes if prefills and self._local is Local.NEVER else ():
            reasons = [misfit(prefill, decode) for prefill in some_prefills]
            if all(reasons):
                yield decode.incarnation, f"it fits no prefill worker; {some_prefills[0].name}: {reasons[0]}"

    def _tell(self, incarnation: int, why: str) -> None:
        worker = self._workers.get(incarnation)
        if worker is None:
            return
        if worker.hello.pages is not None:  # an older worker does not know this message
            worker.send(Refused(why))
        if why:
            log.error("%s at %s gets no requests: %s", worker.name, worker.hello.address, why)
        else:
            log.info("%s at %s gets requests again", worker.name, worker.hello.address)

    def names(self) -> tuple[str, ...]:
        """The workers that fit nobody, in words."""
        workers = ((self._workers.get(incarnation), why) for incarnation, why in self.unfit.items())
        return tuple(f"{worker.name} at {worker.hello.address}: {why}" for worker, why in workers if worker is not None)
