"""A prefill worker as a process: model, pool, transports and network put together, then its loop."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom

from engine.loading.startup import (
    describe_model,
    engine_of,
    load_configured,
    membership,
    memory_bytes,
    pool_pages,
)
from kvtransfer.transports import make_pool, make_transports, say_hello
from mesh.config.worker_config import PrefillConfig
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.network.logged_network import with_message_log
from mesh.network.mesh_token import mesh_token
from mesh.network.tls import tls_files
from mesh.network.worker_network import worker_network
from mesh.rules import RULES, Rules
from mesh.sessions.serving import serve_worker
from mesh.sessions.step_times import FIRST_GPU_SECONDS, StepTimes
from mesh.sessions.watchdog import watched
from prefill_svc.worker import PrefillWorker

log = logging.getLogger("baton.prefill")


async def serve(config: PrefillConfig, *, rules: Rules = RULES, bytes_per_second: float | None = None) -> None:
    """Run a worker until it is cancelled or drained. `bytes_per_second` throttles pushes over TCP, for benchmarks."""
    async with open_worker(config, rules=rules, bytes_per_second=bytes_per_second) as worker:
        await serve_worker(worker, config.drain_seconds)


@asynccontextmanager
async def open_worker(
    config: PrefillConfig,
    *,
    rules: Rules = RULES,
    bytes_per_second: float | None = None,
    ends_process: bool = True,
) -> AsyncIterator[PrefillWorker]:
    """A worker that listens for its gateways; the caller runs it. `ends_process`: a step that hangs may end the
    process, in which tests run too."""
    token = mesh_token(config, "prefill.address", config.address)
    model = await load_configured(config)
    shape, weights = model.shape, model.weights_bytes
    memory = memory_bytes(config.device)
    pages = pool_pages(config, shape.page_bytes, memory_bytes=memory, weights_bytes=weights)
    pool = make_pool(config.device, shape, pages)
    runner = model.runner(pool.buffer, threads=config.thread_count, cores=config.cores, layer_group=config.layer_group)
    tls = tls_files(config)
    transports = make_transports(config, tls, bytes_per_second=bytes_per_second)
    incarnation = SystemRandom().getrandbits(64)
    first_seconds = FIRST_GPU_SECONDS if config.device == "cuda" else 0.0
    steps = StepTimes(asyncio.get_running_loop().time, weights_bytes=weights, first_seconds=first_seconds)
    engine = await engine_of(config, model, runner, steps, pages=pool.pages, clear=pool.clear)
    secret = SystemRandom().randbytes(32)
    kv_hello = say_hello(incarnation, model.identity.pairing, shape, list(transports), secret=secret)
    bare = worker_network("prefill", config, token, tls, counts=lambda: worker.counts())
    network = with_message_log(bare, config.message_log, tier="prefill", name=config.name, incarnation=incarnation)
    member = membership(
        Tier.PREFILL, incarnation, config, model, network=network, pages=PageReach.of(kv_hello), rules=rules
    )
    worker = PrefillWorker(
        member,
        engine,
        pool,
        kv_hello=kv_hello,
        transports=transports,
        chunk_tokens=config.chunk_tokens,
        step_tokens=config.step_tokens,
        drafts=config.draft_folder is not None,
    )
    address = await worker.attachments.listen(config.address)
    log.info("prefill ready at %s %s", address, describe_model(model))
    measuring = asyncio.create_task(model.floor.measure_when_idle(lambda: worker.busy))
    try:
        beat = rules.heartbeat_seconds
        with watched(steps, worker.attachments, heartbeat_seconds=beat, ends_process=ends_process):
            yield worker
    finally:
        measuring.cancel()
        await worker.aclose()
        runner.close()
        pool.close()
        if engine.masker is not None:
            engine.masker.close()
