"""Every kernel compiles ahead of time for three architectures, without a GPU, and the gate refuses defective kernels.

The whole gate is `make gpu-gate`; here one configuration of each kernel is compiled."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from baton_kernels.triton.attention import SPLIT
from baton_kernels.triton.launch import ARCHITECTURES, Launch
from tests.gpu_gate import compiled, configurations
from tests.gpu_gate.compiled import SHARED_LIMIT_BYTES, Compiled, compile_launch
from tests.gpu_gate.in_flight import loads_in_flight, most_together
from tests.gpu_gate.row_orders import unlike_orders

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.emulated


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")


def launches(architecture: int, name: str) -> list[Launch]:
    return [one for one in configurations.launches(architecture) if one.name.startswith(name)]


def attention(architecture: int, **changed: object) -> list[Compiled]:
    """Decode and prefill of the smallest heads, prefill with other sizes."""
    ways = [launches(architecture, f"attend {way} gpu-bf16-16-64")[0] for way in ("decode", "prefill")]
    ways[1] = dataclasses.replace(
        ways[1],
        warps=changed.get("warps", ways[1].warps),
        constants={**ways[1].constants, "BLOCK": changed.get("block", ways[1].constants["BLOCK"])},
    )
    return [compile_launch(way, architecture) for way in ways]


@pytest.mark.timeout(900)
def test_every_kernel_compiles_for_every_architecture_without_spilling() -> None:
    command = [sys.executable, "-m", "tests.gpu_gate.aot", "--small", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["architectures"] == list(ARCHITECTURES)
    assert report["failed"] == report["spills"] == 0
    assert report["kernels"] == len({one.kernel for one in configurations.launches(90)}) >= 11
    matrix = {(one["architecture"], kind) for one in report["compiled"] for kind in one["kinds"] if "mma" in kind}
    assert matrix == {(80, "mma.sync"), (90, "wgmma.mma_async"), (100, "tcgen05.mma")}


def test_a_kernel_that_spills_is_refused() -> None:
    prefill = launches(90, "attend prefill gpu-bf16-16-128")[0]
    done = compile_launch(dataclasses.replace(prefill, warps=4), 90)
    assert done.spill_bytes > 0 and any("spills" in reason for reason in done.wrong)


def test_a_configuration_beyond_the_shared_memory_is_refused() -> None:
    product = launches(90, "product_gated 128x128")[0]
    done = compile_launch(dataclasses.replace(product, stages=9), 90)
    assert done.shared_bytes > SHARED_LIMIT_BYTES[90] and any("shared memory" in reason for reason in done.wrong)


def test_a_kernel_without_the_instructions_it_was_written_for_is_refused() -> None:
    product = launches(80, "product 64x16")[0]
    done = compile_launch(dataclasses.replace(product, instructions=("wgmma",)), 80)
    assert done.wrong == ("no wgmma in its code",)


def test_attention_that_loads_nothing_ahead_is_refused() -> None:
    decode = launches(90, "attend decode gpu-bf16-16-64")[0]
    done = compile_launch(dataclasses.replace(decode, stages=3), 90)
    assert done.wrong == ("nothing is loaded ahead of what is worked on",)


@pytest.mark.parametrize(("groups", "refused"), [(2, False), (1, True)])
def test_matrix_instructions_that_are_waited_for_one_by_one_are_refused(
    groups: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "HGMMA.64x16x16 R24, gdesc[UR20], R24 ;\nHGMMA.64x16x16 R24, gdesc[UR4], R24, gsb0 ;\n" * 2
    monkeypatch.setattr(compiled, "dump_of", lambda cubin, about: code if about == "-sass" else "")
    assert compiled._waits_for_each("wgmma.commit_group.sync.aligned;\n" * groups, b"") == refused


def test_a_kernel_that_does_not_compile_is_reported_with_its_reason() -> None:
    product = launches(90, "product 64x16")[0]
    done = compile_launch(dataclasses.replace(product, constants={**product.constants, "ROWS": 24}), 90)
    assert len(done.wrong) == 1 and done.wrong[0].startswith("does not compile:")


@pytest.mark.parametrize("changed", [{}, {"block": 32}, {"warps": 16}], ids=str)
def test_decode_and_prefill_that_sum_a_row_in_unlike_orders_are_refused(changed: dict[str, int]) -> None:
    refused = unlike_orders(attention(90, **changed))
    assert bool(refused) == bool(changed)
    assert all("decode" in line and "prefill" in line for line in refused)


def test_splits_are_whole_blocks() -> None:
    for architecture in ARCHITECTURES:
        assert all(SPLIT % one.constants["BLOCK"] == 0 for one in launches(architecture, "attend prefill"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_splits_are_merged_in_turn_while_those_behind_are_on_their_way(architecture: int) -> None:
    """The kernel loads at least the accumulators, the maximum and the sum of each split at once."""
    finish = launches(architecture, "attend finish gpu-bf16-16-128-v1 heads 32/8")[0]
    assert finish.constants["FLIGHT"] == 8
    alone = dataclasses.replace(finish, constants={**finish.constants, "FLIGHT": 1})
    assert loads_in_flight(finish, architecture) >= 3 * 7 > loads_in_flight(alone, architecture)


def test_loads_are_together_until_a_result_is_used() -> None:
    code = """
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/              @!P0 LDG.E R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   IADD3 R9, R3, 0x1, RZ ;
        /*0040*/                   LDG.E R10, desc[UR4][R2.64+0x20] ;
        /*0050*/                   FADD R11, R7, R9 ;
        /*0060*/                   LDG.E R12, desc[UR4][R2.64+0x30] ;
    """
    assert most_together(code) == 3
    assert most_together(code.replace("R3, 0x1", "R5, 0x1")) == 2
