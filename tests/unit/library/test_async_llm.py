"""`AsyncLLM`: answers that grow as they are read."""

import asyncio
import gc
import threading

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
    with pytest.raises(ValueError, match="regex"):
        async for _ in made.generate("Once", SamplingParams(structured_outputs={"regex": "("})):
            pass
    last = [output async for output in made.generate("Once", PARAMS)][-1]
    assert last.finished and last.outputs[0].finished() and len(last.outputs[0].token_ids) == 24
    await made.aclose()
    await made.aclose()
    with pytest.raises(RuntimeError, match="this model is closed"):
        await made.embed("a")


async def test_readers_hear_that_the_model_was_closed() -> None:
    made = AsyncLLM(threads=1)

    async def read() -> None:
        async for _ in made.generate("Once", SamplingParams(max_tokens=1500, ignore_eos=True)):
            begun.set()

    begun = asyncio.Event()
    reading = asyncio.create_task(read())
    await begun.wait()
    await made.aclose()
    with pytest.raises(RuntimeError, match="this model is closed"):
        await asyncio.wait_for(reading, 10)


async def test_several_loops_share_one_model() -> None:
    made, found = AsyncLLM(threads=1), list[int]()

    async def ask() -> None:
        async for output in made.generate("Once", PARAMS):
            if output.finished:
                found.append(len(output.outputs[0].token_ids))

    threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    await made.aclose()
    assert found == [24, 24, 24]


async def test_a_model_that_nobody_closed_ends_with_its_object() -> None:
    before = set(threading.enumerate())
    made = AsyncLLM(threads=1)
    await made.embed("a")
    (running,) = [each for each in {*threading.enumerate()} - before if each.name == "baton-llm"]
    del made
    gc.collect()
    await asyncio.to_thread(running.join, 10)
    assert not running.is_alive()


async def test_wrong_arguments_are_named() -> None:
    made = AsyncLLM(threads=1)
    with pytest.raises(TypeError, match="prompt, a list of token ids, must be"):
        await made.embed(["a", "b"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="sampling_params must be"):
        await made.chat([{"role": "user", "content": "a"}], 5)  # type: ignore[arg-type]
    await made.aclose()
