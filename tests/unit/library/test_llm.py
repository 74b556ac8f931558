"""`LLM` in this process: the calls of vLLM's class, and errors that name what is wrong."""

import asyncio
import gc
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from baton import LLM, LoRARequest, SamplingParams, StructuredOutputsParams, TokensPrompt
from engine.builtin import tiny
from library.opened import ModelOrder, opened
from mesh.config.config_checks import ConfigError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = [f"Number {number}: the capital of France is" for number in range(12)]


def texts(llm: LLM, prompts: list[str], params: SamplingParams = GREEDY) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]


def test_answers_come_in_the_order_of_the_prompts_and_do_not_depend_on_each_other(llm: LLM) -> None:
    together = texts(llm, PROMPTS)
    assert together == [texts(llm, [prompt])[0] for prompt in PROMPTS]
    assert together[::-1] == texts(llm, PROMPTS[::-1]) and len(set(together)) > 1


def test_an_output_has_what_the_prompt_became_and_how_long_each_stage_took(llm: LLM) -> None:
    (output,) = llm.generate("Once upon", GREEDY, use_tqdm=False)
    assert output.prompt == "Once upon" and output.prompt_token_ids == llm.encode("Once upon")
    assert len(output.outputs[0].token_ids) == 12 and output.finished and output.outputs[0].finish_reason == "length"
    assert output.outputs[0].text == llm.decode(output.outputs[0].token_ids)
    assert 0 < output.metrics["first_token_seconds"] <= output.metrics["total_seconds"]


def test_a_prompt_may_be_ids_and_one_that_was_seen_is_cached(llm: LLM) -> None:
    ids = llm.encode("the same words " * 40)
    first, second, third = (
        llm.generate(each, GREEDY, use_tqdm=False)[0] for each in (ids, {"prompt_token_ids": ids}, [ids])
    )
    assert first.outputs[0].token_ids == second.outputs[0].token_ids == third.outputs[0].token_ids
    assert first.prompt_token_ids == ids and first.num_cached_tokens < second.num_cached_tokens


def test_logprobs_are_listed_by_token_with_rank_and_text(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=16, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("The capital of", params, use_tqdm=False)
    (answer,) = output.outputs
    assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids) == 16
    for token, likely in zip(answer.token_ids, answer.logprobs, strict=True):
        assert [about.rank for about in likely.values()] in ([1, 2], [1, 2, None]) and token in likely
        assert all(about.decoded_token == llm.decode([each]) for each, about in likely.items())
    assert any(len(likely) == 3 for likely in answer.logprobs)  # else no token was drawn from behind the second
    taken = sum(likely[token].logprob for token, likely in zip(answer.token_ids, answer.logprobs, strict=True))
    assert answer.cumulative_logprob == pytest.approx(taken)
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_params_may_differ_by_prompt_and_several_answers_too(llm: LLM) -> None:
    one, other = SamplingParams(max_tokens=3, ignore_eos=True), SamplingParams(n=3, max_tokens=5, ignore_eos=True)
    first, second = llm.generate(["a", "b"], [one, other], use_tqdm=False)
    assert [len(each.token_ids) for each in first.outputs] == [3]
    assert [(each.index, len(each.token_ids)) for each in second.outputs] == [(0, 5), (1, 5), (2, 5)]


def test_without_a_limit_an_answer_fills_the_context() -> None:
    with LLM(threads=1, max_model_len=64, speculation="off") as small:
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        (output,) = small.generate("The capital of France is", params, use_tqdm=False)
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 64


def test_structured_outputs_stops_and_silence(llm: LLM) -> None:
    choice = SamplingParams(temperature=0.0, structured_outputs={"choice": ["Positive", "Negative"]})
    assert texts(llm, ["I like it. It is"], choice)[0] in ("Positive", "Negative")

    structure = StructuredOutputsParams(choice=("up",))
    assert texts(llm, ["Go"], SamplingParams(structured_outputs=structure)) == ["up"]
    given: TokensPrompt = {"prompt_token_ids": llm.encode("Go")}
    assert texts(llm, [given]) == texts(llm, ["Go"])  # type: ignore[list-item]
    whole = texts(llm, ["The capital of France is"])[0]
    stop = whole[3:6]
    stopped = llm.generate("The capital of France is", SamplingParams(temperature=0.0, stop=[stop]), use_tqdm=False)
    assert stopped[0].outputs[0].text == whole[: whole.index(stop)]
    assert (stopped[0].outputs[0].finish_reason, stopped[0].outputs[0].stop_reason) == ("stop", stop)
    (silent,) = llm.generate("a", SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False), use_tqdm=False)
    assert silent.outputs[0].text == "" and len(silent.outputs[0].token_ids) == 3


