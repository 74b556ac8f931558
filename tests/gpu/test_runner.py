"""Promise 1 through the whole runner on a real GPU: graphs, batches, chunks, drafts, and steps launched ahead."""

import asyncio
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton_kernels import KernelError
from bench.gpu.exactness import DraftTally, check, prompt
from bench.gpu.random_model import LLAMA_8B, as_draft, on_device
from engine.cuda import identity
from engine.cuda.device import find_gpu
from engine.cuda.graphs import Graphs
from engine.cuda.page_shapes import page_shapes
from engine.cuda.products import products_for
from engine.cuda.runner import CudaRunner
from engine.cuda.step_shape import StepShape
from engine.step.plan import Result
from kvtransfer.cuda_ipc import CudaIpc
from kvtransfer.device_pool import DevicePool
from mesh.messages.jobs import Sampling
from mesh.messages.page_shape import opaque_pages
from tests.unit.engine.speculating import DraftedRequest, run_to_end

ROOT = Path(__file__).parents[2]
SHAPE, PAGES = opaque_pages((6, 4096), content="gpu-bf16-16-64-v1"), 32


def test_an_answer_is_the_same_in_whatever_way_it_is_made(device):
    weights = on_device(replace(LLAMA_8B, layers=2, vocab=32000), torch.device(device))
    prompts = [prompt(length, number) for number, length in enumerate((5, 40, 333, 1100))]
    tally = DraftTally()
    assert set(check(weights, prompts, 12, batch=4, tally=tally).values()) == {0}
    assert 0 < tally.right < tally.verified  # proposals of the draft model


def test_a_draft_proposes_the_same_in_graphs_and_launch_by_launch(device):
    """Wrong proposals change no answer, so this test compares the proposals themselves."""
    weights = on_device(replace(LLAMA_8B, layers=2, vocab=32000), torch.device(device))
    assert proposals(weights, graphs=True) == proposals(weights, graphs=False)


def proposals(weights, *, graphs):
    draft, noted = as_draft(weights, 0.25), list[Result]()
    pool = torch.zeros(96 * page_shapes(weights, draft, 16)[0].page_bytes, dtype=torch.uint8, device=weights.device)
    exact = products_for("exact")
    runner = CudaRunner(weights, draft=draft, pool=pool, page_tokens=16, products=exact, graphs=graphs)

    class Noting:
        def compute(self, plan):
            noted.append(runner.compute(plan))
            return noted[-1]

    sampling = [Sampling(temperature=0.8 * (at % 2), seed=at, max_tokens=16 + at) for at in range(3)]
    pages = [tuple(range(32 * at, 32 * at + 32)) for at in range(3)]
    run_to_end(
        Noting(), [DraftedRequest(prompt(7 + 40 * at, at), sampling[at], pages[at], 2 + at) for at in range(3)], 16
    )
    runner.close()
    assert any(any(result.proposed) for result in noted)
    return noted


def test_graphs_are_captured_again_once_their_blocks_have_moved(device):
    form = StepShape(1, 1, 1, 1, 1, 0, 64, 1, False, False)
    graphs, total = Graphs(torch.device(device)), torch.zeros(4, device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            for _ in range(3):
                graphs.run(form, lambda: total.add_(torch.ones_like(total)))
            graphs.forget()
    torch.cuda.synchronize()
    assert total.tolist() == [9.0] * 4 and graphs.replayed == 6


def test_this_device_passes_the_self_test_of_its_exact_path(device):
    path = find_gpu().gpu.exact_path
    one, other = (identity.self_test(path, torch.device(device)) for _ in range(2))
    assert one == other != identity.self_test("fast", torch.device(device))


def test_a_product_that_looks_at_its_batch_is_noticed(device, monkeypatch):
    class BatchDependent(identity.products_for("exact").__class__):
        def product(self, x, weight, out, bias=None, residual=None):
            super().product(x, weight, out, bias, residual)
            out *= 1 + len(x) * 2**-20

    monkeypatch.setattr(identity, "products_for", lambda path: BatchDependent())
    with pytest.raises(KernelError, match="other bits"):
        identity.self_test("cuda-sm90", torch.device(device))


async def test_another_process_writes_pages_and_its_death_is_proved(device):
    pool = DevicePool(SHAPE, PAGES)
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        receiver = await CudaIpc(random.SystemRandom(), folder=Path(folder)).receive(pool, 2)
        command = [sys.executable, "-m", "tests.gpu.ipc_peer", receiver.handle(1).hex()]
        peer = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        sums = tuple(map(int, (await peer.stdout.readline()).split()))
        assert sums == pool.checksums(range(PAGES), 2, 3) and len(set(sums)) == PAGES
        untouched = pool.memory.view(PAGES, 6, 4096)[:, [0, 1, 5]]
        assert not untouched.any()
        assert not await receiver.silent(1, 0.0)
        peer.kill()
        assert await receiver.silent(1, 5.0)
        await peer.wait()
        await receiver.aclose()
    pool.close()
