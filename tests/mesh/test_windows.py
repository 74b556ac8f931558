"""Models with windows in a mesh: prefill hands pages off in whose middle windows begin, and decode goes on from them.
Every answer has the tokens and the logprob bits of the engine alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model.weights import open_weights
from gateway.routing.router import Local
from mesh.errors import PoolTooSmall
from mesh.messages.jobs import Sampling
from tests.mesh.test_batching import prompt
from tests.unit.engine.conftest import CpuEngine

pytestmark = pytest.mark.mesh

ANSWER = 70  # tokens, more than a window


def windowed(folder: Path, window: int | None) -> None:
    """Make the folder one of Mistral, whose layers all have this window."""
    path = folder / "config.json"
    fields: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_scaling": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | fields | {"sliding_window": window}))


@pytest.mark.parametrize(("prefill_tokens", "decode_tokens"), [(16, 16), (16, 32), (32, 16)])
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