def test_chats_one_or_many_with_the_text_as_the_model_writes_it(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is Baton?"}]
    params = SamplingParams(temperature=0.0, max_tokens=32)
    (one,) = llm.chat(question, params, use_tqdm=False)
    two = llm.chat([question, [{"role": "user", "content": "hi"}]], params, use_tqdm=False)
    assert "prefill" in one.outputs[0].text and one.outputs[0].text == two[0].outputs[0].text != two[1].outputs[0].text
    assert one.prompt is not None and "What is Baton?" in one.prompt


def test_a_seed_of_the_model_repeats_what_a_script_does() -> None:
    def run(seed: int) -> list[str]:
        with LLM(threads=1, seed=seed, speculation="off") as made:
            return texts(made, ["Once", "Once"], SamplingParams(temperature=1.5, ignore_eos=True))

    first = run(1)
    assert first == run(1) != run(2) and first[0] != first[1]


def test_embeddings_and_scores(llm: LLM) -> None:
    (cat,), (again,) = llm.embed("a cat", use_tqdm=False), llm.embed(["a cat"], use_tqdm=False)
    assert cat.outputs.embedding == again.outputs.embedding and cat.outputs.hidden_size == 256
    with pytest.raises(ValueError, match="dimensions must be 256"):
        llm.embed("a cat", dimensions=64, use_tqdm=False)
    same, other = llm.score("a cat", ["a cat", "the weather"], use_tqdm=False)
    assert same.outputs.score == pytest.approx(1.0) and other.outputs.score < 0.99
    pairs = llm.score(["a cat", "rain"], ["a cat", "rain"], use_tqdm=False)
    assert [each.outputs.score for each in pairs] == pytest.approx([1.0, 1.0])
    with pytest.raises(ValueError, match="data_1 has 2 texts and data_2 3"):
        llm.score(["a", "b"], ["a", "b", "c"])


async def test_it_works_where_a_loop_runs(llm: LLM) -> None:
    assert asyncio.get_running_loop().is_running() and texts(llm, ["a"]) == texts(llm, ["a"])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ],
)
def test_the_mesh_refuses_a_value_by_the_name_of_its_field(llm: LLM, params: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llm.generate("a", SamplingParams(**params), use_tqdm=False)  # type: ignore[arg-type]
    assert texts(llm, ["a"])  # nothing else is harmed


def test_a_refusal_ends_the_other_prompts_of_the_call(llm: LLM) -> None:
    good, bad = SamplingParams(max_tokens=2000, ignore_eos=True), SamplingParams(structured_outputs={"regex": "("})
    with pytest.raises(ValueError, match=r"prompt 8: .*regex"):
        llm.generate(["a"] * 8 + ["b"], [good] * 8 + [bad], use_tqdm=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_num_seq": 3}, "did you mean max_num_seqs"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2: Baton has 1 only"),
        ({"page_tokens": 5}, "page_tokens: 5 is not one of"),
        ({"decode__max_batch": 0}, "max_batch"),
        ({"model": "/no/such/folder"}, "^model: /no/such/folder"),
        ({"model": 5}, "model must be a folder"),
        ({"model": ""}, "model is empty"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"workers": "2"}, "workers must be a number"),
        ({"workers": (1, 2, 3)}, "workers must be a number"),
        ({"workers": 0}, "at least one decode worker"),
        ({"revision": "main"}, "revision is not supported: write it behind"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(Exception, match=words):
        LLM(**arguments)  # type: ignore[arg-type]


def test_what_it_cannot_do_is_refused_by_its_name(llm: LLM) -> None:
    for name in ("logits_processors", "extra_args", "guided_decoding"):
        with pytest.raises(ValueError, match=f"{name} is not supported"):
            SamplingParams(**{name: object()})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        SamplingParams(max_tokens=0)
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest, not object"):
        llm.generate("a", lora_request=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'nobody' is not served"):
        llm.generate("a", GREEDY, use_tqdm=False, lora_request=LoRARequest("nobody"))
    with pytest.raises(ValueError, match="open it with enable_lora=True"):
        llm.generate("a", GREEDY, use_tqdm=False, lora_request=LoRARequest("a", 1, "/nowhere"))
    with pytest.raises(ValueError, match="prompt_embeds of a prompt is not supported"):
        llm.generate({"prompt": "a", "prompt_embeds": [1.0]}, use_tqdm=False)
    with pytest.raises(ValueError, match="a prompt must have"):
        llm.generate({}, use_tqdm=False)
    with pytest.raises(ValueError, match="sampling_params has 1 entries for 2 prompts: give one, or"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)


def test_a_closed_model_says_so_and_closes_twice() -> None:
    made = LLM(threads=1)
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="this model is closed"):
        made.generate("a", use_tqdm=False)


async def test_twice_as_many_are_asked_as_a_batch_holds() -> None:
    async with opened(ModelOrder.of(None, None, {"threads": 1, "max_num_seqs": 2})) as found:
        assert found.at_once == 4


def test_an_answer_ends_where_the_context_is_full_and_a_prompt_may_be_cut(llm: LLM) -> None:
    context = 2048
    (output,) = llm.generate([[5] * (context - 3)], SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 3 and output.outputs[0].finish_reason == "length"
    cut = SamplingParams(max_tokens=2, ignore_eos=True, truncate_prompt_tokens=10)
    for prompt in ("Hello " * 1100, [75] * 3000):
        assert len(llm.generate(prompt, cut, use_tqdm=False)[0].prompt_token_ids) == 10


def test_numbers_of_numpy_are_numbers(llm: LLM) -> None:
    params = SamplingParams(
        max_tokens=np.int64(4), seed=np.int32(3), temperature=np.float32(0.5), n=np.int64(2), ignore_eos=True
    )
    for prompt in (np.array([75, 76]), {"prompt_token_ids": np.array([75, 76])}, [np.int64(75), np.int64(76)]):
        (output,) = llm.generate(prompt, params, use_tqdm=False)  # type: ignore[arg-type]
        assert output.prompt_token_ids == [75, 76] and [len(each.token_ids) for each in output.outputs] == [4, 4]
    assert llm.decode(np.array(llm.encode("a cat"))) == "a cat"  # type: ignore[arg-type]


def test_threads_that_wait_hear_that_the_model_was_closed() -> None:
    made, heard = LLM(threads=1), list[str]()

    def ask() -> None:
        try:
            made.generate(["Once"] * 8, SamplingParams(max_tokens=1500, ignore_eos=True), use_tqdm=False)
        except RuntimeError as error:
            heard.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.5)
    made.close()
    thread.join(20)
    assert not thread.is_alive() and heard and "this model is closed" in heard[0]
    with pytest.raises(RuntimeError, match="this model is closed"), made:
        pass


def test_what_is_closed_holds_no_files_and_no_pages() -> None:
    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()
    gc.disable()
    try:
        LLM(threads=1).close()  # the first one in a process opens what stays
        before = files()
        for _ in range(2):
            LLM(threads=1).close()
        assert files() <= before + 1
    finally:
        gc.enable()
    for _ in range(2):
        with pytest.raises(ConfigError):
            LLM(threads=1, pool_bytes=1)
    gc.collect()  # what the errors refer to
    assert files() <= before + 1


def test_a_model_whose_numbers_overflow_says_so_and_answers_no_token(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", dtype="fp32")
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    first = 8 + int.from_bytes(raw[:8], "little")
    for name, about in json.loads(raw[8:first]).items():
        if "down_proj" in name:
            begin, end = (first + offset for offset in about["data_offsets"])
            raw[begin:end] = np.full((end - begin) // 4, 3e38, np.float32).tobytes()  # finite, but not what they make
    path.write_bytes(raw)
    with LLM(str(folder), threads=1, speculation="off") as llm:
        for ask in (
            lambda: llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False),
            lambda: llm.generate([[5, 6, 7]], SamplingParams(prompt_logprobs=1), use_tqdm=False),
            lambda: llm.embed([[5, 6, 7]], use_tqdm=False),
        ):
            with pytest.raises(RuntimeError, match=r"numbers overflow on this text .* weights"):
                ask()
