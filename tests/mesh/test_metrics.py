"""`GET /metrics` of a mesh with the real engine: what it shows agrees with what clients and workers saw."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import httpx2
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gateway.dialects.api import HttpApi
from gateway.http.server import serve_http
from gateway.observability.by_model import MetricsByModel
from gateway.observability.export import MeshCollector
from gateway.observability.metric_names import TABLE, TENANT
from gateway.observability.metric_spec import MetricKind
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.metrics_page import metrics_routes
from gateway.prompts.assets import load_assets
from gateway.routing.router import Local
from gateway.tracing.traces import RecentTraces
from mesh.errors import Cancelled, DeadlineExceeded
from mesh.telemetry.spans import KeptHere
from mesh.timing.loop_delay import watch_delay

pytestmark = pytest.mark.mesh

TRACE = "0af7651916cd43dd8448eb211c80319c"
ONLY_AT = {  # metrics of one tier
    "prefill": re.compile(r"baton_kv_transfer_(seconds|bytes|exposed|hidden)|baton_kv_resent"),
    "gateway": re.compile("baton_spans_dropped"),
    "decode": re.compile(r"baton_(kv_landing|kv_frames|admissions|pages_stuck|pages_quarantined|\w*draft)"),
}


class ScrapedPage:
    """The samples of one scrape, by name."""

    def __init__(self, text: str, parse: Callable[[str], Any] = parse_classic) -> None:
        self.samples = defaultdict[str, list[Any]](list)
        for family in parse(text):
            for sample in family.samples:
                self.samples[sample.name].append(sample)

    def sum(self, name: str, **labels: str) -> float:
        found = [s.value for s in self.samples[name] if labels.items() <= s.labels.items()]
        assert found, f"{name} {labels} is not shown"
        return float(sum(found))


async def test_the_page_agrees_with_what_clients_and_workers_saw(real_mesh: Any) -> None:
    counted = MetricsByModel({"tiny": 8192})
    metrics = counted.all
    async with real_mesh(local=Local.AUTO, observer=counted.observer) as mesh:
        for number in range(2):
            await mesh.add("decode", name=f"decode-{number}")
        await mesh.add("prefill", name="prefill-0")
        assets = load_assets(mesh.model, "tiny")
        collector = MeshCollector(
            mesh.gateway,
            counted,
            name="gateway",
            vllm=True,
            clock=asyncio.get_running_loop().time,
            spans_dropped=lambda: 0,
        )
        pages, traces = (
            metrics_routes(collector, wall=time.time, shared_seconds=0.0),
            RecentTraces(KeptHere(), random=Random(4)),
        )
        api = HttpApi(mesh.gateway, assets, random=Random(3), clock=lambda: 1.0, traces=traces, also=pages)
        server = await serve_http(api.app, "127.0.0.1:0")
        watch = asyncio.create_task(watch_delay(metrics.loop_delay.of().observe))
        async with httpx2.AsyncClient(base_url=f"http://{server.address}", timeout=120) as client:
            await _serve_and_compare(mesh, client, metrics)
        watch.cancel()
        await server.close()


async def _serve_and_compare(mesh: Any, client: httpx2.AsyncClient, metrics: GatewayMetrics) -> None:
    async def scrape(accept: str = "") -> ScrapedPage:
        path = "/metrics/" if accept else "/metrics"
        answer = await client.get(path, headers={"accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(accept or "text/plain; version=0.0.4")
        return ScrapedPage(answer.text, parse_open if accept else parse_classic)

    async def complete(**body: Any) -> Any:
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        answer = await client.post("/v1/completions", json={"temperature": 0, **body}, headers=headers)
        return answer.json()

    # answers whose usage the client sees: remote, local, of several choices, stopped, streamed
    long = "A long prompt that fills several pages of sixteen tokens. " * 3
    answers = [await complete(prompt=f"{number}{long}", max_tokens=6 + number, ignore_eos=True) for number in range(4)]
    answers += [await complete(prompt="short", max_tokens=5), await complete(prompt=long, max_tokens=4, n=2)]
    letters = answers[0]["choices"][0]["text"]
    answers.append(await complete(prompt=f"0{long}", max_tokens=6, ignore_eos=True, stop=[letters[2]]))
    body = {"prompt": long, "max_tokens": 7, "stream": True, "stream_options": {"include_usage": True}}
    streamed = await client.post("/v1/completions", json={**body, "ignore_eos": True})
    usages = [answer["usage"] for answer in answers]
    usages.append({name: int(n) for name, n in re.findall(r'"(prompt_tokens|completion_tokens)":(\d+)', streamed.text)})
    page = await scrape()
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert page.sum("vllm:generation_tokens_total") == page.sum("baton_generation_tokens_total") == generated
    assert page.sum("vllm:prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert page.sum("baton_requests_total", status="ok") == 9, "eight answers, one of them with two choices"
    assert page.sum("baton_requests_total", path="remote") >= 1 <= page.sum("baton_requests_total", path="local")
    assert page.sum("vllm:request_params_n_count") == 8 and page.sum("vllm:request_params_n_sum") == 9
    assert page.sum("vllm:request_success_total") == page.sum("vllm:e2e_request_latency_seconds_count") == 9

    # one request that fails, one that is refused, one whose client leaves, one whose decode worker dies
    failing = mesh.ask(tuple(range(40)), max_tokens=500, deadline_seconds=0.05)
    with pytest.raises(DeadlineExceeded):
        await failing.task
    assert "error" in await complete(prompt="x", max_tokens=-1)
    leaving = mesh.ask(tuple(range(1, 90)), max_tokens=500)
    await mesh.until(lambda: len(leaving.tokens) > 2)
    leaving.handle.cancel()
    with pytest.raises(Cancelled):
        await leaving.task
    asked = mesh.ask(tuple(range(2, 100)), max_tokens=200)
    await mesh.until(lambda: len(asked.tokens) > 2)
    request = next(iter(mesh.gateway.sequencer.requests.values()))
    await mesh.end(next(d for d in mesh.decodes if d.attachments.incarnation == request.decode))
    await asked.task
    (left,) = (d for d in mesh.decodes if id(d) in mesh.running)
    await mesh.until(lambda: _settled(mesh, left))
    page = await scrape()
    assert page.sum("vllm:generation_tokens_total") == generated + sum(
        len(each.tokens) for each in (failing, leaving, asked)
    )
    assert page.sum("baton_requests_total", status="error") == page.sum("baton_requests_total", status="cancelled") == 1
    assert page.sum("baton_requests_total", path="resumed", status="ok") == 1
    assert page.sum("baton_resumes_total", reason="decode_gone") == 1
    assert page.sum("baton_errors_total", reason="INVALID_REQUEST") == 1
    assert page.sum("vllm:num_requests_running") == page.sum("vllm:num_requests_waiting") == 0
    _workers_agree(page, mesh, left)
    _complete(page)

    traced = await scrape("application/openmetrics-text")
    _complete(traced)
    exemplars = [s.exemplar for s in traced.samples["vllm:time_to_first_token_seconds_bucket"] if s.exemplar]
    assert TRACE in {exemplar.labels["trace_id"] for exemplar in exemplars}


def _settled(mesh: Any, decode: Any) -> bool:
    """The gateway has the measures of the last step of every worker, and no page is in use."""
    workers = {worker.incarnation: worker for worker in mesh.gateway.workers}
    for mine in (*mesh.prefills, decode):
        seen = workers[mine.attachments.incarnation].measures
        if seen.get("steps") != len(mine.plans) or seen["pages_in_use"]:
            return False
    return True


def _workers_agree(page: ScrapedPage, mesh: Any, decode: Any) -> None:
    """The page shows of each worker what the worker knows about itself."""
    (prefill,) = mesh.prefills
    name = next(w.hello.name for w in mesh.gateway.workers if w.incarnation == decode.attachments.incarnation)
    for worker, label in ((prefill, "prefill-0"), (decode, name)):
        counts = worker.counts()
        for state in ("free", "cached", "in_use", "landing", "quarantined"):
            assert page.sum("baton_pages", worker=label, state=state) == counts[f"pages_{state}"]
        assert page.sum("baton_pages", worker=label) == worker.pages.pages
        assert page.sum("baton_step_rows_count", worker=label) == len(worker.plans)
        assert page.sum("baton_step_rows_sum", worker=label) == sum(plan.rows for plan in worker.plans)
    written = prefill.counts()["bytes_written"]
    assert page.sum("baton_kv_transfer_bytes_total", transport="shm", result="ok") == written > 0
    ended = page.sum("baton_kv_transfer_seconds_count", worker="prefill-0", result="ok")
    assert ended == prefill.counts()["committed"] == page.sum("baton_kv_transfer_hidden_ratio_count")
    assert 0 < page.sum("baton_kv_transfer_exposed_seconds_sum") < page.sum("baton_kv_transfer_seconds_sum")
    assert page.sum("vllm:prefix_cache_queries_total") >= page.sum("vllm:prefix_cache_hits_total") > 0


def _complete(page: ScrapedPage) -> None:
    """Every metric is there, those of tenants and adapters only where there are some, no counter or bucket is negative,
    buckets rise, and the last one is the count."""
    for name, spec in TABLE.items():
        shown = name + "_count" if spec.kind is MetricKind.HISTOGRAM else name
        if spec.labels[:1] == TENANT or "adapter" in spec.labels:
            assert not page.samples[shown], f"{name} is shown without a tenant or an adapter"
            continue
        assert page.samples[shown], f"{name} is not shown"
        if spec.labels[:2] == ("worker", "tier"):
            tiers = {sample.labels["tier"] for sample in page.samples[shown]} - {"gateway"}
            only = {tier for tier, names in ONLY_AT.items() if names.match(name)} or {"prefill", "decode"}
            only -= {"gateway"}
            assert tiers == only, name
        if spec.kind is not MetricKind.HISTOGRAM:
            assert all(sample.value >= 0 for sample in page.samples[name]), name
            continue
        buckets = defaultdict[tuple[Any, ...], list[float]](list)
        for sample in page.samples[f"{name}_bucket"]:
            key = tuple((label, value) for label, value in sorted(sample.labels.items()) if label != "le")
            buckets[key].append(sample.value)
        counts = {tuple(sorted(sample.labels.items())): sample.value for sample in page.samples[f"{name}_count"]}
        for key, values in buckets.items():
            assert values == sorted(values) and values[-1] == counts[key] and values[0] >= 0, name
