"""How a worker of either tier starts: it loads the model that its settings name, sizes its page pool and describes
itself.

The pool, the runner over its memory and the loop are each tier's own (`decode_svc/main.py`, `prefill_svc/main.py`)."""

import asyncio
import logging
from pathlib import Path

import baton_kernels
from engine.adapters.held import HeldAdapters, open_adapters
from engine.adapters.reading import base_model, read_adapter
from engine.adapters.turned import refuse_turned
from engine.cuda.device import find_gpu
from engine.loading.loaded import LoadedModel, load_on
from engine.loading.worker_engine import WorkerEngine
from engine.model.config import read_config
from engine.pool.pages import Clear, PagePool
from engine.quantization.cached import in_four_bits
from engine.step.adapted import AdapterWeights
from engine.step.constraint import Masker, open_masker
from engine.step.plan import Runner
from engine.step.timed_runner import TimedRunner
from mesh.config import host
from mesh.config.config_checks import ConfigError
from mesh.config.worker_config import WorkerConfig
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.messages.reports import Hello, Load, PrefixChange
from mesh.network.interface import Network
from mesh.rules import Rules
from mesh.sessions.membership import Membership
from mesh.sessions.step_times import StepTimes

log = logging.getLogger("baton.adapters")


async def load_configured(config: WorkerConfig) -> LoadedModel:
    if config.model is None:
        raise ConfigError("model: name a Hugging Face model folder")
    return await asyncio.to_thread(
        load_on,
        config.device,
        config.model,
        config.cache_folder,
        product_path=config.product_path,
        page_tokens=config.page_tokens,
        draft=config.draft_folder,
        context_tokens=config.context_tokens,
        threads=config.thread_count,
        quantize=config.quantize,
        kv_dtype=config.kv_dtype,
        banded=True,
    )


def pool_pages(config: WorkerConfig, page_bytes: int, *, memory_bytes: int, weights_bytes: int = 0) -> int:
    """How many pages the pool has. Raises ConfigError when they cannot fit: the system would end a process later."""
    pages = config.pages(page_bytes, memory_bytes=memory_bytes, weights_bytes=weights_bytes)
    if pages * page_bytes > memory_bytes:
        name = "pool_bytes" if config.pool_pages is None else "pool_pages"
        raise ConfigError(
            f"{name}: {pages} pages of {page_bytes} bytes are {pages * page_bytes} bytes, and "
            f"{'the GPU' if config.device == 'cuda' else 'this host'} has {memory_bytes}; lower {name}"
        )
    return pages


def memory_bytes(device: str) -> int:
    """All memory of the device on which the pool lies, also what other processes use of it now."""
    found = find_gpu().gpu if device == "cuda" else None
    return found.memory_bytes if found is not None else host.memory_bytes()


async def open_masks(config: WorkerConfig) -> Masker | None:
    """The worker's masks for grammars; None on a GPU, whose sampler takes none."""
    if config.device != "cpu" or config.model is None:
        return None
    masker = open_masker(config.model, _vocabulary(config))
    await asyncio.to_thread(masker.open)
    return masker


async def open_held(config: WorkerConfig) -> HeldAdapters | None:
    """The worker's adapters, those of its configuration loaded; None on a GPU, which computes none."""
    if config.device != "cpu" or config.model is None:
        return None
    baton_kernels.self_test("deltas")
    model_folder, model = config.model, read_config(config.model, context_tokens=config.context_tokens)
    limits = {"most_rank": config.max_lora_rank, "most_bytes": config.lora_bytes}

    def read(folder: Path) -> AdapterWeights:
        base = base_model(folder)
        if base and Path(base).name.lower() != config.model_name.rpartition("/")[2].lower():
            log.warning("%s names %s as its base model; this worker serves %s", folder, base, config.model_name)
        four = config.quantize == "int4"
        refuse_turned(folder, in_four_bits(model_folder, config.cache_folder) if four else model_folder)
        return read_adapter(folder, model, **limits, base=model_folder)

    async def in_thread(folder: Path) -> AdapterWeights:
        return await asyncio.to_thread(read, folder)

    named = [(each.name, each.folder) for each in config.adapters]
    return await open_adapters(in_thread, named, places=config.max_loras, most_bytes=config.lora_bytes)


async def engine_of(
    config: WorkerConfig, model: LoadedModel, runner: Runner, steps: StepTimes, *, pages: int, clear: Clear
) -> WorkerEngine:
    """All that the worker computes with: its runner, which `steps` times, and a pool of so many pages."""
    adapters, masker = await open_held(config), await open_masks(config)
    return WorkerEngine(
        runner=TimedRunner(runner, steps),
        pages=PagePool(pages, cache=config.prefix_cache, clear=clear, bands=model.bands),
        floor=model.floor,
        masker=masker,
        adapters=adapters,
    )


def membership(
    tier: Tier,
    incarnation: int,
    config: WorkerConfig,
    model: LoadedModel,
    *,
    network: Network,
    pages: PageReach,
    rules: Rules,
) -> Membership:
    return Membership(
        network=network,
        hello=worker_hello(tier, incarnation, config, model, pages),
        gateways=config.gateways,
        metrics=config.metrics,
        trace_steps=config.trace_steps,
        rules=rules,
    )


def worker_hello(tier: Tier, incarnation: int, config: WorkerConfig, model: LoadedModel, pages: PageReach) -> Hello:
    """Hello with everything known before the worker serves. The worker adds its address, load and prefix cache."""
    return Hello(
        tier=tier,
        incarnation=incarnation,
        address="",
        numerics=model.identity.numerics,
        fingerprint=model.identity.fingerprint,
        model=config.model_name,
        model_hash=model.identity.model_hash,
        page_tokens=config.page_tokens,
        context_tokens=model.context_tokens,
        window_tokens=model.bands.window,
        windowed_bands=model.bands.count - model.bands.full if model.bands.full else 0,
        full_bands=model.bands.full,
        chunk_tokens=config.chunk_tokens,
        load=Load(),
        prefix=PrefixChange(0),
        name=config.name,
        examines=config.device == "cpu",
        adjusts_logits=config.device != "cuda",
        vocabulary=_vocabulary(config),
        pages=pages,
        all_cores=config.all_cores,
        loads_adapters=config.device == "cpu",
    )


def _vocabulary(config: WorkerConfig) -> int:
    """Tokens of the model's vocabulary; 0: the worker has no model."""
    if config.model is None:
        return 0
    return read_config(config.model, context_tokens=config.context_tokens).vocab


def describe_model(model: LoadedModel) -> str:
    """Ends the log line by which a worker reports that it is ready."""
    return f"class {model.identity.numerics} fingerprint {model.identity.fingerprint} body {model.body}"
