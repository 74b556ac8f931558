"""Workers on their way in and out: they register, the gateway attaches to them, they report, and their sessions end.

Every message of a worker arrives here and goes on to the part that it concerns."""

import asyncio
import logging

from gateway.attaching.adapter_loading import AdapterLoading
from gateway.attaching.changes import Changes
from gateway.attaching.handing_over import HandingOver
from gateway.attaching.hung_workers import ABOUT_THE_LOOP, HungWorkers
from gateway.attaching.page_queries import PageQueries, alarms_of
from gateway.attaching.refusals import Refusals, Until, Who
from gateway.attaching.served_models import ServedModels
from gateway.attaching.silent_workers import SilentWorkers
from gateway.routing.registry import Workers
from gateway.routing.unpaired import Pairing
from gateway.sequencing.candidates import forgive
from gateway.sequencing.observer import RequestObserver
from gateway.sequencing.reasons import no_pair, no_worker
from gateway.sequencing.sequencer import Sequencer
from gateway.tracing.traces import RecentTraces
from gateway.workers.attached import AttachedWorker
from mesh.messages.adapters import AdapterRead, Adapters
from mesh.messages.field_checks import text_problem
from mesh.messages.hello_checks import hello_problem
from mesh.messages.jobs import Tier
from mesh.messages.message import Drain, Message
from mesh.messages.orders import Refused
from mesh.messages.report_checks import report_problem
from mesh.messages.reports import (
    ClockReading,
    Embedded,
    Full,
    Hello,
    Load,
    Lost,
    Measures,
    PageMap,
    PageReport,
    Phases,
    Prefilled,
    PrefixChange,
    Register,
    Scored,
    Tokens,
)
from mesh.network.interface import Channel, Listening, Network, StreamClosed
from mesh.rules import Rules
from mesh.sessions.reach_log import ReachLog
from mesh.sessions.session import BadMessage, Session

log = logging.getLogger("baton.gateway")

WITHOUT_WORKERS_SECONDS = 10.0  # after this time without any worker, requests no longer wait for one
ELSEWHERE_SECONDS = 10.0  # pause between two dials for a process at whose address another one answers
MOST_DIALS = 4096  # workers that are dialled or refused at one time; further ones wait until some have left


