"""`AsyncLLM`: answers that grow as they are read."""

import asyncio

import pytest

from baton import LLM, AsyncLLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


async def test_an_answer_grows_to_what_the_other_class_gives(llm: LLM) -> None:
    async with AsyncLLM(threads=1, speculation="off") as made:
        outputs = [output.outputs[0].text async for output in made.generate("Once upon a time", PARAMS, "mine")]
        together = await asyncio.gather(*(made.chat([{"role": "user", "content": "hi"}], PARAMS) for _ in range(3)))
        embedded = await made.embed("a cat")
    (whole,) = llm.generate("Once upon a time", PARAMS, use_tqdm=False)
    assert outputs[-1] == whole.outputs[0].text and len({*map(len, outputs)}) > 5
    assert len({each.outputs[0].text for each in together}) == 1
    assert embedded.outputs == llm.embed("a cat", use_tqdm=False)[0].outputs


async def test_who_stops_reading_cancels_and_errors_name_the_field() -> None:
    made = AsyncLLM(threads=1)
    endless = SamplingParams(max_tokens=1500, ignore_eos=True)
    async for output in made.generate("Once", endless):
        assert not output.finished
        break
    with pytest.raises(ValueError, match="top_k"):
        async for _ in made.generate("Once", SamplingParams(top_k=-5)):
            pass
    last = [output async for output in made.generate("Once", PARAMS)][-1]
    assert last.finished and last.outputs[0].finished() and len(last.outputs[0].token_ids) == 24
    await made.aclose()
    await made.aclose()
