"""Models of eight and four bits, as real processes: a mesh of both tiers gives the bits of the engine alone.

Prompts end inside pages and share beginnings, so chunks, cache hits and hand-offs all meet the integer products."""

from pathlib import Path
from random import Random

import pytest

from cli.verify.answers import compare
from cli.verify.outcomes import CellOutcome, run_cell
from cli.verify.reference import PAGE_TOKENS, on_cpu
from cli.verify.requests import VerifyRequest
from engine.builtin import ensure_random
from engine.integers.forms import RECIPE
from engine.loading.loaded import load_model
from mesh.messages.jobs import Sampling

pytestmark = pytest.mark.mesh

SLOTS = 512


def requests() -> list[VerifyRequest]:
    random = Random(7)
    start = tuple(random.randrange(256) for _ in range(160))
    prompts = [start[:length] for length in (1, 17, 32, 63, 96, 130, 160)]
    prompts += [start[:100] + tuple(random.randrange(256) for _ in range(count)) for count in (1, 28, 61)]
    return [
        VerifyRequest(prompt, Sampling(temperature=float(number % 2), seed=number, max_tokens=20, top_logprobs=2))
        for number, prompt in enumerate(prompts)
    ]


async def served(cache: Path, model: Path, quantize: str) -> CellOutcome:
    overrides = {
        "cache_folder": str(cache),
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
        "gateway.local": "never",
        "worker.quantize": quantize,
        "worker.chunk_tokens": "24",
        "worker.threads": "1",
        "worker.speculation": "off",
    }
    return await run_cell(overrides, requests(), batch=4, folder=model)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
async def test_a_mesh_of_integers_gives_the_bits_of_the_engine_alone(quantize: str, tmp_path: Path) -> None:
    model = Path(ensure_random(tmp_path))
    loaded = load_model(model, tmp_path, product_path="auto", page_tokens=PAGE_TOKENS, quantize=quantize)
    assert f"weights=int8.{RECIPE} from bf16" in loaded.identity.numerics
    alone = on_cpu(loaded, most_slots=SLOTS, threads=1)
    try:
        found = await served(tmp_path, model, quantize)
        expected = alone.answers(requests())
    finally:
        alone.close()
    assert [compare(*pair) for pair in zip(expected, found.answers, strict=True) if compare(*pair)] == []
    assert found.numerics == (loaded.identity.numerics, loaded.identity.fingerprint)
    assert found.remote == found.admitted == len(requests())
    assert 0 < found.bytes_moved == found.bytes_expected
