"""Models with windows in a mesh: prefill hands pages off in whose middle windows begin, and decode goes on from them.
Every answer has the tokens and the logprob bits of the engine alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.model.weights import open_weights
from gateway.routing.router import Local
from mesh.errors import PoolTooSmall
from mesh.messages.jobs import Sampling
from tests.families.folders import saved
from tests.mesh.test_batching import prompt
from tests.unit.engine.conftest import CpuEngine

pytestmark = pytest.mark.mesh

ANSWER = 70  # tokens, more than a window


def windowed(folder: Path, window: int | None) -> None:
    """Make the folder one of Mistral, whose layers all have this window."""
    path = folder / "config.json"
    fields: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_scaling": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | fields | {"sliding_window": window}))


@pytest.mark.parametrize(("prefill_tokens", "decode_tokens"), [(16, 16), (32, 16)])
async def test_a_mesh_with_windows_answers_as_one_process_does_with_cache_hits_and_without(
    real_mesh: Any, prefill_tokens: int, decode_tokens: int
) -> None:
    async with real_mesh() as mesh:
        windowed(mesh.model, 40)
        prefill = await mesh.add("prefill", chunk_tokens=24, page_tokens=prefill_tokens)
        await mesh.add("decode", page_tokens=decode_tokens)
        alone = CpuEngine(open_weights(mesh.model, mesh.folder / "alone"))
        assert alone.weights.config.windows == (40,) * alone.weights.config.layers
        text = prompt(1, 150)
        for each in (text, text, (*text, 5, 6), text[:96], prompt(2, 33)):
            asked = mesh.ask(each, sampling=Sampling(temperature=0.0, max_tokens=ANSWER))
            await asked.task
            expected = alone.generate(each, ANSWER)
            assert [(one.token, one.logprob) for one in asked.tokens] == [(one.token, one.logprob) for one in expected]
        assert sum(plan.rows for plan in prefill.plans) < 4 * len(text), "no prompt found its beginning in a cache"
        windowed(mesh.model, None)
        other = CpuEngine(open_weights(mesh.model, mesh.folder / "alone"))
        texts = [[one.token for one in each.generate(text, ANSWER)] for each in (alone, other)]
        assert texts[0] != texts[1], "the window changes nothing"
        alone.runner.close()
        other.runner.close()


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
async def test_a_prompt_of_thousands_of_tokens_runs_in_a_pool_of_a_few_pages(real_mesh: Any, local: Local) -> None:
    async with real_mesh(local=local) as mesh:
        windowed(mesh.model, 64)
        sizes = {"pool_pages": 10, "chunk_tokens": 32, "speculation": "off"}
        prefill = await mesh.add("prefill", pool_pages=10, chunk_tokens=32)
        decode = await mesh.add("decode", **sizes)
        text = prompt(3, 3000)
        asked = mesh.ask(text, sampling=Sampling(temperature=0.0, max_tokens=200))
        await asked.task
        alone = CpuEngine(open_weights(mesh.model, mesh.folder / "alone"), pool_pages=101)
        expected = alone.generate(text, 200)
        alone.runner.close()
        assert [(one.token, one.logprob) for one in asked.tokens] == [(one.token, one.logprob) for one in expected]
        worker = prefill if local is Local.NEVER else decode
        assert sum(plan.rows for plan in worker.plans) >= 3000
        await mesh.until(lambda: not decode.requests and not prefill.prompts)
        for each in (prefill, decode):
            counts = each.pages.counts()
            assert counts.total == counts.free + counts.cached == 10 and each.ledger.counts()["ledger_broken"] == 0
        if local is Local.NEVER:
            assert decode.landings.bytes_landed == 5 * decode.pool.shape.page_bytes, "only what decode reads travels"


async def test_negative_control_without_windows_the_same_prompt_does_not_fit(real_mesh: Any) -> None:
    async with real_mesh() as mesh:
        windowed(mesh.model, None)
        await mesh.add("prefill", pool_pages=10, chunk_tokens=32)
        await mesh.add("decode", pool_pages=10, chunk_tokens=32)
        with pytest.raises(PoolTooSmall):
            await mesh.ask(prompt(3, 3000)).task


def gemma_3(folder: Path, layers: int = 12) -> Path:
    """Ten layers with a window of 64 and two that see everything; of 13 layers, eleven."""
    fields = {"sliding_window": 64, "num_hidden_layers": layers, "max_position_embeddings": 4096}
    return saved(folder, "gemma3_text", fields, dtype=torch.bfloat16)


# A text of 1,100 tokens takes 69 pages of 16 tokens in each of six bands. One of them keeps all, five keep those of
# the window, of a chunk, and one more.
LONG, WROTE, PAGES = 1000, 100, 69 + 5 * (6 + 1)


@pytest.mark.parametrize("kv", ["auto", "int8"])
@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
async def test_some_layers_have_windows_and_a_long_prompt_runs_in_a_pool_that_holds_a_part_of_its_pages(
    real_mesh: Any, local: Local, kv: str
) -> None:
    async with real_mesh(local=local) as mesh:
        mesh.model = gemma_3(mesh.folder / "gemma")
        sizes = {"pool_pages": PAGES, "chunk_tokens": 32, "kv_dtype": kv}
        prefill = await mesh.add("prefill", **sizes)
        decode = await mesh.add("decode", speculation="off", **sizes)
        text = prompt(3, LONG)
        asked = mesh.ask(text, sampling=Sampling(temperature=0.0, max_tokens=WROTE))
        await asked.task
        weights = open_weights(mesh.model, mesh.folder / "alone", kv="own" if kv == "auto" else kv)
        alone = CpuEngine(weights, pool_pages=35)
        expected = alone.generate(text, WROTE)
        alone.runner.close()
        assert [(one.token, one.logprob) for one in asked.tokens] == [(one.token, one.logprob) for one in expected]
        await mesh.until(lambda: not decode.requests and not prefill.prompts)
        for each in (prefill, decode):
            counts = each.pages.counts()
            assert counts.total == counts.free + counts.cached == PAGES and each.ledger.counts()["ledger_broken"] == 0
        if local is Local.NEVER:
            landed = decode.landings.bytes_landed // decode.pool.shape.page_bytes
            assert landed == 63 + 5 * 5, "only what decode reads travels"


async def test_negative_control_without_windows_the_same_prompt_does_not_fit_into_as_many_bytes(real_mesh: Any) -> None:
    async with real_mesh() as mesh:
        mesh.model = gemma_3(mesh.folder / "gemma")
        path = mesh.model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": 4096}))
        await mesh.add("prefill", pool_pages=PAGES // 6, chunk_tokens=32)
        await mesh.add("decode", pool_pages=PAGES // 6, chunk_tokens=32)
        with pytest.raises(PoolTooSmall):
            await mesh.ask(prompt(3, LONG)).task


@pytest.mark.parametrize(("prefill_tokens", "decode_tokens"), [(16, 32), (32, 16)])
async def test_a_prefix_hit_in_both_kinds_of_pages_answers_as_a_miss_does(
    real_mesh: Any, prefill_tokens: int, decode_tokens: int
) -> None:
    async with real_mesh() as mesh:
        mesh.model = gemma_3(mesh.folder / "gemma")
        prefill = await mesh.add("prefill", chunk_tokens=24, page_tokens=prefill_tokens)
        decode = await mesh.add("decode", page_tokens=decode_tokens)
        alone = CpuEngine(open_weights(mesh.model, mesh.folder / "alone"))
        text = prompt(1, 200)
        for each in (text, text, (*text, 5, 6), text[:192], prompt(2, 33)):
            asked = mesh.ask(each, sampling=Sampling(temperature=0.0, max_tokens=ANSWER))
            await asked.task
            expected = alone.generate(each, ANSWER)
            assert [(one.token, one.logprob) for one in asked.tokens] == [(one.token, one.logprob) for one in expected]
        alone.runner.close()
        assert sum(plan.rows for plan in prefill.plans) < 3 * len(text), "no prompt found its beginning in a cache"
        assert {each.ledger.counts()["ledger_broken"] for each in (prefill, decode)} == {0}


@pytest.mark.parametrize(
    ("transport", "prefill_tokens", "decode_tokens"), [("shm", 16, 16), ("tcp", 16, 32), ("shm", 32, 16)]
)
async def test_a_band_that_lacks_a_layer_is_handed_off_whole(
    real_mesh: Any, prefill_tokens: int, decode_tokens: int, transport: str
) -> None:
    """Seven bands of two layers: the last one with a window has one, and its pages arrive complete all the same."""
    async with real_mesh(local=Local.NEVER) as mesh:
        mesh.model = gemma_3(mesh.folder / "gemma", layers=13)
        prefill = await mesh.add("prefill", chunk_tokens=32, page_tokens=prefill_tokens, transports=(transport,))
        decode = await mesh.add("decode", page_tokens=decode_tokens, transports=(transport,), speculation="off")
        alone = CpuEngine(open_weights(mesh.model, mesh.folder / "alone"), pool_pages=35)
        text = prompt(3, 300)
        for each in (text, text, (*text, 7, 8, 9), text[:160]):
            asked = mesh.ask(each, sampling=Sampling(temperature=0.0, max_tokens=40))
            await asked.task
            expected = alone.generate(each, 40)
            assert [(one.token, one.logprob) for one in asked.tokens] == [(one.token, one.logprob) for one in expected]
        alone.runner.close()
        assert prefill.pages.bands.count == 7 and prefill.pool.shape.layers == 2
        counts = decode.counts()
        assert counts["spans_missing"] == counts["admitted_patched"] == 0 < counts["admitted_remote"]
