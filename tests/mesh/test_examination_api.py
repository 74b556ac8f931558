"""Prompt logprobs and embeddings as clients see them, over a real mesh: an evaluation harness, the openai client, the
metrics, and the trace of a request that only the prefill tier has answered."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import openai
import pytest

from gateway.dialects.api import HttpApi
from gateway.http.server import serve_http
from gateway.observability.metrics import GatewayMetrics
from gateway.prompts.assets import load_assets
from gateway.tracing.traces import RecentTraces
from mesh.telemetry import semconv
from mesh.telemetry.spans import KeptHere
from tests.mesh.conftest import RealMesh

pytestmark = pytest.mark.mesh

StartMesh = Callable[..., AbstractAsyncContextManager[RealMesh]]
CONTEXT, CONTINUATION = list(range(40, 110)), list(range(110, 130))


@asynccontextmanager
async def served(start: StartMesh) -> AsyncIterator[tuple[RealMesh, openai.AsyncOpenAI, GatewayMetrics, RecentTraces]]:
    metrics = GatewayMetrics()
    async with start(observer=metrics) as mesh:
        await mesh.add("prefill", trace_steps=1)
        await mesh.add("decode")
        traces = RecentTraces(KeptHere(), random=Random(4))
        mesh.gateway.traces = mesh.gateway.attaching.traces = traces
        assets = load_assets(mesh.model, "tiny")
        api = HttpApi(mesh.gateway, assets, random=Random(3), clock=lambda: 1.0, traces=traces)
        server = await serve_http(api.app, "127.0.0.1:0")
        client = openai.AsyncOpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0)
        async with client:
            yield mesh, client, metrics, traces
        await server.close()


async def loglikelihood(client: openai.AsyncOpenAI, prompt: list[int], *, max_tokens: int) -> tuple[float, bool]:
    """What evaluation harnesses do: echo the prompt with one token behind it, and sum the continuation's logprobs."""
    answer = await client.completions.create(
        model="tiny", prompt=[prompt], echo=True, logprobs=1, max_tokens=max_tokens, temperature=0, seed=1234
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs and logprobs.tokens and logprobs.top_logprobs
    assert len(logprobs.tokens) == len(prompt) + max_tokens and logprobs.token_logprobs[0] is None
    behind = slice(len(CONTEXT), len(prompt))
    pairs = zip(logprobs.tokens[behind], logprobs.top_logprobs[behind], strict=True)
    greedy = all(top[token] == max(top.values()) for token, top in pairs)
    return sum(value for value in logprobs.token_logprobs[behind]), greedy


async def test_a_harness_gets_equal_sums_with_and_without_a_token_behind(real_mesh: StartMesh) -> None:
    async with served(real_mesh) as (mesh, client, metrics, _):
        prompt = CONTEXT + CONTINUATION
        one, none = await asyncio.gather(*(loglikelihood(client, prompt, max_tokens=count) for count in (1, 0)))
        assert one == none and one[0] < 0
        assert mesh.prefills[0].counts()["examined"] == 2
        assert metrics.requests["remote", "ok"] + metrics.requests["local", "ok"] == 3, "two scores and one answer"
        assert metrics.prompt_tokens == 2 * len(prompt) and metrics.generated == 1


async def test_the_greedy_answer_is_found_to_be_greedy(real_mesh: StartMesh) -> None:
    async with served(real_mesh) as (mesh, client, *_):
        running = mesh.ask(tuple(CONTEXT), max_tokens=12)
        assert running.task is not None
        await running.task
        assert (await loglikelihood(client, CONTEXT + running.text, max_tokens=1))[1]
        assert not (await loglikelihood(client, [*CONTEXT, *running.text[1:], 7], max_tokens=1))[1]


async def test_embeddings_take_no_decode_slot_and_are_equal_alone_and_together(real_mesh: StartMesh) -> None:
    async with served(real_mesh) as (mesh, client, metrics, _):
        texts = [f"{'a longer text ' * number}of number {number}" for number in range(9)]
        together = await client.embeddings.create(model="tiny", input=texts)
        for text, entry in zip(texts[::4], together.data[::4], strict=True):
            alone = await client.embeddings.create(model="tiny", input=text)
            assert alone.data[0].embedding == entry.embedding
            assert sum(value * value for value in entry.embedding) == pytest.approx(1.0, abs=1e-5)
        plain = await client.embeddings.create(model="tiny", input=texts[0], encoding_format="float")
        assert plain.data[0].embedding == together.data[0].embedding
        assert mesh.decodes[0].plans == [], "decode has computed nothing"
        assert metrics.requests["remote", "ok"] == 13 and metrics.prompt_tokens > 0


async def test_the_trace_of_an_embedding_shows_its_worker_and_its_stages(real_mesh: StartMesh) -> None:
    async with served(real_mesh) as (mesh, client, _, traces):
        headers: Any = {"x-request-id": "mine"}
        await client.embeddings.create(model="tiny", input=CONTEXT, extra_headers=headers)
        found: list[Any] = []

        def complete() -> bool:
            found[:] = [span for record in traces.latest(5) for span in traces.spans(record)]
            return {semconv.COMPUTE, semconv.DELIVER} <= {span.name for span in found}

        await mesh.until(complete)
        names = [span.name for span in found]
        assert "embeddings tiny" in names and semconv.PREFILL in names and semconv.DECODE not in names
        assert {semconv.PREPROCESS, semconv.ROUTE, semconv.DISPATCH, semconv.QUEUE, semconv.DELIVER} <= set(names)
