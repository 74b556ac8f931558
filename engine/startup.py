"""How a worker of either tier begins: the model that its settings name is opened, and it says of itself what is known
before anything runs.

The pool, the runner over its memory and the loop are each tier's own (`main.py` of prefill_svc and decode_svc)."""

import asyncio

from engine.cuda.device import find_gpu
from engine.loaded import LoadedModel, load_on
from mesh import host
from mesh.config import ConfigError, WorkerConfig
from mesh.messages import Hello, Load, PrefixChange, Tier


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
    )


def pool_pages(config: WorkerConfig, page_bytes: int, *, memory_bytes: int) -> int:
    """How many pages the pool has. ConfigError where it would not fit, before the system ends somebody for it."""
    pages = config.pages(page_bytes)
    if pages * page_bytes > memory_bytes:
        name = "pool_bytes" if config.pool_pages is None else "pool_pages"
        raise ConfigError(
            f"{name}: {pages} pages of {page_bytes} bytes are {pages * page_bytes} bytes, and "
            f"{'the GPU' if config.device == 'cuda' else 'this host'} has {memory_bytes}; lower {name}"
        )
    return pages


def memory_bytes(device: str) -> int:
    """All there is for a pool on this device, whoever uses it now."""
    found = find_gpu().gpu if device == "cuda" else None
    return found.memory_bytes if found is not None else host.memory_bytes()


def worker_hello(tier: Tier, incarnation: int, config: WorkerConfig, model: LoadedModel) -> Hello:
    """Without address, load and prefix, which its worker adds."""
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
        load=Load(),
        prefix=PrefixChange(0),
    )


def about(model: LoadedModel) -> str:
    """For people: in the line that says a worker is ready."""
    return f"class {model.identity.numerics} fingerprint {model.identity.fingerprint} body {model.body}"
