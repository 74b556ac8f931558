"""Tiers whose pages have other sizes, as real processes: decode goes on from converted pages as if it had written them.

Every answer is compared bit by bit with that of the engine alone. Prompts have a common beginning, so both prefix
caches are hit; chunks end inside pages, so a page of decode is filled by several steps and from several pages."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cli.verify.answers import best, compare
from cli.verify.drafts import ensure_draft
from cli.verify.outcomes import CellOutcome, run_cell
from cli.verify.reference import PAGE_TOKENS, Reference, on_cpu
from cli.verify.requests import VerifyRequest
from decode_svc.handoff.spans import Spans
from engine.builtin import ensure_random
from engine.loading.loaded import load_model
from kvtransfer.shm import HostCopies
from kvtransfer.span_reader import Converted
from kvtransfer.transfer import Span
from mesh.messages.jobs import Sampling

pytestmark = pytest.mark.mesh

SLOTS = 512


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(cache: Path) -> Path:
    return Path(ensure_random(cache))


@pytest.fixture(scope="module")
def reference(cache: Path, model: Path) -> Iterator[Reference]:
    loaded = load_model(model, cache, product_path="auto", page_tokens=PAGE_TOKENS)
    alone = on_cpu(loaded, most_slots=SLOTS, threads=1)
    yield alone
    alone.close()


def requests() -> list[VerifyRequest]:
    """Prompts of all lengths around page ends; a prompt that comes twice, whole pages of a common beginning."""
    random = Random(5)
    start = tuple(random.randrange(256) for _ in range(192))
    lengths = [1, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 128, 160, 192]
    prompts = [start[:length] for length in lengths]
    prompts += [start[:100] + tuple(random.randrange(256) for _ in range(count)) for count in (1, 28, 61)]
    prompts += [start, start[:128], start[:64]]
    return [
        VerifyRequest(prompt, Sampling(temperature=float(number % 2), seed=number, max_tokens=20, top_logprobs=2))
        for number, prompt in enumerate(prompts)
    ]


async def served(cache: Path, model: Path, prefill: int, decode: int, *, batch: int, **settings: str) -> CellOutcome:
    overrides = {
        "cache_folder": str(cache),
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
        "prefill.page_tokens": str(prefill),
        "decode.page_tokens": str(decode),
        "worker.chunk_tokens": "24",
        "worker.threads": "1",
        "worker.speculation": "off",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    return await run_cell(overrides, requests(), batch=batch, folder=model)


@pytest.mark.parametrize(
    ("prefill", "decode", "settings"),
    [
        (16, 32, {"worker__transports": "shm"}),
        (64, 16, {"worker__transports": "tcp", "decode__prefix_cache": "false"}),
        (16, 64, {"worker__transports": "shm", "prefill__prefix_cache": "false"}),
    ],
)
async def test_pages_of_other_sizes_give_the_tokens_and_logprob_bits_of_one_process(
    cache: Path, model: Path, reference: Reference, prefill: int, decode: int, settings: dict[str, str]
) -> None:
    found = await served(cache, model, prefill, decode, batch=2, **settings)
    expected = reference.answers(requests())
    assert [compare(*pair) for pair in zip(expected, found.answers, strict=True) if compare(*pair)] == []
    assert found.remote == found.admitted == found.prefill["committed"] == len(requests())
    assert 0 < found.bytes_moved == found.bytes_expected, "all pages of all landings came, and none twice"
    assert found.decode["spans_damaged"] == found.decode["spans_missing"] == 0


async def test_the_layers_of_a_draft_are_converted_too(cache: Path, model: Path, reference: Reference) -> None:
    draft = str(ensure_draft(model, cache))
    found = await served(cache, model, 16, 32, batch=4, worker__speculation="draft", draft=draft)
    expected = reference.answers(requests())
    assert [compare(*pair) for pair in zip(expected, found.answers, strict=True) if compare(*pair)] == []
    assert found.remote == len(requests()) and found.decode["accepted"] > 0


StartMesh = Callable[..., AbstractAsyncContextManager[Any]]


async def damaged_on_the_way(real_mesh: StartMesh, transport: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, int]:
    """The first three converted spans arrive with flipped bits, beside the checksums of what they should be. Returns
    whether the answer is that of one process, and how many spans decode has found to be damaged."""
    copy, read, damaged = HostCopies._copy_converted, Converted.read, list[Span]()

    def damaging_copy(self: HostCopies, span: Span, source: Converted) -> int:
        checksum = copy(self, span, source)
        if len(damaged) < 3:
            damaged.append(span)
            spoil(self._target.view(span.target, span.first_layer, span.layers))
        return checksum

    def damaging_read(self: Converted, span: Span) -> tuple[memoryview, int]:
        data, checksum = read(self, span)
        if len(damaged) < 3:
            damaged.append(span)
            spoil(data)
        return data, checksum

    monkeypatch.setattr(HostCopies, "_copy_converted", damaging_copy)
    monkeypatch.setattr(Converted, "read", damaging_read)
    sampling, prompt = Sampling(max_tokens=12, top_logprobs=1), tuple(range(2, 90))
    async with real_mesh() as mesh:
        await mesh.add("prefill", page_tokens=16, transports=(transport,))
        decode = await mesh.add("decode", page_tokens=32, transports=(transport,))
        running = mesh.ask(prompt, sampling=sampling)
        await running.task
        assert len(damaged) == 3 and decode.landings.spans.whole == 1
        loaded = load_model(mesh.model, mesh.folder, product_path="auto", page_tokens=PAGE_TOKENS)
        alone = on_cpu(loaded, most_slots=128, threads=1)
        expected = alone.answer(VerifyRequest(prompt, sampling))
        alone.close()
        found = decode.landings.spans.damaged
    answer = tuple(best(each.token, each.logprob, each.top_ids, each.top_logprobs) for each in running.tokens)
    return not compare(expected, answer), found


def spoil(data: memoryview) -> None:
    for at in range(0, len(data), 64):
        data[at] ^= 64


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_a_converted_span_that_is_damaged_on_its_way_is_found_and_sent_again(
    real_mesh: StartMesh, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    equal, found = await damaged_on_the_way(real_mesh, transport, monkeypatch)
    assert equal and found == 3


async def test_negative_control_without_the_check_the_damage_changes_the_answer(
    real_mesh: StartMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spans, "check", lambda self, stated, first, layers: [True] * len(stated))
    equal, found = await damaged_on_the_way(real_mesh, "shm", monkeypatch)
    assert not equal and found == 0
