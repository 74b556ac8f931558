"""Adapters in a mesh of both tiers: answers are those of one process, caches never mix, loads reach all workers."""

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from engine.adapters.reading import read_adapter
from engine.cpu.runner import CpuRunner
from engine.model.config import read_config
from engine.model.page_memory import page_layout
from engine.model.weights import open_weights
from engine.step.plan import Piece, Plan
from gateway.core.interface import ChoiceRequest, ChosenAdapter
from gateway.routing.router import Local
from mesh.config.adapter_config import AdapterFolder
from mesh.errors import InvalidRequest, Unavailable
from mesh.messages.jobs import Sampling
from mesh.messages.orders import Examination
from tests.harness.adapters import make_adapter

pytestmark = pytest.mark.mesh

PROMPT = tuple(int(each) for each in np.random.default_rng(7).integers(0, 256, 70))
TOKENS = 12


def alone(mesh: Any, folder: Path | None, prompt: tuple[int, ...] = PROMPT, count: int = TOKENS) -> list[int]:
    """The greedy answer of one engine in this process."""
    weights = open_weights(mesh.model, mesh.folder)
    adapter = None if folder is None else read_adapter(folder, read_config(mesh.model))
    pool = np.zeros(16 * page_layout(weights, None, 16).page_bytes, np.uint8)
    runner = CpuRunner(weights, pool_buffer=pool, page_tokens=16, threads=1)
    out, tokens, start = list[int](), list(prompt), 0
    for position in range(count):
        piece = Piece(
            1, tuple(tokens), start, tuple(range(16)), 1, position, Sampling(max_tokens=count), adapter=adapter
        )
        ((sampled,),) = runner.compute(Plan(position, (piece,))).sampled
        start, tokens = start + len(tokens), [sampled.token]
        out.append(sampled.token)
    runner.close()
    return out


