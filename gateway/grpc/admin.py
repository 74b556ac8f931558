"""The gRPC API of operators, baton.admin.v1: load, topology, drains, pages and adapters.

It is served on the port where workers register, which a network keeps from clients already: a topology shows addresses,
and whoever drains workers can end the service."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from random import Random
from typing import Any

from baton.admin.v1 import admin_pb2 as pb
from gateway.attaching.service import Gateway
from gateway.core.client_errors import client_error
from gateway.grpc import errors as grpc_errors
from gateway.grpc.calls import Call, begin, handlers
from gateway.grpc.load import load_of
from gateway.observability.pages import view_of_pages
from gateway.validation.validate import validate_model
from gateway.workers.attached import AttachedWorker
from mesh.config.config_checks import MAX_SECONDS
from mesh.errors import InvalidRequest, UnknownModel
from mesh.messages.message import Drain
from mesh.network.grpc_network import AddServices
from mesh.sessions.page_reports import MOST_LISTED

_SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"]
INTERVALS = (0.1, 60.0)


def admin(gateway: Gateway, random: Random) -> AddServices:
    """Pass this to GrpcNetwork(also=...)."""

    def add(server: Any) -> list[str]:
        server.add_generic_rpc_handlers((handlers(_SERVICE, _Admin(gateway, random)),))
        return [_SERVICE.full_name]

    return add


class _Admin:
    def __init__(self, gateway: Gateway, random: Random) -> None:
        self._gateway, self._random = gateway, random

    async def WatchLoad(self, raw: bytes, context: Any) -> AsyncGenerator[pb.WatchLoadResponse, None]:
        async with _answered(raw, context, self._random) as call:
            request = await call.message(pb.WatchLoadRequest)
            interval = request.interval_seconds if request.HasField("interval_seconds") else 1.0
            if not INTERVALS[0] <= interval <= INTERVALS[1]:
                raise InvalidRequest("interval_seconds", f"interval_seconds must be from 0.1 to 60, not {interval}")
            last = None
            while True:
                load = load_of(self._gateway)
                if load != last:
                    yield pb.WatchLoadResponse(**asdict(load))
                last = load
                await asyncio.sleep(interval)

    async def WatchTopology(self, raw: bytes, context: Any) -> AsyncGenerator[pb.WatchTopologyResponse, None]:
        async with _answered(raw, context, self._random) as call:
            await call.message(pb.WatchTopologyRequest)
            changed = self._gateway.changed
            count, known = changed.count, self._workers()
            yield pb.WatchTopologyResponse(snapshot=pb.Snapshot(workers=known.values()))
            while True:
                await changed.after(count)
                count, now = changed.count, self._workers()
                for event in changes(known, now):
                    yield event
                known = now

    async def Drain(self, raw: bytes, context: Any) -> pb.DrainResponse:
        async with _answered(raw, context, self._random) as call:
            request = await call.message(pb.DrainRequest)
            worker, grace_ms = self._named(request.worker), None
            if request.HasField("hand_over_seconds"):
                if not 0.0 <= request.hand_over_seconds <= MAX_SECONDS:
                    raise InvalidRequest("hand_over_seconds", f"hand_over_seconds must be from 0 to {MAX_SECONDS:g}")
                grace_ms = round(request.hand_over_seconds * 1000)
            before = _worker(worker)
            if not worker.draining or grace_ms is not None:
                worker.send(Drain(grace_ms))
        return pb.DrainResponse(worker=before)

    async def Pages(self, raw: bytes, context: Any) -> pb.PagesResponse:
        async with _answered(raw, context, self._random) as call:
            request = await call.message(pb.PagesRequest)
            if request.count > MOST_LISTED:
                raise InvalidRequest("count", f"count must be from 0 to {MOST_LISTED}, not {request.count}")
            view = await view_of_pages(self._gateway, request.worker, request.first, request.count)
        return pb.PagesResponse(workers=map(_worker_pages, view["workers"]), alarms=view["alarms"])

    async def LoadAdapter(self, raw: bytes, context: Any) -> pb.LoadAdapterResponse:
        async with _answered(raw, context, self._random) as call:
            request = await call.message(pb.LoadAdapterRequest)
            for field in ("name", "folder"):
                if not getattr(request, field):
                    raise InvalidRequest(field, f"{field} is missing")
            root = self._gateway.root(validate_model(self._gateway, request.model))
            loaded = await self._gateway.loading.load(root, request.name, request.folder, replace=request.replace)
        return pb.LoadAdapterResponse(adapter=pb.Adapter(name=loaded.name, model=loaded.root, hash=loaded.digest))

    async def UnloadAdapter(self, raw: bytes, context: Any) -> pb.UnloadAdapterResponse:
        async with _answered(raw, context, self._random) as call:
            request = await call.message(pb.UnloadAdapterRequest)
            if self._gateway.served.adapters.get(request.name) is None:
                raise UnknownModel(request.name, self._gateway.served.adapters.names())
            gone = await self._gateway.loading.unload(request.name)
        return pb.UnloadAdapterResponse(adapter=pb.Adapter(name=gone.name, model=gone.root, hash=gone.digest))

    def _workers(self) -> dict[int, pb.Worker]:
        return {worker.incarnation: _worker(worker) for worker in self._gateway.workers}

    def _named(self, name: str) -> AttachedWorker:
        found = [worker for worker in self._gateway.workers if name in (worker.name, worker.hello.address)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(f"{worker.name} at {worker.hello.address}" for worker in self._gateway.workers) or "none"
        what = f"names {len(found)} workers" if found else "is no attached worker"
        raise InvalidRequest("worker", f"worker {name!r} {what}; attached: {known}")


def changes(before: Mapping[int, pb.Worker], now: Mapping[int, pb.Worker]) -> Iterator[pb.WatchTopologyResponse]:
    """The events between two snapshots."""
    for incarnation, worker in now.items():
        if incarnation not in before:
            yield pb.WatchTopologyResponse(attached=worker)
        elif worker.draining and not before[incarnation].draining:
            yield pb.WatchTopologyResponse(draining=worker)
    for incarnation, worker in before.items():
        if incarnation not in now:
            yield pb.WatchTopologyResponse(left=worker)


def _worker(worker: AttachedWorker) -> pb.Worker:
    hello = worker.hello
    return pb.Worker(
        name=worker.name,
        tier=worker.tier.value,
        address=hello.address,
        incarnation=worker.incarnation,
        draining=worker.draining,
        numerics_class=hello.numerics,
        fingerprint=hello.fingerprint,
        model_hash=hello.model_hash,
        model=worker.model,
        waiting=worker.load.waiting,
        running=worker.load.running,
    )


def _worker_pages(view: dict[str, Any]) -> pb.WorkerPages:
    holders = [{name: value for name, value in each.items() if value is not None} for each in view.get("holders", ())]
    return pb.WorkerPages(
        worker=view["worker"],
        id=view["id"],
        tier=view["tier"],
        answered=view["answered"],
        states=view.get("states", {}),
        holders=[pb.PageHolder(**each) for each in holders],
        faults=view.get("faults", ()),
        runs=[pb.PageRun(pages=pages, state=state, holders=by) for pages, state, by in view.get("runs", ())],
    )


@asynccontextmanager
async def _answered(raw: bytes, context: Any, random: Random) -> AsyncGenerator[Call, None]:
    """Errors of operators become statuses, and are not counted among those of clients."""
    call = begin(raw, context, random)
    try:
        yield call
    except Exception as error:
        await grpc_errors.abort(context, client_error(error, call.request_id), call.request_id)
