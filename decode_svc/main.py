"""A decode worker as a process: model, pool, transports and network put together, then its loop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import SystemRandom

from decode_svc.chunk_size import ChunkSize
from decode_svc.speculation.draft_length import DraftLengths
from decode_svc.speculation.speculation import DraftSource, Speculation
from decode_svc.worker import DecodeWorker
from engine.loading.loaded import LoadedModel
from engine.loading.startup import (
    describe_model,
    engine_of,
    load_configured,
    membership,
    memory_bytes,
    pool_pages,
)
from kvtransfer.transports import make_pool, make_transports, say_hello
from mesh.config.worker_config import DecodeConfig
from mesh.messages.hello_pairs import PageReach, choose
from mesh.messages.jobs import Tier
from mesh.messages.kv_messages import KvHello
from mesh.network.interface import Network
from mesh.network.logged_network import with_message_log
from mesh.network.mesh_token import mesh_token
from mesh.network.tls import tls_files
from mesh.network.worker_network import worker_network
from mesh.rules import RULES, Rules
from mesh.sessions.serving import serve_worker
from mesh.sessions.step_times import FIRST_GPU_SECONDS, StepTimes
from mesh.sessions.watchdog import watched

log = logging.getLogger("baton.decode")


async def serve(config: DecodeConfig, *, rules: Rules = RULES) -> None:
    """Serve until cancelled or drained."""
    async with open_worker(config, rules=rules) as worker:
        await serve_worker(worker, config.drain_seconds)


def as_it_is(model: LoadedModel) -> LoadedModel:
    return model


@asynccontextmanager
async def open_worker(
    config: DecodeConfig,
    *,
    rules: Rules = RULES,
    spoil: Callable[[LoadedModel], LoadedModel] = as_it_is,
    draft_lengths: DraftLengths | None = None,
    ends_process: bool = True,
    network: Network | None = None,
) -> AsyncIterator[DecodeWorker]:
    """A worker that listens; the caller runs it. `network` takes the place of gRPC; `ends_process`: a step that hangs
    may end the process, in which the caller runs too. Tests pass `spoil`, which changes the model so that `baton
    verify` must notice, and `draft_lengths`, which drafts at any cost."""
    token = mesh_token(config, "decode.address", config.address)
    model = await load_configured(config)
    shape, weights = model.shape, model.weights_bytes
    memory = memory_bytes(config.device)
    pages = pool_pages(config, shape.page_bytes, memory_bytes=memory, weights_bytes=weights)
    pool = make_pool(config.device, shape, pages)
    runner = spoil(model).runner(
        pool.buffer, threads=config.thread_count, cores=config.cores, max_batch=config.max_batch
    )
    tls = tls_files(config)
    transports = make_transports(config, tls, may_kill=config.may_kill)
    incarnation = SystemRandom().getrandbits(64)
    first_seconds = FIRST_GPU_SECONDS if config.device == "cuda" else 0.0
    steps = StepTimes(asyncio.get_running_loop().time, weights_bytes=weights, first_seconds=first_seconds)
    engine = await engine_of(config, model, runner, steps, pages=pool.pages, clear=pool.clear)
    kv_hello = say_hello(incarnation, model.identity.pairing, shape, list(transports))
    receivers = {name: await transport.receive(pool, incarnation) for name, transport in transports.items()}
    network = network or worker_network("decode", config, token, tls, counts=lambda: worker.counts())
    network = with_message_log(network, config.message_log, tier="decode", name=config.name, incarnation=incarnation)
    member = membership(
        Tier.DECODE, incarnation, config, model, network=network, pages=PageReach.of(kv_hello), rules=rules
    )
    worker = DecodeWorker(
        member,
        engine,
        pool,
        kv_hello=kv_hello,
        receivers=receivers,
        choose=pair,
        speculation=_speculation(config, model, draft_lengths),
        chunk_size=ChunkSize(chunk_tokens=config.chunk_tokens, itl_target_ms=config.itl_target_ms),
        max_batch=config.max_batch,
    )
    address = await worker.listen(config.address)
    log.info("decode ready at %s %s", address, describe_model(model))
    measuring = asyncio.create_task(model.floor.measure_when_idle(lambda: worker.busy))
    try:
        beat = rules.heartbeat_seconds
        with watched(steps, worker.attachments, heartbeat_seconds=beat, ends_process=ends_process):
            yield worker
    finally:
        measuring.cancel()
        await worker.aclose()
        for receiver in receivers.values():
            await receiver.aclose()
        runner.close()
        pool.close()
        if engine.masker is not None:
            engine.masker.close()


def _speculation(config: DecodeConfig, model: LoadedModel, draft_lengths: DraftLengths | None) -> Speculation:
    return Speculation(
        source_of(config),
        draft_tokens=config.draft_tokens,
        chunk_tokens=config.chunk_tokens,
        page_tokens=config.page_tokens,
        context_tokens=model.draft_context_tokens,
        draft_lengths=draft_lengths,
    )


def pair(mine: KvHello, theirs: KvHello) -> tuple[str, str]:
    """Choose the transport of a session with a prefill worker, and give the reason. Workers of different classes never
    pair, even if a gateway sends them a request."""
    if mine.numerics != theirs.numerics:
        return "", f"numerics classes differ: prefill has {theirs.numerics!r}, decode {mine.numerics!r}"
    choice = choose(theirs, mine)
    return choice.transport, choice.why


def source_of(config: DecodeConfig) -> DraftSource:
    """Drafts come from the draft model if there is one, else from the text, unless the configuration names a source."""
    if config.draft_folder is not None:
        return DraftSource.DRAFT
    return DraftSource.LOOKUP if config.speculation in ("auto", "lookup") else DraftSource.OFF