async def answer(mesh: Any, name: str | None, prompt: tuple[int, ...] = PROMPT) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt a cache had."""
    adapter = None if name is None else mesh.gateway.facts(name).adapter
    running = mesh.ask(prompt, sampling=Sampling(max_tokens=TOKENS), adapter=adapter)
    await running.task
    return running.text, running.handle.timings.cached_tokens


async def test_base_and_adapters_answer_as_one_process_does_and_share_no_cached_page(
    real_mesh: Any, tmp_path: Path
) -> None:
    async with real_mesh(local=Local.NEVER) as mesh:
        folders = {name: make_adapter(tmp_path / name, mesh.model, seed=i) for i, name in enumerate(("sql", "poet"))}
        at_edges: dict[str, Any] = {"targets": ("q_proj", "embed_tokens"), "saved": ("lm_head",)}
        folders["edges"] = make_adapter(tmp_path / "edges", mesh.model, **at_edges)
        folders["twin"] = Path(shutil.copytree(folders["sql"], tmp_path / "twin"))
        named = tuple(AdapterFolder(name, folder) for name, folder in folders.items())
        for tier in ("prefill", "decode"):
            await mesh.add(tier, adapters=named)
        assert mesh.gateway.models() == ("tiny", "sql", "poet", "edges", "twin")
        names = None, "sql", "poet", "edges"
        expected = {name: alone(mesh, folders.get(name or "")) for name in names}
        assert len({tuple(each) for each in expected.values()}) == 4, "the adapters change the answers"
        for name in names:
            assert await answer(mesh, name) == (expected[name], 0), "no page of another content is found"
        for name in names:
            tokens, cached = await answer(mesh, name)
            assert tokens == expected[name] and cached >= 64, "its own pages are"
        tokens, cached = await answer(mesh, "twin")
        assert tokens == expected["sql"] and cached >= 64, "equal content shares pages, whatever its name"
        found = await asyncio.gather(*(answer(mesh, name) for name in (*names, "twin") * 3))
        for number, name in enumerate(names):
            assert [tokens for tokens, _ in found[number::5]] == [expected[name]] * 3


async def test_a_load_reaches_all_workers_or_none_and_a_request_keeps_the_content_that_it_came_with(
    real_mesh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.adapters.held.GRACE_SECONDS", 0.0)
    async with real_mesh(local=Local.AUTO) as mesh:
        one, two = (make_adapter(tmp_path / f"{seed}", mesh.model, seed=seed) for seed in (1, 2))
        place = Path(shutil.copytree(one, tmp_path / "place"))
        for tier in ("prefill", "decode", "decode"):
            await mesh.add(tier)
        loading = mesh.gateway.loading
        with pytest.raises(InvalidRequest, match=r"lora_path: .*nowhere/adapter_config\.json: does not exist"):
            await loading.load("tiny", "a", str(tmp_path / "nowhere"))
        assert "a" not in mesh.gateway.models() and all(not worker.adapters.named() for worker in mesh.decodes)
        before = (await loading.load("tiny", "a", str(place))).digest
        held = mesh.ask(PROMPT, sampling=Sampling(max_tokens=200), adapter=ChosenAdapter("a", before))
        await mesh.until(lambda: len(held.tokens) > 2)
        with pytest.raises(InvalidRequest, match="loaded already"):
            await loading.load("tiny", "a", str(place))
        shutil.rmtree(place)
        shutil.copytree(two, place)
        after = (await loading.load("tiny", "a", str(place), replace=True)).digest
        assert before != after == mesh.gateway.facts("a").adapter.digest
        assert (await answer(mesh, "a"))[0] == alone(mesh, two)
        await held.task
        longer = alone(mesh, one, count=100)
        assert held.text[:100] == longer, "it began before the load, with the content of then"
        late = await mesh.add("prefill")
        await mesh.until(lambda: len(late.adapters.named()) == 1)
        assert late.adapters.named()[0].digest == after, "a worker that comes later gets what the model has"
        await loading.unload("a")
        assert mesh.gateway.models() == ("tiny",)
        gone = mesh.ask(PROMPT, sampling=Sampling(max_tokens=4), adapter=ChosenAdapter("a", before))
        with pytest.raises(Unavailable, match="it was unloaded"):
            await gone.task


async def test_loads_and_unloads_under_load_lose_no_request_and_no_memory(real_mesh: Any, tmp_path: Path) -> None:
    async with real_mesh(local=Local.AUTO) as mesh:
        folders = [make_adapter(tmp_path / f"{seed}", mesh.model, seed=seed) for seed in range(3)]
        expected = [alone(mesh, folder) for folder in folders]
        for tier in ("prefill", "decode"):
            (await mesh.add(tier, max_loras=2)).plans = None  # a log of plans would keep every adapter
        random, wrong, over = Random(3), list[Any](), False
        loading, names = mesh.gateway.loading, ("x", "y", "z")
        for name, folder in zip(names, folders, strict=True):
            await loading.load("tiny", name, str(folder))

        async def client() -> int:
            done = 0
            while not over:
                number = random.randrange(3)
                if names[number] not in mesh.gateway.models():
                    await asyncio.sleep(0.001)
                    continue
                tokens, _ = await answer(mesh, names[number])
                done += 1
                if tokens != expected[number]:
                    wrong.append((number, tokens))
            return done

        clients = [asyncio.ensure_future(client()) for _ in range(4)]
        for turn in range(15):
            name = names[turn % 3]
            await loading.unload(name)
            await loading.load("tiny", name, str(folders[turn % 3]))
        over = True
        done = await asyncio.gather(*clients)
        assert not wrong and sum(done) > 4
        for worker in (*mesh.decodes, *mesh.prefills):
            await mesh.until(lambda: not worker.busy)  # noqa: B023
            counts = worker.adapters.counts()
            assert counts["adapters"] == 3 and counts["adapters_in_memory"] <= 2 and not counts["adapters_waiting"]
            assert not any(users for _, users in worker.adapters.uses())


async def test_requests_go_to_the_workers_that_have_their_adapter(real_mesh: Any, tmp_path: Path) -> None:
    async with real_mesh(local=Local.AUTO) as mesh:
        folder = make_adapter(tmp_path / "sql", mesh.model, seed=1)
        await mesh.add("decode", adapters=(AdapterFolder("sql", folder),))
        expected, base = alone(mesh, folder), alone(mesh, None)
        shutil.rmtree(folder)  # so that those that come later cannot load it
        for tier in ("prefill", "decode", "decode"):
            await mesh.add(tier)
        first, *others = mesh.decodes
        found = await asyncio.gather(*(answer(mesh, "sql") for _ in range(6)))
        assert [tokens for tokens, _ in found] == [expected] * 6
        assert all(piece.adapter is None for worker in others for plan in worker.plans or () for piece in plan.pieces)
        assert await answer(mesh, None) == (base, 0)
        await mesh.end(first)
        await mesh.until(lambda: "sql" not in mesh.gateway.models())


async def test_examinations_are_computed_with_the_adapter(real_mesh: Any, tmp_path: Path) -> None:
    async with real_mesh(local=Local.AUTO) as mesh:
        named = tuple(
            AdapterFolder(name, make_adapter(tmp_path / name, mesh.model, seed=i)) for i, name in enumerate("ab")
        )
        for tier in ("prefill", "decode"):
            await mesh.add(tier, adapters=named)

        async def scores(name: str | None) -> bytes:
            adapter = None if name is None else mesh.gateway.facts(name).adapter
            spec = ChoiceRequest(
                "r", "tiny", PROMPT, (), Sampling(max_tokens=0), adapter=adapter, examination=Examination()
            )
            found = await mesh.gateway.examine(spec).scores()
            return b"".join(part.logprobs for part in found.parts)

        once = [await scores(name) for name in (None, "a", "b")]
        assert len(set(once)) == 3
        assert list(await asyncio.gather(*(scores(name) for name in (None, "a", "b")))) == once
