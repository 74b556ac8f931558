"""Beam search finds the answers that transformers' `num_beams` finds, whatever its options; what clients see of it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx2 as httpx
import pytest
import torch
import transformers

from gateway.answers.beams import BeamSearch
from gateway.core.interface import ChoiceRequest
from gateway.validation.client_request import BeamOptions
from mesh.errors import Cancelled, Unavailable
from mesh.messages.jobs import End, Sampling, Token
from tests.unit.gateway.conftest import TIMINGS, FakeCore

VOCABULARY, ENDS = 40, (7, 11, 13, 17, 19, 23)


@pytest.fixture(scope="module")
def model() -> Any:
    """A model whose logits are far apart, so that both sides order them alike, and whose answers end by themselves."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.7,
        eos_token_id=list(ENDS),
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


@dataclass
class TorchStream:
    choice: ChoiceRequest
    model: Any
    numerics: str = "class"
    timings: Any = TIMINGS
    cancelled: bool = False

    async def events(self) -> AsyncIterator[Token]:
        await asyncio.sleep(0)
        if self.cancelled:
            raise Cancelled("the client went away")
        choice, count = self.choice, self.choice.sampling.top_logprobs or 0
        with torch.no_grad():
            logits = self.model(torch.tensor([[*choice.prompt, *choice.emitted]])).logits[0, -1].float()
        top = torch.topk(torch.log_softmax(logits, -1), count)
        ids, logprobs = tuple(top.indices.tolist()), tuple(top.values.tolist())
        yield Token(len(choice.emitted), ids[0], logprobs[0], ids, logprobs, End.LENGTH)

    def cancel(self, *, complete: bool = False) -> None:
        self.cancelled = True

    def shorten(self, take: Any) -> None:
        pass


@dataclass
class TorchCore:
    model: Any
    streams: list[TorchStream] = field(default_factory=list)

    def submit(self, choice: ChoiceRequest) -> TorchStream:
        self.streams.append(TorchStream(choice, self.model))
        return self.streams[-1]


def request(prompt: tuple[int, ...], most: int, stop_ids: tuple[int, ...] = ENDS) -> ChoiceRequest:
    return ChoiceRequest("r", "tiny", prompt, (), Sampling(max_tokens=most, temperature=0.0, stop_ids=stop_ids))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("penalty", "early"), [(1.0, False), (1.0, True), (0.0, "never"), (2.0, "never"), (-1.0, False), (0.5, True)]
)
async def test_beams_are_those_of_transformers(model: Any, width: int, penalty: float, early: bool | str) -> None:
    random, ended = Random(11), 0
    for _ in range(50 // 4):
        prompt = tuple(random.randrange(8, VOCABULARY) for _ in range(random.randint(1, 20)))
        most = random.randint(1, 14)
        search = BeamSearch(TorchCore(model), request(prompt, most), BeamOptions(width, penalty, early))  # type: ignore[arg-type]
        found = await search.answers()
        expected = model.generate(
            torch.tensor([prompt]),
            num_beams=width,
            num_return_sequences=width,
            length_penalty=penalty,
            early_stopping=early,
            max_new_tokens=most,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        for rank, beam in enumerate(found):
            ours = [token.token for token in beam.tokens]
            theirs = expected.sequences[rank, len(prompt) :].tolist()
            assert theirs[: len(ours)] == ours and set(theirs[len(ours) :]) <= {0, *ENDS}, (prompt, rank)
            if width > 1:
                assert beam.score == pytest.approx(float(expected.sequences_scores[rank]), rel=1e-4)
            ended += ours[-1] in ENDS
    assert ended > 4, "some answers end by themselves"


async def test_without_ids_that_end_it_every_answer_has_its_whole_length(model: Any) -> None:
    search = BeamSearch(TorchCore(model), request((9, 10), 6, ()), BeamOptions(3))  # type: ignore[arg-type]
    assert [len(beam.tokens) for beam in await search.answers()] == [6, 6, 6]


async def test_a_search_that_is_cancelled_leaves_nothing_running(model: Any) -> None:
    core = TorchCore(model)
    search = BeamSearch(core, request((9, 10), 100, ()), BeamOptions(3))  # type: ignore[arg-type]
    while len(core.streams) < 10:
        await asyncio.sleep(0)
    search.cancel()
    with pytest.raises(Cancelled):
        await search.answers()
    count = len(core.streams)
    await asyncio.sleep(0.05)
    assert len(core.streams) == count


# ---- what clients see


async def post(url: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=None) as client:
        return await client.post(f"{url}/v1/completions", json={"prompt": "ab", "use_beam_search": True} | body)


async def test_the_best_answers_come_back_in_their_order(url: str, core: FakeCore) -> None:
    answer = (await post(url, n=2, best_of=3, max_tokens=4, logprobs=2, return_token_ids=True)).json()
    # The fake core says that the token of its reply is the likeliest one, then the ids behind it: h, e, l, l …
    assert answer["choices"][0]["token_ids"] == list(b"hell")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert all(len(choice["logprobs"]["top_logprobs"][0]) == 2 for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 8
    first = core.streams[0].choice
    assert first.sampling.max_tokens == 1 and first.sampling.top_logprobs == 4, "three beams, and an id that ends them"
    assert {len(stream.choice.emitted) for stream in core.streams} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"n": 20}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"temperature": 0.5}, "temperature"),
        ({"stop": "x"}, "stop"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": False, "length_penalty": 0.5}, "length_penalty"),
        ({"use_beam_search": None, "early_stopping": True}, "early_stopping"),
    ],
)
async def test_what_beams_exclude_is_refused_by_name(url: str, core: FakeCore, fields: Any, param: str) -> None:
    answer = await post(url, max_tokens=4, **fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    assert core.streams == []


async def test_an_error_of_a_step_ends_the_search(url: str, core: FakeCore) -> None:
    core.fail_at = {2: Unavailable("no worker")}
    answer = await post(url, n=2, max_tokens=4)
    assert answer.status_code == 503 and "no worker" in answer.text