class Attaching:
    def __init__(
        self,
        network: Network,
        workers: Workers,
        sequencer: Sequencer,
        served: ServedModels,
        *,
        changed: Changes,
        traces: RecentTraces,
        observer: RequestObserver,
        rules: Rules,
    ) -> None:
        self._network = network
        self._workers = workers
        self._sequencer = sequencer
        self._changed = changed
        self.traces = traces
        self._observer = observer
        self._rules = rules
        self._served = served
        self._alone: dict[str, float] = {}  # models without a worker, and since when
        self._refusals, self.pairing = Refusals(), Pairing(workers, sequencer.local)
        self.page_queries = PageQueries()
        self.loading = AdapterLoading(workers, served.adapters)
        self._hung = HungWorkers(workers, sequencer, changed=self._worker_changed, rules=rules)
        self._handing_over = HandingOver(workers, sequencer, rules)
        self.silent = SilentWorkers(workers, sequencer.settling, rules)
        self._reach_log = ReachLog(log)
        self._dialing: set[Who] = set()  # workers whose Hello has not come yet, or that are refused
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> Listening:
        self._alone = dict.fromkeys(self._served.roots, asyncio.get_running_loop().time())
        self._hung.start()
        self._sequencer.settling.start()
        return await self._network.listen(address, {}, self.on_register)

    def check_workers(self, now: float, model: str | None = None) -> None:
        """Raise Unavailable if no worker of the model has been there for a while; without a model, if none of any."""
        since = self._alone.get(model) if model is not None else None
        if model is None and len(self._alone) == len(self._served.roots):
            since = max(self._alone.values())
        if since is not None and now - since >= WITHOUT_WORKERS_SECONDS:
            raise no_worker(now - since, model if len(self._served.roots) > 1 else None)
        if model is not None and (why := self.pairing.mismatch(model, now, WITHOUT_WORKERS_SECONDS)):
            raise no_pair(why)

    def on_register(self, register: Register) -> None:
        now, who = asyncio.get_running_loop().time(), (register.incarnation, register.address)
        living = self._workers.get(register.incarnation)
        if who in self._dialing or self._refusals.stays_out(who, now) or (living and living.hello.address == who[1]):
            return
        if why_not := text_problem("address", who[1]) or (living_elsewhere(living) if living else ""):
            self._refusals.add(who, register.tier, register.tier.value, why_not, now, Until.TRIES_AGAIN)
        elif len(self._dialing) < MOST_DIALS:
            self._dialing.add(who)
            task = asyncio.get_running_loop().create_task(self._attach(register))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attach(self, register: Register) -> None:
        """Dial a worker and handle its messages until the session ends."""
        who = register.incarnation, register.address
        try:
            stream = await self._network.dial(register.address, Channel.ATTACH)
        except StreamClosed as error:
            self._dialing.discard(who)
            problem = (
                f"{error}. It registered with this address: check its `address`, `advertise_host` and `advertise_port`"
            )
            self._reach_log.failed(f"{register.tier.value} {register.address}", problem)
            return
        self._reach_log.reached(f"{register.tier.value} {register.address}")
        name = f"{register.tier.value} {register.address}"
        session = Session(stream, rules=self._rules, name=name, on_activity=self.traces.loop_active)
        attached: list[AttachedWorker] = []  # empty until the first message, Hello

        def on_message(message: Message) -> None:
            if attached and (why_not := report_problem(message)):
                self._expel(session, attached[0], why_not)
            elif isinstance(message, Hello):
                worker = self.on_hello(session, message, register)
                attached.extend([worker] if worker is not None else [])
            elif attached:
                self.on_report(attached[0], message)

        await session.run(on_message)
        if session.expired:
            self._observer.lease_expired(register.tier)
        self._refusals.session_ended(who)
        for worker in attached:
            self.on_session_end(worker)
        if not attached and not session.ended_there and not session.expired:
            await asyncio.sleep(ELSEWHERE_SECONDS)  # `on_hello` has closed the session
        self._dialing.discard(who)

    def on_hello(self, session: Session, hello: Hello, register: Register | None = None) -> AttachedWorker | None:
        """The worker, attached from now on; None: it is refused. Then its session stays, without any request, so that
        it does not register again and again. A session with another process than the one that registered ends: that
        process would take it for its own and not register when its own has ended. So does one with a process whose
        incarnation another one shows already: it gets in when that one has left."""
        root, why_not = "", hello_problem(hello) or self._not_who_registered(hello, register)
        if not why_not:
            root, why_not = self._served.of_worker(hello)
        if why_not:
            name = session.name if text_problem("name", hello.name) else hello.name or session.name
            now = asyncio.get_running_loop().time()
            who = (register.incarnation, register.address) if register else (hello.incarnation, hello.address)
            elsewhere = who[0] != hello.incarnation or self._workers.get(hello.incarnation) is not None
            until = Until.TRIES_AGAIN if elsewhere else Until.SESSION_ENDS
            self._refusals.add(who, hello.tier, name, why_not, now, until)
            if elsewhere:
                session.close()
            elif hello.pages is not None:  # an older worker does not know this message
                session.send(Refused(why_not))
            return None
        worker = AttachedWorker(hello, session, hello.load, root)
        worker.change(hello.prefix)
        self._workers.add(worker)
        self.loading.attached(worker)
        self.silent.returned(worker)
        self._alone.pop(root, None)
        self._dialing.discard((worker.incarnation, hello.address))
        self.pairing.judge()
        self._changed.set()
        if self.traces.records_phases:
            worker.clock.start()
        log.info("%s is up, class %s", session.name, worker.numerics)
        self._sequencer.deaths.returned(worker.incarnation)
        self._sequencer.on_room(worker)
        return worker

    def _not_who_registered(self, hello: Hello, register: Register | None) -> str:
        """Why Hello does not come from the process that registered; empty: it does. An incarnation belongs to the
        process that was the first to show it, for as long as that one is attached."""
        for field in ("tier", "incarnation", "address") if register is not None else ():
            if getattr(hello, field) != getattr(register, field):
                return f"{field}: differs from what it registered with"
        living = self._workers.get(hello.incarnation)
        return living_elsewhere(living) if living is not None else ""

    def _expel(self, session: Session, worker: AttachedWorker, why_not: str) -> None:
        """An attached worker sends what no worker sends: its requests go on elsewhere, and this process stays out."""
        who, now = (worker.incarnation, worker.hello.address), asyncio.get_running_loop().time()
        self._refusals.add(who, worker.tier, worker.name, why_not, now, Until.RESTART)
        session.close()

    def on_report(self, worker: AttachedWorker, message: Message) -> None:
        self._hung.hear(worker, message)
        if isinstance(message, ABOUT_THE_LOOP):
            return
        match message:
            case Tokens():
                self._sequencer.on_tokens(worker, message)
            case Prefilled():
                self._sequencer.on_prefilled(message)
            case Scored():
                self._sequencer.examining.on_scored(worker, message)
            case Embedded():
                self._sequencer.examining.on_embedded(worker, message)
            case Lost():
                self._sequencer.on_lost(worker, message)
            case Full():
                self._sequencer.on_full(worker, message)
            case Load():
                worker.report(message)
                if worker.tier is Tier.DECODE:
                    self._on_free_pages(worker)
            case PrefixChange():
                worker.change(message)
            case Measures():
                worker.measure(message, asyncio.get_running_loop().time())
                self._observer.measured(worker)
            case Phases():
                self.traces.on_phases(worker.name, message, worker.clock.offset_seconds)
            case ClockReading():
                worker.clock.read(message)
            case Drain():
                worker.drains()
                self.pairing.judge()
                self._changed.set()
                self._handing_over.on_drain(worker, message)
            case PageMap():
                worker.page_map = message
            case Adapters() | AdapterRead():
                self.loading.on_report(worker, message)
            case PageReport():
                self.page_queries.on_report(worker, message)
            case _:
                raise BadMessage(f"{type(message).__name__} is no message of a worker")

    def _on_free_pages(self, worker: AttachedWorker) -> None:
        if worker.load.free_pages:
            self._sequencer.on_room(worker)
        else:  # nothing to retry, but the next page is a rise for those that it refused
            for request in self._sequencer.requests.values():
                forgive(request, worker)

    def _worker_changed(self) -> None:
        """A worker hangs, or goes on."""
        self.pairing.judge()
        self._changed.set()

    def on_session_end(self, worker: AttachedWorker) -> None:
        worker.clock.stop()
        if self._workers.get(worker.incarnation) is worker:
            self._workers.remove(worker)
            self.loading.left(worker)
            if worker.session.expired:
                self.silent.lost(worker)
            self.pairing.judge()
            if not self._workers.of(worker.model):
                self._alone[worker.model] = asyncio.get_running_loop().time()
            self._changed.set()
            log.warning("%s is gone", worker.session.name)
            self._observer.gone(worker)
            self._sequencer.on_session_end(worker)

    def refused_workers(self) -> tuple[str, ...]:
        """Workers that get no requests, and why."""
        return (*self._refusals.texts(asyncio.get_running_loop().time()), *self.pairing.names())

    def alarms(self) -> tuple[str, ...]:
        """Lines about workers whose pages a person must look at."""
        return alarms_of(self._workers)

    async def aclose(self) -> None:
        self._hung.stop()
        self._handing_over.stop()
        self._sequencer.settling.stop()
        for worker in list(self._workers):
            worker.session.close()
        await self.loading.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def living_elsewhere(living: AttachedWorker) -> str:
    return f"incarnation: belongs to {living.name} at {living.hello.address}, which is attached"
