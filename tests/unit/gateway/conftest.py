"""Both front doors on free ports, over a core whose answers the test writes."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from tokenizers import Tokenizer

from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.core.interface import ChoiceRequest, ModelFacts, PromptScores, SilentFacts, TakeToken, Timings
from gateway.prompts.assets import Assets
from mesh.config.door_config import DoorConfig
from mesh.errors import BatonError, Cancelled
from mesh.messages.jobs import End, Ticket, Token
from mesh.messages.reports import Scored
from mesh.network.grpc_network import GrpcListening
from tests.harness.served_api import served_api
from tests.unit.gateway.byte_model import assets_of, byte_tokenizer, tokenizer_file
from tests.unit.gateway.public_grpc import serve

END = 257
CLASS = "path=fp32 fingerprint f00d"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{% if shout %}!{% endif %}"
)


TIMINGS = Timings(
    queue_seconds=0.0625,
    prefill_seconds=None,
    first_token_seconds=0.25,
    handoff_seconds=0.125,
    decode_seconds=0.25,
    total_seconds=0.5,
    attempts=1,
    cached_tokens=3,
    drafted_tokens=8,
    accepted_tokens=5,
    decode_steps=10,
)


@dataclass
class FakeStream:
    choice: ChoiceRequest
    script: list[Token | BatonError]
    numerics: str = ""
    cancelled: bool = False
    complete: bool = False
    ended: bool = False
    timings: Timings = TIMINGS
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self, *, complete: bool = False) -> None:
        if not self.ended:
            self.cancelled, self.complete = True, complete
            self.gone.set()

    def shorten(self, take: TakeToken) -> None:
        """Every token goes to the reader."""

    async def events(self) -> AsyncIterator[Token]:
        for item in self.script:
            await asyncio.sleep(0)
            if self.cancelled:
                raise Cancelled("the client went away")
            if isinstance(item, BatonError):
                raise item
            self.numerics = CLASS
            self.ended = item.end is not End.NONE
            yield item
        if not self.ended:
            await self.gone.wait()
            raise Cancelled("the client went away")


@dataclass
class FakeExamination:
    """Scores the token at i with -i, beside tokens 0, 1, 2 …; an embedding is (tokens of the prompt, first token)."""

    choice: ChoiceRequest
    numerics: str = CLASS
    cached_tokens: int = 0
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    async def scores(self) -> PromptScores:
        await asyncio.sleep(0)
        assert self.choice.examination is not None
        count, top = len(self.choice.prompt) - 1, self.choice.examination.top
        ids, values = [*range(top)] * count, [-0.25 - i for i in range(top)] * count
        scored = Scored(
            Ticket(1, 1, bytes(16)),
            0,
            struct.pack(f"<{count}f", *(-float(i) for i in range(1, count + 1))),
            struct.pack(f"<{count}I", *range(7, 7 + count)),
            struct.pack(f"<{len(ids)}I", *ids),
            struct.pack(f"<{len(ids)}f", *values),
        )
        return PromptScores(self.choice.prompt, (scored,))

    async def embedding(self) -> bytes:
        await asyncio.sleep(0)
        return struct.pack("<2f", len(self.choice.prompt), self.choice.prompt[0])


@dataclass
class FakeCore:
    """Answers with `reply`'s bytes, each a token, then the end-of-sequence id; obeys max_tokens and emitted."""

    reply: bytes | Callable[[ChoiceRequest], bytes] = b"hello world"
    ends: bool = True  # False: after the reply nothing comes any more
    fail_at: dict[int, BatonError] = field(default_factory=dict)
    refuse: BatonError | None = None
    context_tokens: int = 0
    largest_pool_tokens: int = 0
    adjusts_logits: bool = True
    up: bool = True
    model_hash: str = ""
    streams: list[FakeStream] = field(default_factory=list)
    examinations: list["FakeExamination"] = field(default_factory=list)
    limits: DoorConfig = field(default_factory=DoorConfig)
    errors: list[str] = field(default_factory=list)  # reasons of the errors that clients got
    refused: int = 0  # those before the first choice

    def models(self) -> tuple[str, ...]:
        return ("tiny",)

    def root(self, name: str) -> str:
        return name

    def facts(self, name: str) -> ModelFacts:
        return ModelFacts(
            self.root(name),
            self.model_hash,
            self.context_tokens,
            self.largest_pool_tokens,
            self.adjusts_logits,
            self.up,
            self.tiers(),
        )

    def refused_workers(self) -> tuple[str, ...]:
        return ()

    def silent_workers(self) -> tuple[SilentFacts, ...]:
        return ()

    def alarms(self) -> tuple[str, ...]:
        return ()

    def admit(self, model: str | None = None, *, examined: bool = False) -> None:
        self.admitted_as_examined = examined  # value from the last request

    def load(self) -> dict[str, int]:
        return {"running": len(self.streams), "waiting": 0}

    def healthy(self) -> bool:
        return self.up

    def tiers(self) -> dict[str, int]:
        return {"prefill": 1, "decode": 1}

    def count_error(self, error: BatonError, *, refused: bool = False) -> None:
        self.errors.append(error.reason)
        self.refused += refused

    def submit(self, choice: ChoiceRequest) -> FakeStream:
        if self.refuse is not None:
            raise self.refuse
        stream = FakeStream(choice, self._script(choice))
        self.streams.append(stream)
        return stream

    def examine(self, choice: ChoiceRequest) -> "FakeExamination":
        if self.refuse is not None:
            raise self.refuse
        self.examinations.append(FakeExamination(choice))
        return self.examinations[-1]

    def _script(self, choice: ChoiceRequest) -> list[Token | BatonError]:
        reply = self.reply(choice) if callable(self.reply) else self.reply
        script: list[Token | BatonError] = []
        for position, token in enumerate([*reply, END] if self.ends else reply):
            if position in self.fail_at:
                script.append(self.fail_at[position])
                break
            if position < len(choice.emitted):
                continue
            end = End.NONE
            if token in choice.sampling.stop_ids and position + 1 > choice.sampling.min_tokens:
                end = End.STOP
            elif position + 1 == choice.sampling.max_tokens:
                end = End.LENGTH
            count = choice.sampling.top_logprobs or 0
            tops = choice.sampling.logprob_ids or tuple((token + i) % 256 for i in range(count))
            script.append(Token(position, token, -0.5, tops, tuple(-0.5 - i for i in range(len(tops))), end))
            if end is not End.NONE:
                break
        return script


@pytest.fixture
def generation() -> dict[str, object]:
    """Content of the model's generation_config.json; tests override it."""
    return {}


@pytest.fixture
def folder(tmp_path: Path, generation: dict[str, object]) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text(tokenizer_file())
    if generation:
        (model / "generation_config.json").write_text(json.dumps(generation))
    (model / "config.json").write_text(
        json.dumps({"max_position_embeddings": 512, "vocab_size": 261, "eos_token_id": END})
    )
    (model / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE})
    )
    return model


@pytest.fixture
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture
def assets(folder: Path) -> Assets:
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    return replace(assets_of(*((str(each.relative_to(folder)), each.read_bytes()) for each in files)))


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


@pytest.fixture
async def url(core: FakeCore, assets: Assets) -> AsyncIterator[str]:
    async with served_api(core, assets) as address:
        yield f"http://{address}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def server(core: Any, assets: Any) -> AsyncIterator[GrpcListening]:
    server = await serve(core, assets)
    yield server
    await server.close()


@pytest.fixture
async def channel(server: GrpcListening) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.InferenceServiceStub(channel)
