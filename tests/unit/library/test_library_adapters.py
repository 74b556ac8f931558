"""`lora_request` of `LLM`: the adapter is loaded when it is first asked for, and changes that call's answers alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.builtin.model import tiny
from library.adapters import LoRARequest
from library.llm import LLM
from library.params import SamplingParams
from tests.harness.adapters import make_adapter

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "llama3", dtype="bf16")


@pytest.fixture
def llm(model: Path, tmp_path: Path) -> Iterator[LLM]:
    at_start = make_adapter(tmp_path / "poet", model, seed=9)
    with LLM(str(model), enable_lora=True, adapters=f"poet={at_start}", threads=1, cache_folder=tmp_path) as made:
        yield made


def answers(llm: LLM, adapter: LoRARequest | None = None) -> list[list[int]]:
    found = llm.generate(["Once upon", "a time"], GREEDY, use_tqdm=False, lora_request=adapter)
    return [list(each.outputs[0].token_ids) for each in found]


def test_adapters_are_loaded_once_and_chosen_by_call(llm: LLM, model: Path, tmp_path: Path) -> None:
    one, two = (
        LoRARequest(f"a{seed}", seed, str(make_adapter(tmp_path / f"a{seed}", model, seed=seed))) for seed in (1, 2)
    )
    base = answers(llm)
    first, second, poet = answers(llm, one), answers(llm, two), answers(llm, LoRARequest("poet"))
    assert len({str(each) for each in (base, first, second, poet)}) == 4
    assert (answers(llm), answers(llm, one), answers(llm, two)) == (base, first, second)
    moved = LoRARequest("a1", 1, two.lora_path)
    assert answers(llm, moved) == second, "the name stands for the folder that was asked for last"


def test_a_folder_that_cannot_be_read_is_named(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lora_path: .*nowhere/adapter_config\.json: does not exist"):
        answers(llm, LoRARequest("x", 1, str(tmp_path / "nowhere")))
