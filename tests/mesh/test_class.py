"""Numerics classes with the real engine: prefill and decode on path `pairs`, another decode worker on path `fp32`."""

from dataclasses import replace

import pytest

from gateway.routing.router import Local
from mesh.errors import ClassUnavailable
from mesh.rules import RULES

pytestmark = pytest.mark.mesh

PROMPT = tuple(range(40, 80))


async def half_way(mesh, **more):
    """Prefill A, decode A, decode B; decode A ends when a few tokens came."""
    await mesh.add("prefill", product_path="pairs")
    mine = await mesh.add("decode", product_path="pairs")
    other = await mesh.add("decode", product_path="fp32")
    asked = mesh.ask(PROMPT, max_tokens=200, **more)
    await mesh.until(lambda: len(asked.tokens) >= 5)
    assert not other.plans and not other.requests, "another class gets nothing"
    await mesh.end(mine)
    return asked, other


async def test_when_its_class_is_gone_a_request_ends_and_names_both_fingerprints(real_mesh):
    async with real_mesh(rules=replace(RULES, settling_seconds=0.0)) as mesh:
        asked, other = await half_way(mesh)
        with pytest.raises(ClassUnavailable) as ended:
            await asked.task
        fingerprints = {worker.hello.fingerprint for worker in mesh.gateway.workers}
        assert len(fingerprints) == 2 and all(one in str(ended.value) for one in fingerprints)
        assert "pairs" in str(ended.value) and "fp32" in str(ended.value)
        assert not other.plans


async def test_with_allow_class_change_it_goes_on_in_the_other_class_and_says_so(real_mesh):
    async with real_mesh(local=Local.AUTO) as mesh:
        asked, other = await half_way(mesh, allow_class_change=True)
        await asked.task
        assert [token.position for token in asked.tokens] == list(range(200))
        assert len(set(asked.classes)) == 2 and other.plans
        assert "fp32" in asked.classes[-1] and "pairs" in asked.classes[0]


async def test_prefill_of_another_class_is_refused_by_decode_whatever_a_gateway_believes(real_mesh):
    async with real_mesh() as mesh:
        prefill = await mesh.add("prefill", product_path="fp32")
        decode = await mesh.add("decode", product_path="pairs")
        link = prefill.links.to(decode.attachments.address)
        with pytest.raises(TimeoutError):
            await mesh.until(lambda: link.up, 1.0)
