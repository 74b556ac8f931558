"""`lora_request` of `LLM` and `AsyncLLM`: the adapter is loaded when it is first asked for, and changes that call's
answers alone."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.builtin.model import tiny
from library.adapters import LoRARequest
from library.async_llm import AsyncLLM
from library.beams import BeamSearchParams
from library.llm import LLM
from library.params import SamplingParams
from tests.harness.adapters import make_adapter

MESSAGE = {"role": "user", "content": "hi"}
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


def test_every_call_takes_an_adapter(llm: LLM, model: Path, tmp_path: Path) -> None:
    one = LoRARequest("one", 1, str(make_adapter(tmp_path / "one", model, seed=1)))
    beams = BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True)
    calls: list[Callable[[LoRARequest | None], object]] = [
        lambda adapter: llm.embed("a cat", use_tqdm=False, lora_request=adapter)[0].outputs.embedding,
        lambda adapter: llm.score("a cat", "a dog", use_tqdm=False, lora_request=adapter)[0].outputs.score,
        lambda adapter: llm.beam_search("a", beams, use_tqdm=False, lora_request=adapter)[0].sequences[0].tokens,
        lambda adapter: llm.chat([MESSAGE], GREEDY, use_tqdm=False, lora_request=adapter)[0].outputs[0].token_ids,
    ]
    for call in calls:
        assert call(None) != call(one), "the adapter changes the answer"


def test_a_list_names_the_adapter_of_each_prompt(llm: LLM, model: Path, tmp_path: Path) -> None:
    one, poet = LoRARequest("one", 1, str(make_adapter(tmp_path / "one", model, seed=1))), LoRARequest("poet")
    prompts: list[Any] = ["a time"] * 3
    found = llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=[one, None, poet])
    assert [each.outputs[0].token_ids for each in found] == [answers(llm, each)[1] for each in (one, None, poet)]
    vectors = llm.embed(prompts[:2], use_tqdm=False, lora_request=[None, one])
    assert vectors[0].outputs.embedding != vectors[1].outputs.embedding
    with pytest.raises(ValueError, match="lora_request has 2 entries for 3 prompts"):
        llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=[one, None])


def test_a_name_with_another_folder_leaves_running_requests_alone(llm: LLM, model: Path, tmp_path: Path) -> None:
    """Each request gets the folder that it named, even while another one of that name is loaded."""
    folders = [str(make_adapter(tmp_path / f"{seed}", model, seed=seed)) for seed in (1, 2)]
    expected = [answers(llm, LoRARequest(f"x{seed}", seed, folder)) for seed, folder in enumerate(folders)]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(answers, llm, LoRARequest("same", 1, folder)) for folder in folders * 4]
    assert [call.result() for call in calls] == expected * 4
    shutil.rmtree(folders[0])
    shutil.copytree(folders[1], folders[0])
    assert answers(llm, LoRARequest("same", 1, folders[0])) == expected[0], "it is in memory"
    assert answers(llm, LoRARequest("same", 1, folders[0], load_inplace=True)) == expected[1]


async def test_an_async_model_gives_the_tokens_of_the_other_class(llm: LLM, model: Path, tmp_path: Path) -> None:
    made = [make_adapter(tmp_path / f"{seed}", model, seed=seed) for seed in (1, 2)]
    at_start = {"poet": tmp_path / "poet"}
    async with AsyncLLM(str(model), enable_lora=True, adapters=at_start, threads=1, cache_folder=tmp_path) as other:

        async def tokens(adapter: LoRARequest | None) -> list[int]:
            found = [each async for each in other.generate("Once upon", GREEDY, lora_request=adapter)]
            return list(found[-1].outputs[0].token_ids)

        asked = [None, LoRARequest("poet"), *(LoRARequest("s", n, str(folder)) for n, folder in enumerate(made))]
        assert await other.add_lora(asked[2])
        together = await asyncio.gather(*(tokens(adapter) for adapter in asked * 2))
        chosen = await other.chat([MESSAGE], GREEDY, lora_request=asked[2])
        embedded = await other.embed("a cat", lora_request=asked[3])
        with pytest.raises(ValueError, match="lora_path"):
            await tokens(LoRARequest("x", 1, str(tmp_path / "nowhere")))
        with pytest.raises(ValueError, match="its folder, lora_path"):
            await other.add_lora(LoRARequest("poet"))
    assert together == [answers(llm, adapter)[0] for adapter in asked] * 2
    assert len({str(each) for each in together}) == 4
    (theirs,) = llm.chat([MESSAGE], GREEDY, use_tqdm=False, lora_request=asked[2])
    assert chosen.outputs[0].token_ids == theirs.outputs[0].token_ids
    assert embedded.outputs == llm.embed("a cat", use_tqdm=False, lora_request=asked[3])[0].outputs


async def test_a_mesh_of_processes_gives_the_same_tokens(llm: LLM, model: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "edges", model, targets=("q_proj", "embed_tokens"), saved=("lm_head",))
    adapters = [LoRARequest("poet", 1, str(tmp_path / "poet")), LoRARequest("edges", 2, str(folder))]
    expected = [answers(llm, adapter)[0] for adapter in adapters]
    settings = {"enable_lora": True, "threads": 1, "cache_folder": tmp_path, "adapters": adapters[:1]}
    async with AsyncLLM(str(model), workers=(1, 1), **settings) as mesh:
        found = []
        for adapter in (LoRARequest("poet"), adapters[1]):
            parts = [each async for each in mesh.generate("Once upon", GREEDY, lora_request=adapter)]
            found.append(list(parts[-1].outputs[0].token_ids))
    assert found == expected and found[0] != found[1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "adapters must be a dict of names to folders"),
        (["sql"], "adapters: 'sql' needs a name and a folder"),
        ([LoRARequest("sql")], "needs a name and a folder"),
        ({"a,b": "/x"}, "has a comma"),
        ({"a": "/x"}, "adapters: a: /x has no adapter_config.json"),
    ],
)
def test_wrong_adapters_are_named_before_a_model_is_opened(value: object, words: str, model: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        LLM(str(model), adapters=value)


def test_a_model_that_loads_no_adapters_says_how_to_open_it(model: Path, tmp_path: Path) -> None:
    at_start = make_adapter(tmp_path / "poet", model, seed=9)
    with LLM(str(model), adapters={"poet": at_start}, threads=1, cache_folder=tmp_path) as made:
        with pytest.raises(ValueError, match="open it with enable_lora=True"):
            answers(made, LoRARequest("other", 1, str(at_start)))
        assert answers(made, LoRARequest("poet")) != answers(made)


def test_a_wrong_request_is_named(llm: LLM) -> None:
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest, not str"):
        llm.generate("a", lora_request="sql")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lora_name must be a text that is not empty"):
        llm.generate("a", lora_request=LoRARequest("", 1, "/x"))
    with pytest.raises(ValueError, match="load_inplace needs a lora_path"):
        llm.generate("a", lora_request=LoRARequest("poet", load_inplace=True))
