"""A gateway of two models: each request is read and answered with its own model's tokenizer, under any of its names."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import grpc
import httpx2
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.attaching.served_models import ServedModel, ServedModels
from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest, ModelFacts, SilentFacts
from gateway.observability.by_model import MetricsByModel
from gateway.observability.export import MeshCollector
from gateway.observability.metrics_page import write_page
from gateway.prompts.assets import Assets, load_assets
from gateway.prompts.by_model import AssetsByName
from gateway.validation.validate import validate_model
from gateway.workers.attached import AttachedWorker
from mesh.errors import InvalidRequest, UnknownModel
from mesh.messages.jobs import Tier, Token
from mesh.messages.reports import Hello, Load, PrefixChange
from mesh.network.memory_network import MemoryNetwork
from tests.harness.served_api import served_api
from tests.unit.gateway.byte_model import letters
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.public_grpc import serve


def backwards(letter: int) -> int:
    return 255 - letter


def reply_of(choice: ChoiceRequest) -> bytes:
    """Both models say hello, each in its own tokens."""
    return b"hello" if choice.model == "tiny" else bytes(map(backwards, b"hello"))


@dataclass
class TwoModels(FakeCore):
    reply: bytes | Callable[[ChoiceRequest], bytes] = reply_of
    down: set[str] = field(default_factory=set)  # models without workers

    def models(self) -> tuple[str, ...]:
        return ("tiny", "gpt-4o", "other")

    def root(self, name: str) -> str:
        return {"gpt-4o": "tiny"}.get(name, name)

    def facts(self, name: str) -> ModelFacts:
        root = self.root(name)
        context = 300 if root == "other" else 0
        return ModelFacts(root, f"hash of {root}", context, 0, True, root not in self.down, {"prefill": 1, "decode": 2})

    def refused_workers(self) -> tuple[str, ...]:
        return ("decode-7 at 10.0.0.7:1 has stranger",)

    def silent_workers(self) -> tuple[SilentFacts, ...]:
        return ()

    def alarms(self) -> tuple[str, ...]:
        return ("decode-7 at 10.0.0.7:1 has stranger",)


@pytest.fixture
def core() -> TwoModels:
    return TwoModels()


@pytest.fixture
def other(folder: Path, tmp_path: Path) -> Assets:
    """A model whose token of a byte is another one."""
    target = tmp_path / "other"
    target.mkdir()
    vocabulary = {letter: backwards(byte) for byte, letter in enumerate(letters())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "config.json").write_text((folder / "config.json").read_text())
    (target / "generation_config.json").write_text(json.dumps({"temperature": 0.25}))
    return load_assets(target, "other")


@pytest.fixture
def models(assets: Assets, other: Assets) -> AssetsByName:
    return AssetsByName({"tiny": assets, "gpt-4o": assets, "other": other})


@pytest.fixture
async def http(core: TwoModels, models: AssetsByName) -> AsyncIterator[httpx2.AsyncClient]:
    async with served_api(core, models, clock=lambda: 1.0) as address:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=None) as client:
            yield client


@asynccontextmanager
async def channel_of(core: Any, models: Any) -> AsyncIterator[grpc.aio.Channel]:
    server = await serve(core, models)
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel
    await server.close()


@pytest.mark.parametrize(
    ("name", "root", "temperature"), [("tiny", "tiny", 1.0), ("gpt-4o", "tiny", 1.0), ("other", "other", 0.25)]
)
async def test_text_and_defaults_are_those_of_the_model(
    http: httpx2.AsyncClient, core: TwoModels, name: str, root: str, temperature: float
) -> None:
    answer = (await http.post("/v1/completions", json={"model": name, "prompt": "ab", "seed": 1})).json()
    choice = core.streams[-1].choice
    assert choice.model == root and choice.sampling.temperature == temperature
    assert (choice.trace.model, choice.trace.root) == (name, root), "traces tell both"
    assert choice.prompt == tuple(b"ab" if root == "tiny" else map(backwards, b"ab"))
    assert answer["model"] == name and answer["choices"][0]["text"] == "hello"


async def test_every_name_is_listed_with_its_root_and_the_context_of_its_model(http: httpx2.AsyncClient) -> None:
    entries = (await http.get("/v1/models")).json()["data"]
    seen = [(entry["id"], entry["root"], entry["max_model_len"]) for entry in entries]
    assert seen == [("tiny", "tiny", 512), ("gpt-4o", "tiny", 512), ("other", "other", 300)]
    one = (await http.get("/v1/models/gpt-4o")).json()
    assert (one["id"], one["root"]) == ("gpt-4o", "tiny")


async def test_the_context_that_ends_a_request_is_that_of_its_model(http: httpx2.AsyncClient) -> None:
    for name, status in (("tiny", 200), ("other", 400)):
        body = {"model": name, "prompt": "x" * 400, "max_tokens": 5}
        answer = await http.post("/v1/completions", json=body)
        assert answer.status_code == status
    assert "maximum context length is 300 tokens" in answer.json()["error"]["message"]


async def test_a_request_must_name_one_of_several_models(http: httpx2.AsyncClient, core: TwoModels) -> None:
    without = await http.post("/v1/completions", json={"prompt": "x"})
    assert without.status_code == 400 and without.json()["error"]["param"] == "model"
    assert "name one of 'tiny', 'gpt-4o', 'other'" in without.json()["error"]["message"]
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": []})):
        unknown = await http.post(path, json={"model": "big", **body})
        assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
    assert (await http.get("/v1/models/big")).status_code == 404
    assert core.streams == []


def test_names_of_one_model_need_no_choice() -> None:
    class OneModel(TwoModels):
        def models(self) -> tuple[str, ...]:
            return ("tiny", "gpt-4o")

    assert validate_model(OneModel(), None) == "tiny" and validate_model(OneModel(), "gpt-4o") == "gpt-4o"
    with pytest.raises(UnknownModel):
        validate_model(OneModel(), "other")
    with pytest.raises(InvalidRequest):
        validate_model(TwoModels(), "")


async def test_health_shows_every_model_and_who_was_refused(http: httpx2.AsyncClient, core: TwoModels) -> None:
    core.down.add("other")
    answer = await http.get("/health")
    assert answer.status_code == 200, "a model without workers takes the gateway from no other model's clients"
    assert answer.json()["models"]["tiny"] == {"status": "ok", "prefill": 1, "decode": 2}
    assert answer.json()["models"]["other"]["status"] == "no worker can take a request"
    assert answer.json()["refused_workers"] == ["decode-7 at 10.0.0.7:1 has stranger"]


async def test_grpc_reads_and_lists_each_model(core: TwoModels, models: AssetsByName) -> None:
    async with channel_of(core, models) as channel:
        inference: Any = pb_grpc.InferenceServiceStub(channel)
        listing: Any = pb_grpc.ModelServiceStub(channel)
        found = (await listing.ListModels(pb.ListModelsRequest())).models
        assert [(each.name, each.root, each.context_tokens, each.model_hash) for each in found] == [
            ("tiny", "tiny", 512, "hash of tiny"),
            ("gpt-4o", "tiny", 512, "hash of tiny"),
            ("other", "other", 300, "hash of other"),
        ]
        for name, ids in (("gpt-4o", list(b"ab")), ("other", list(map(backwards, b"ab")))):
            tokens = await inference.Tokenize(pb.TokenizeRequest(model=name, text="ab"))
            assert list(tokens.token_ids) == ids
            text = await inference.Detokenize(pb.DetokenizeRequest(model=name, token_ids=ids))
            answer = await inference.Generate(pb.GenerateRequest(model=name, text="ab"))
            assert text.text == "ab" and answer.choices[0].text == "hello"
        with pytest.raises(grpc.aio.AioRpcError, match="several models are served") as without:
            await inference.CountTokens(pb.CountTokensRequest(text="ab"))
        assert without.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---- the gateway's own side


def attached(model: str, incarnation: int, tier: Tier = Tier.DECODE) -> AttachedWorker:
    load = Load(free_pages=2, total_pages=8, tokens_per_second=1.0)
    hello = Hello(
        tier,
        incarnation,
        "a:1",
        f"of {model}",
        "print",
        model,
        f"hash of {model}",
        16,
        512,
        load,
        PrefixChange(0),
        f"w{incarnation}",
    )
    return AttachedWorker(hello, cast(Any, SimpleNamespace(heard_seconds=0.0)), load)


def gateway_of(*models: ServedModel) -> Gateway:
    return Gateway(MemoryNetwork(Random(1)), random=Random(1), model=ServedModels(models))


def test_a_worker_may_present_its_model_by_any_name_or_its_folder_s() -> None:
    served = ServedModels(
        [ServedModel(("a", "b"), "qwen"), ServedModel(("qwen",), "llama"), ServedModel(("c",), "llama")]
    )
    found = {name: served.of_worker(attached(name, 1).hello) for name in ("a", "b", "qwen", "llama", "d")}
    assert [found[name] for name in ("a", "b", "qwen")] == [("a", ""), ("a", ""), ("qwen", "")]
    assert found["llama"][1].startswith("it has model llama, which is the name of several folders, served are a, b")
    assert found["d"] == ("", "it has model d, served are a, b, qwen, c")


def test_a_worker_whose_model_has_other_tokens_than_the_gateway_s_folder_is_refused() -> None:
    served = ServedModels([ServedModel(("a",), vocabulary=100)])
    for vocabulary, root in ((100, "a"), (0, "a"), (101, "")):
        assert served.of_worker(replace(attached("a", 1).hello, vocabulary=vocabulary))[0] == root
    _, why = served.of_worker(replace(attached("a", 1).hello, vocabulary=101))
    assert (
        why == "it has model a with 101 token ids, and there are 100 in the gateway's folder: they are different models"
    )


def test_facts_are_those_of_one_model_s_workers() -> None:
    gateway = gateway_of(ServedModel(("a",)), ServedModel(("b",)))
    for worker in (attached("a", 1), attached("b", 2), attached("b", 3, Tier.PREFILL)):
        gateway.workers.add(worker)
    assert (
        dict(gateway.facts("b").tiers) == {"prefill": 1, "decode": 1} and gateway.facts("a").model_hash == "hash of a"
    )
    gateway.workers.remove(gateway.workers.tier(Tier.DECODE)[0])
    assert (gateway.facts("a").healthy, gateway.facts("b").healthy, gateway.healthy()) == (False, True, True)
    assert gateway.facts("a").context_tokens == gateway.facts("a").largest_pool_tokens == 0


async def test_each_model_has_its_own_metrics_and_the_mesh_has_their_sum() -> None:
    gateway = gateway_of(ServedModel(("a",)), ServedModel(("b",)))
    for worker in (attached("a", 1), attached("b", 2)):
        gateway.workers.add(worker)
    metrics = MetricsByModel({"a": 64, "b": 512})
    for model in ("a", "b", "b"):
        metrics.observer.taken(Token(0, 7), 0, model)
    metrics.observer.resumed("preempted", "b")
    collector = MeshCollector(gateway, metrics, name="gateway", vllm=True, clock=lambda: 1.0, spans_dropped=lambda: 0)
    page = (await write_page(collector, openmetrics=False, wall_offset=0.0)).decode()
    for line in (
        'vllm:generation_tokens_total{model_name="a",engine="0"} 1',
        'vllm:generation_tokens_total{model_name="b",engine="0"} 2',
        'vllm:num_preemptions_total{model_name="a",engine="0"} 0',
        'vllm:num_preemptions_total{model_name="b",engine="0"} 1',
        "baton_generation_tokens_total 3",
        'baton_worker_info{worker="w1",tier="decode",model_name="a"} 1',
        'vllm:cache_config_info{model_name="b",engine="0",block_size="16",num_gpu_blocks="8"} 1',
    ):
        assert f"\n{line}\n" in page
    assert 'model_name="a",model_hash="hash of a",numerics="of a",page_tokens="16",context_tokens="64"' in page
