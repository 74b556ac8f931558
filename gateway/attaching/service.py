"""The gateway itself: it holds one stream to each worker and hands the sequencer what the workers report.

Choices enter through `submit` (the front doors are gateway/dialects/api.py and gateway/grpc/api.py) and leave as an
ordered stream of tokens. Nothing here outlives the process: a gateway that restarts knows the mesh again within one
heartbeat."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random

from gateway.attaching.attaching import Attaching
from gateway.attaching.changes import Changes
from gateway.attaching.served_models import ServedModels, facts_of, numbers, one_or_many
from gateway.core.interface import ChoiceRequest, ModelFacts
from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.sequencing.admission_control import AdmissionControl
from gateway.sequencing.examining import ExaminationReply
from gateway.sequencing.observer import UNOBSERVED, RequestObserver
from gateway.sequencing.requests import GatewayRequest
from gateway.sequencing.sequencer import Sequencer
from gateway.sequencing.streams import RequestStream
from gateway.tracing.traces import RecentTraces
from mesh.config.door_config import DoorConfig
from mesh.errors import BatonError
from mesh.network.interface import Listening, Network
from mesh.rules import RULES, Rules
from mesh.telemetry.spans import Silent


class Gateway:
    """The product's Core."""

    def __init__(
        self,
        network: Network,
        *,
        random: Random,
        model: str | ServedModels,  # a name alone: one model of this name
        traces: RecentTraces | None = None,
        local: Local = Local.AUTO,
        max_waiting: int = 1024,
        limits: DoorConfig | None = None,
        patience_seconds: float = RULES.patience_seconds,
        observer: RequestObserver = UNOBSERVED,
        rules: Rules = RULES,
    ) -> None:
        self.workers = Workers()
        self.changed = Changes()  # set when a worker attaches, drains or leaves
        self.limits = limits or DoorConfig()
        self.sequencer = Sequencer(
            self.workers,
            rules=rules,
            random=random,
            local=local,
            patience_seconds=patience_seconds,
            reader_bytes=self.limits.reader_bytes,
            start_limit=lambda choice: self.admission.start_limit(choice, asyncio.get_running_loop().time()),
            observer=observer,
        )
        self.observer = observer
        self.traces = traces or RecentTraces(Silent(), random=random)
        self.served = one_or_many(model)
        self._local = local
        self.draining = False
        self.attaching = Attaching(
            network,
            self.workers,
            self.sequencer,
            self.served,
            changed=self.changed,
            traces=self.traces,
            observer=observer,
            rules=rules,
        )
        self.loading = self.attaching.loading
        self.silent, self.silent_workers = self.attaching.silent, self.attaching.silent.facts
        self.refused_workers, self.alarms = self.attaching.refused_workers, self.attaching.alarms
        self.admission = AdmissionControl(
            self.workers,
            self.sequencer.tally,
            self.attaching.check_workers,
            local=local,
            max_waiting=max_waiting,
            queue_seconds=self.limits.queue_seconds,
            paces=self.sequencer.paces,
            priority_seconds=rules.priority_seconds,
        )

    # ---- what the front doors use

    def admit(self, model: str | None = None, *, examined: bool = False) -> None:
        now, root = asyncio.get_running_loop().time(), model and self.root(model)
        self.admission.check(root, now, draining=self.draining, examined=examined)

    def submit(self, choice: ChoiceRequest) -> RequestStream:
        return RequestStream(self.sequencer, self._accept(choice))

    def examine(self, choice: ChoiceRequest) -> ExaminationReply:
        return ExaminationReply(self.sequencer, self._accept(choice))

    def _accept(self, choice: ChoiceRequest) -> GatewayRequest:
        self.admission.accept(choice, asyncio.get_running_loop().time(), draining=self.draining)
        return self.sequencer.accept(choice)

    def load(self) -> dict[str, int]:
        requests = self.sequencer.requests.values()
        waiting = sum(request.first_token_seconds is None for request in requests)  # their turn may not have come
        return {"running": len(requests) - waiting, "waiting": waiting}

    def count_error(self, error: BatonError, *, refused: bool = False) -> None:
        self.observer.refused(error)
        self.sequencer.tally.refused += refused

    def models(self) -> tuple[str, ...]:
        return self.served.names

    def root(self, name: str) -> str:
        return self.served.root(name)

    def facts(self, name: str) -> ModelFacts:
        return facts_of(self.root(name), self.workers, self._local, self.served.adapters.get(name))

    def healthy(self) -> bool:
        """Whether a decode worker is attached, alone or with a prefill worker of its class, and the gateway stays."""
        return not self.draining and any(self.facts(root).healthy for root in self.served.roots)

    def tiers(self) -> Mapping[str, int]:
        return numbers(self.workers)

    # ---- the gateway leaves

    def drain(self, *, refusing: bool = True) -> None:
        """Take no new requests; those that run go on. Not `refusing`: take those that still come."""
        self.draining = refusing
        self.changed.set()

    def end_all(self, error: Callable[[GatewayRequest], BatonError]) -> int:
        """End every request that still runs with an error of its own; returns their number."""
        running = list(self.sequencer.requests.values())
        for request in running:
            self.sequencer.end(request, error(request))
        return len(running)

    # ---- workers

    async def listen(self, address: str) -> Listening:
        """Let workers register at this address."""
        return await self.attaching.listen(address)

    async def aclose(self) -> None:
        await self.attaching.aclose()
