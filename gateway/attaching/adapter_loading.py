"""Loads and unloads adapters at all workers of a model, or at none of them.

A load has two parts: every worker reads the folder and reports the hash of what it found; when all hashes are equal,
the name is assigned everywhere. It is over for the caller when every worker has reported the name, those included that
attach in the middle of it. Workers that attach later get the names that their model has by then. docs/adapters.md has
the picture."""

import asyncio
import logging
from collections.abc import Callable
from itertools import count

from gateway.attaching.adapter_names import AdapterNames, ServedAdapter
from gateway.routing.registry import Workers
from gateway.workers.attached import AttachedWorker
from mesh.config.adapter_config import name_problem
from mesh.errors import InvalidRequest, Unavailable
from mesh.messages.adapters import AbandonAdapter, AdapterRead, Adapters, AssignAdapter, ReadAdapter, UnloadAdapter

log = logging.getLogger("baton.gateway")

READ_SECONDS = 120.0  # for all workers of a model to read one folder
REPORT_SECONDS = 10.0  # for all of them to report a name
NAME, FOLDER = "lora_name", "lora_path"  # fields of the request, as errors name them
_numbers = count(1)  # numbers of reads, in all gateways of this process


class AdapterLoading:
    def __init__(self, workers: Workers, names: AdapterNames) -> None:
        self._workers, self._names = workers, names
        self._reads = dict[tuple[int, int], asyncio.Future[AdapterRead]]()  # by incarnation and number
        self._changed = asyncio.Event()  # replaced whenever a worker reports its names, or leaves
        self._turn = asyncio.Lock()  # loads of one gateway come one after the other
        self._catching_up = dict[asyncio.Task[None], AttachedWorker]()
        self._assigned: ServedAdapter | None = None  # workers get this name, and perhaps none has reported it yet

    # ---- what operators order

    async def load(self, root: str, name: str, folder: str, *, replace: bool = False) -> ServedAdapter:
        """All workers of the model have the adapter when this returns; InvalidRequest or Unavailable: none has."""
        async with self._turn:
            if problem := name_problem(name) or self._names.problem(name, root):
                raise InvalidRequest(NAME, f"{NAME}: {problem}; choose another name")
            known = self._names.get(name)
            if known is not None and known.digest and not replace:
                what = f"adapter {name!r} is loaded already; unload it before, or send load_inplace: true"
                raise InvalidRequest(NAME, what)
            digest, reads = await self._read_everywhere(root, name, folder)
            for worker, number in reads:
                worker.send(AssignAdapter(number))
            self._names.loaded(name)
            self._assigned = ServedAdapter(root, name, digest, folder)
            try:
                await self._all_have(self._assigned)
            finally:
                self._assigned = None
        return ServedAdapter(root, name, digest, folder)

    async def _all_have(self, adapter: ServedAdapter) -> None:
        """Wait until every worker has the name, those included that become attached meanwhile."""
        name, digest = adapter.name, adapter.digest
        while lacking := [
            each
            for each in self._workers.of(adapter.root)
            if each.hello.loads_adapters and not _has(each, name, digest)
        ]:
            if tasks := [task for task, worker in self._catching_up.items() if worker.model == adapter.root]:
                await asyncio.wait(tasks)
            await self._reported(lacking, lambda worker: _has(worker, name, digest), f"load adapter {name!r}")

    async def unload(self, name: str) -> ServedAdapter:
        """No new request can choose the adapter when this returns; those that run go on."""
        async with self._turn:
            adapter = self._names.get(name)
            assert adapter is not None, "the caller has found it"
            self._names.unloaded(name)
            workers = list(self._workers.of(adapter.root))
            for worker in workers:
                worker.send(UnloadAdapter(name))
            await self._reported(workers, lambda worker: name not in worker.adapters, f"unload adapter {name!r}")
        return adapter

    def _able(self, root: str) -> list[AttachedWorker]:
        workers = list(self._workers.of(root))
        if not workers:
            raise Unavailable(f"no worker of model {root!r} is attached: start one, or try again later")
        if unable := [worker.name for worker in workers if not worker.hello.loads_adapters]:
            what = f"{', '.join(unable)} compute no adapters; they need device = cpu and the release of this gateway"
            raise InvalidRequest(NAME, what)
        return workers

    async def _read_everywhere(self, root: str, name: str, folder: str) -> tuple[str, list[tuple[AttachedWorker, int]]]:
        """The hash that all workers have found, and the number of the read at each: also at those that become attached
        while others read. Else all are abandoned."""
        reads, found = list[tuple[AttachedWorker, int]](), dict[str, str]()
        try:
            while fresh := [each for each in self._able(root) if not any(each is worker for worker, _ in reads)]:
                numbered = [(each, next(_numbers)) for each in fresh]
                reads += numbered
                tasks = [asyncio.ensure_future(self._read(*each, name, folder)) for each in numbered]
                try:
                    digests = await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
                found |= {digest: worker.name for digest, worker in zip(digests, fresh, strict=True)}
                if len(found) > 1:
                    who = " and ".join(found.values())
                    raise InvalidRequest(
                        FOLDER, f"{FOLDER}: {who} find different adapters in {folder!r}; copy one to all"
                    )
        except BaseException:
            for worker, number in reads:
                worker.send(AbandonAdapter(number))
            raise
        return next(iter(found)), reads

    async def _read(self, worker: AttachedWorker, number: int, name: str, folder: str) -> str:
        key = worker.incarnation, number
        answer = self._reads[key] = asyncio.get_running_loop().create_future()
        worker.send(ReadAdapter(number, name, folder))
        try:
            async with asyncio.timeout(READ_SECONDS):
                read = await answer
        except TimeoutError:
            raise Unavailable(f"{worker.name} has not read {folder!r} within {READ_SECONDS:g} s; try again") from None
        finally:
            self._reads.pop(key, None)
        if read.fault:
            raise InvalidRequest(FOLDER, f"{FOLDER}: {worker.name}: {read.fault}")
        digest: str = read.digest
        return digest

    async def _reported(self, workers: list[AttachedWorker], done: Callable[[AttachedWorker], bool], what: str) -> None:
        """Wait until each of these workers that is still attached has reported it."""
        async with asyncio.timeout(REPORT_SECONDS) as limit:
            while left := [each for each in workers if self._workers.get(each.incarnation) is each and not done(each)]:
                try:
                    await self._changed.wait()
                except asyncio.CancelledError:
                    if limit.expired():
                        names = ", ".join(each.name for each in left)
                        raise Unavailable(f"{names} did not {what} within {REPORT_SECONDS:g} s; try again") from None
                    raise

    # ---- what workers report

    def attached(self, worker: AttachedWorker) -> None:
        """A worker has become attached: it gets what its model has and it lacks, and loses what was unloaded."""
        for name in [each for each in worker.adapters if self._names.is_unloaded(each)]:
            worker.send(UnloadAdapter(name))
            del worker.adapters[name]
        self._update(worker.model)
        wanted = {each.name: each for each in self._names.of(worker.model)}
        if self._assigned is not None and self._assigned.root == worker.model:
            wanted[self._assigned.name] = self._assigned
        missing = [each for each in wanted.values() if not _has(worker, each.name, each.digest)]
        if missing and worker.hello.loads_adapters:
            task = asyncio.get_running_loop().create_task(self._catch_up(worker, missing))
            self._catching_up[task] = worker
            task.add_done_callback(self._catching_up.pop)

    async def _catch_up(self, worker: AttachedWorker, missing: list[ServedAdapter]) -> None:
        for adapter in missing:
            number = next(_numbers)
            try:
                digest = await self._read(worker, number, adapter.name, adapter.folder)
            except (InvalidRequest, Unavailable) as error:
                log.warning("%s lacks adapter %r, so others get its requests: %s", worker.name, adapter.name, error)
                continue
            assigned = self._assigned
            current = assigned if assigned and assigned.name == adapter.name else self._names.get(adapter.name)
            same = current is not None and current.digest == digest
            worker.send(AssignAdapter(number) if same else AbandonAdapter(number))

    def on_report(self, worker: AttachedWorker, report: Adapters | AdapterRead) -> None:
        if isinstance(report, Adapters):
            for name in {each.name for each in report.items} - worker.adapters.keys():
                self._names.loaded(name)  # another gateway has loaded what was unloaded here
            worker.has_adapters(report.items)
            self._update(worker.model)
        elif (answer := self._reads.get((worker.incarnation, report.number))) is not None and not answer.done():
            answer.set_result(report)

    def left(self, worker: AttachedWorker) -> None:
        for (incarnation, number), answer in list(self._reads.items()):
            if incarnation == worker.incarnation and not answer.done():
                answer.set_result(AdapterRead(number, "", "it left while it read the folder"))
        self._update(worker.model)

    def _update(self, root: str) -> None:
        self._names.update(root, self._workers.of(root))
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def aclose(self) -> None:
        tasks = list(self._catching_up)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _has(worker: AttachedWorker, name: str, digest: str) -> bool:
    adapter = worker.adapters.get(name)
    return adapter is not None and adapter.digest == digest
