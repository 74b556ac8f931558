"""`baton bench load` against a mesh of real processes: exact prompt lengths, whole answers, figures that agree."""

from dataclasses import replace

import pytest

from cli.connecting.http_url import parse_url
from cli.load.form import Endpoint
from cli.load.measure import LoadOrder, LoadResult, measure
from cli.load.options import LoadOptions
from cli.load.picture import draw_run
from cli.load.report import as_json
from cli.load.shapes import ShapeName
from cli.load.statistics import LatencyLimits
from cli.local_mesh.own_mesh import own_mesh

pytestmark = pytest.mark.mesh


def order(url: str) -> LoadOrder:
    return LoadOrder(
        options=LoadOptions(ShapeName.SHORT, None, None, requests=4, rate=10.0, concurrency=None, seed=1),
        url=parse_url(url),
        endpoint=Endpoint.COMPLETIONS,
        model=None,
        api_key="",
        limits=LatencyLimits(ttft=3600.0),
        speeds=None,
        workers=None,
        timeout_seconds=240.0,
    )


def check(result: LoadResult | None) -> None:
    assert result is not None
    for record in result.records:
        assert record.error == "" and record.prompt_tokens == record.input_tokens
        assert record.completion_tokens == record.output_tokens
        assert record.ttft is not None and record.e2e is not None and 0 < record.ttft <= record.e2e
        assert sum(record.gaps) <= record.e2e - record.ttft + 1e-6
    report = as_json(result.report)
    assert report["requests"]["finished"] == 4 and report["goodput"]["share"] == 1.0 and report["notes"] == []
    assert report["split"]["assumed"]["workers"] == 2  # as the gateway tells at /health
    assert draw_run(result.records, LatencyLimits(), title="mesh", subtitle="").startswith("<svg")


async def test_a_mesh_answers_completions_and_chats_of_exact_lengths() -> None:
    async with own_mesh({"mesh.prefill_workers": "1", "mesh.decode_workers": "1"}) as gateway:
        ids = order(f"http://{gateway.http_address}/v1")
        check(await measure(ids, show=lambda text: None))
        chat = replace(ids, endpoint=Endpoint.CHAT, options=replace(ids.options, concurrency=3, rate=None, seed=2))
        check(await measure(chat, show=lambda text: None))
