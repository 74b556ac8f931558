"""The transports of a worker, made from its settings, best first: what each tier offers the other."""

import logging
import os
from collections.abc import Sequence
from random import SystemRandom
from typing import Any, Protocol

from kvtransfer.choose import host_identity
from kvtransfer.pool import SharedPool
from kvtransfer.rdma import Rdma, RdmaOptions
from kvtransfer.shm import SharedMemory
from kvtransfer.tcp import Tcp, TcpOptions
from kvtransfer.transfer import Pool, TransferError, Transport
from mesh.config.worker_config import WorkerConfig
from mesh.messages.kv_messages import KvHello
from mesh.messages.page_shape import PageShape
from mesh.network.tls import TlsFiles

log = logging.getLogger("baton.kvtransfer")


class OwnedPool(Pool, Protocol):
    """A pool and the memory that an engine computes in. Its maker closes it."""

    @property
    def buffer(self) -> Any: ...

    def close(self) -> None: ...


def make_pool(device: str, shape: PageShape, pages: int) -> OwnedPool:
    """A pool in memory that both the engine's device and the transports reach."""
    if device == "cpu":
        return SharedPool(shape, pages)
    from kvtransfer.device_pool import DevicePool  # imports torch, which takes seconds

    return DevicePool(shape, pages)


def make_transports(
    config: WorkerConfig, tls: TlsFiles | None, *, may_kill: bool = True, bytes_per_second: float | None = None
) -> dict[str, Transport]:
    """The transports that the worker's settings allow and that work here, best first; TransferError when none does. An
    operator who has named them is warned of those that do not work."""
    names = config.allowed_transports
    every = every_transport(
        config.device,
        host=config.transport_host,
        advertise_host=config.advertise_host,
        tls=tls,
        may_kill=may_kill,
        bytes_per_second=bytes_per_second,
    )
    obstacles = {name: every[name].available() for name in names}
    usable = {name: every[name] for name, obstacle in obstacles.items() if not obstacle}
    left_out = "; ".join(f"{name}: {obstacle}" for name, obstacle in obstacles.items() if obstacle)
    if not usable:
        raise TransferError(f"transports: none can be used here ({left_out})")
    if left_out:
        log.log(logging.INFO if config.transports is None else logging.WARNING, "transports left out: %s", left_out)
    return usable


def every_transport(
    device: str,
    *,
    host: str,
    advertise_host: str = "",
    tls: TlsFiles | None = None,
    may_kill: bool = True,
    bytes_per_second: float | None = None,
) -> dict[str, Transport]:
    """All transports that reach pages on this device, best first, whether they work here or not."""
    random = SystemRandom()
    if device == "cpu":
        options = TcpOptions(host=host, advertise_host=advertise_host, bytes_per_second=bytes_per_second)
        return {
            "shm": SharedMemory(random, may_kill=may_kill),
            "rdma": Rdma(random, RdmaOptions(host=host, advertise_host=advertise_host)),
            "tcp": Tcp(random, options, tls=tls),
        }
    from kvtransfer.cuda_ipc import CudaIpc  # imports torch
    from kvtransfer.nccl import NcclTransport

    nccl = NcclTransport(random, host=host, advertise_host=advertise_host)
    return {"cuda_ipc": CudaIpc(random, may_kill=may_kill), "nccl": nccl}


def say_hello(
    incarnation: int, numerics: str, shape: PageShape, transports: Sequence[str], *, secret: bytes = b""
) -> KvHello:
    """The first message of one end of a kv.v1 session."""
    return KvHello(
        incarnation=incarnation,
        numerics=numerics,
        shape=shape,
        host=host_identity(),
        uid=os.geteuid(),
        pid=os.getpid(),
        transports=tuple(transports),
        secret=secret,
    )
