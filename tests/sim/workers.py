"""The workers of simulations: the product's own, with transports in memory and a model that is fast to check."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from decode_svc.chunk_size import ChunkSize
from decode_svc.handoff.sessions import Choose
from decode_svc.speculation.draft_length import DraftLengths
from decode_svc.speculation.speculation import Accept, DraftSource, Speculation
from decode_svc.worker import DecodeWorker
from engine.drafts.acceptance import accepted
from engine.loading.worker_engine import WorkerEngine
from engine.pool.bands import LayerBands, bands_of
from engine.pool.pages import PagePool
from engine.step.constraint import Masker
from engine.step.plan import Plan
from engine.step.timed_runner import TimedRunner
from kvtransfer.memory import MemoryPool, MemoryTransport
from mesh.messages.jobs import Tier
from mesh.messages.kv_messages import KvHello
from mesh.messages.page_shape import ROWS, PageSegment, PageShape
from mesh.messages.reports import Hello, Load, PrefixChange
from mesh.network.interface import Network
from mesh.rules import RULES, Rules
from mesh.sessions.membership import Membership
from mesh.sessions.step_times import StepTimes
from prefill_svc.worker import PrefillWorker
from tests.sim.model import VOCABULARY, SimRunner

PAGE_TOKENS = 4
CONTEXT_TOKENS = 8192
MODEL, DRAFT = (PageSegment(ROWS, content, layers, PAGE_TOKENS * 8) for content, layers in (("sim", 2), ("draft", 1)))
SHAPE, DRAFT_SHAPE = PageShape(PAGE_TOKENS, (MODEL,)), PageShape(PAGE_TOKENS, (MODEL, DRAFT))


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options that all workers of a simulated mesh have in common."""

    rules: Rules = RULES
    gateways: tuple[str, ...] = ("gateway",)
    chunk_tokens: int = 8
    itl_target_ms: float = 0.0  # 0: chunks have their full size, and decode takes no prompts from prefill
    cache: bool = True
    max_batch: int = 64
    source: DraftSource = DraftSource.OFF
    draft_tokens: int = 4
    foresight: float = 0.7
    vocabulary: int = VOCABULARY
    acceptance: float | None = None  # the acceptance that drafts are expected to find; None: the product's guess
    accept: Accept = accepted
    ahead: bool = False  # decode launches steps before the ones in front are read
    trace_steps: int = 0
    step_seconds: float = 0.002
    row_seconds: float = 0.0002
    on_plan: Callable[[Plan], None] = lambda plan: None  # sees every plan of every worker; may make its step fail
    masker: Callable[[], Masker] | None = None  # makes each worker's masks; None: no request has a grammar
    prefill_tokens: int = PAGE_TOKENS  # tokens in a page at prefill
    decode_tokens: int = PAGE_TOKENS
    window: int = 0  # slots that a row reads, its own the last; 0: all
    full_layers: int = 0  # the last layers of the model, which read all slots beside the window

    @property
    def bands(self) -> LayerBands:
        """How the layers lie in pages; a draft reads texts late, so pages stay."""
        layers = SHAPE.layers
        return bands_of([self.window] * (layers - self.full_layers) + [0] * self.full_layers)

    def shape(self, tier: Tier) -> PageShape:
        tokens = self.prefill_tokens if tier is Tier.PREFILL else self.decode_tokens
        segments = (DRAFT_SHAPE if self.source is DraftSource.DRAFT else SHAPE).segments
        count = self.bands.count
        return PageShape(
            tokens, tuple(replace(each, layers=each.layers // count, layer_bytes=8 * tokens) for each in segments)
        )


@dataclass(frozen=True)
class SimWorker:
    """A worker and the parts of it that tests look into."""

    worker: PrefillWorker | DecodeWorker
    pages: PagePool
    pool: MemoryPool
    runner: SimRunner
    steps: StepTimes


async def start_worker(
    options: WorkerOptions,
    network: Network,
    transport: MemoryTransport,
    *,
    tier: Tier,
    name: str,
    incarnation: int,
    pool: MemoryPool,
    pages: PagePool,  # page states of that memory
    numerics: str = "class-a",
    model: str = "sim",
    choose: Choose,
    on_write: Callable[[int], None],  # called with every page before a step writes it
) -> SimWorker:
    """A worker that listens at its name; its caller runs its loop and lets it register."""
    shape, rules, bands = options.shape(tier), options.rules, options.bands
    hello = _hello(options, tier, name, incarnation=incarnation, numerics=numerics, model=model)
    kv_hello = KvHello(incarnation, numerics, shape, "host", 0, 0, transports=(transport.name,))
    runner = SimRunner(
        pool,
        shape.page_tokens,
        step_seconds=options.step_seconds,
        row_seconds=options.row_seconds,
        accent=0 if numerics == "class-a" else 1,
        draft_layers=shape.layers - SHAPE.layers // bands.count,
        foresight=options.foresight,
        vocabulary=options.vocabulary,
        on_write=on_write,
        on_plan=options.on_plan,
        ahead=options.ahead,
        bands=bands,
    )
    steps = StepTimes(asyncio.get_running_loop().time, first_seconds=60.0)
    timed = TimedRunner(runner, steps)
    masker = options.masker() if options.masker is not None else None
    member = Membership(
        network=network, hello=hello, gateways=options.gateways, trace_steps=options.trace_steps, rules=rules
    )
    engine = WorkerEngine(runner=timed, pages=pages, masker=masker)
    if tier is Tier.PREFILL:
        prefill = PrefillWorker(
            member,
            engine,
            pool,
            kv_hello=kv_hello,
            transports={transport.name: transport},
            chunk_tokens=options.chunk_tokens,
            step_tokens=2 * options.chunk_tokens,
            drafts=options.source is DraftSource.DRAFT,
        )
        await prefill.attachments.listen(name)
        return SimWorker(prefill, pages, pool, runner, steps)
    decode = DecodeWorker(
        member,
        engine,
        pool,
        kv_hello=kv_hello,
        receivers={transport.name: await transport.receive(pool, incarnation)},
        choose=choose,
        speculation=_speculation(options),
        chunk_size=ChunkSize(chunk_tokens=options.chunk_tokens, itl_target_ms=options.itl_target_ms),
        max_batch=options.max_batch,
    )
    await decode.listen(name)
    return SimWorker(decode, pages, pool, runner, steps)


def _hello(options: WorkerOptions, tier: Tier, name: str, *, incarnation: int, numerics: str, model: str) -> Hello:
    bands = options.bands
    return Hello(
        tier,
        incarnation,
        name,
        numerics,
        f"print-{numerics}",
        model,
        "0",
        options.shape(tier).page_tokens,
        CONTEXT_TOKENS,
        Load(),
        PrefixChange(0),
        name,
        window_tokens=options.window,
        windowed_bands=bands.count - bands.full if bands.full else 0,
        full_bands=bands.full,
        chunk_tokens=options.chunk_tokens,
    )


def _speculation(options: WorkerOptions) -> Speculation:
    lengths = None
    if options.acceptance is not None:
        lengths = DraftLengths(longest=options.draft_tokens, prior=options.acceptance)
    return Speculation(
        options.source,
        draft_tokens=options.draft_tokens,
        chunk_tokens=options.chunk_tokens,
        page_tokens=options.decode_tokens,
        context_tokens=CONTEXT_TOKENS,
        accept=options.accept,
        draft_lengths=lengths,
    )
