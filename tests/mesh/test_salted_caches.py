"""A request learns nothing of other tenants' prompts: it costs the same steps whether another tenant has sent its
prompt or nobody has.

Times are noisy, steps are not: a request that finds no page of another salt is computed in the same chunks, at the same
workers, as one whose prompt nobody has sent. Without salts the same request finds the pages and says so."""

from typing import Any

import pytest

pytestmark = pytest.mark.mesh

PAGE = 16
SEEN = tuple(range(40, 40 + 9 * PAGE + 3))
NEVER = tuple(range(50, 50 + 9 * PAGE + 3))


async def steps_of(mesh: Any, prompt: tuple[int, ...], salt: bytes) -> tuple[int, list[tuple[int, int]]]:
    """The cached tokens that the answer tells, and (start, rows) of each chunk of the prompt, at whatever worker."""
    before = {id(worker): len(worker.plans) for worker in (*mesh.prefills, *mesh.decodes)}
    asked = mesh.ask(prompt, max_tokens=2, salt=salt)
    await asked.task
    chunks = [
        (piece.start, len(piece.tokens))
        for worker in (*mesh.prefills, *mesh.decodes)
        for plan in worker.plans[before[id(worker)] :]
        for piece in plan.pieces
        if piece.start < len(prompt) and len(piece.tokens) > 1
    ]
    return asked.handle.timings.cached_tokens, chunks


async def settled(mesh: Any, prompt: tuple[int, ...], salt: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Asks until the request finds its pages: the gateway learns of cached pages a moment later."""
    while True:
        found = await steps_of(mesh, prompt, salt)
        if found[0]:
            return found


@pytest.mark.parametrize("tiers", [("prefill", "decode"), ("decode",)])
async def test_a_prompt_of_another_salt_costs_what_a_prompt_costs_that_nobody_has_sent(
    real_mesh: Any, tiers: tuple[str, ...]
) -> None:
    from gateway.routing.router import Local

    async with real_mesh(local=Local.AUTO if tiers == ("decode",) else Local.NEVER) as mesh:
        for tier in tiers:  # a target would give each prompt another size of chunk, by measured times
            await mesh.add(tier, **({"itl_target_ms": 0.0} if tier == "decode" else {}))
        _, first = await steps_of(mesh, SEEN, b"alice")
        cached, again = await settled(mesh, SEEN, b"alice")
        assert cached == 9 * PAGE and sum(rows for _, rows in again) < sum(rows for _, rows in first)
        theirs, never = await steps_of(mesh, SEEN, b"bob"), await steps_of(mesh, NEVER, b"bob")
        assert theirs == never == (0, first)
        assert (await settled(mesh, SEEN, b"alice"))[0] == 9 * PAGE, "negative control: an equal salt finds them"


async def test_without_salts_everybody_finds_what_anybody_has_sent(real_mesh: Any) -> None:
    """Documented in docs/security.md: a mesh that serves several tenants needs keys or salts."""
    async with real_mesh() as mesh:
        await mesh.add("prefill")
        await mesh.add("decode")
        await steps_of(mesh, SEEN, b"")
        assert (await settled(mesh, SEEN, b""))[0] == 9 * PAGE
        assert (await steps_of(mesh, NEVER, b""))[0] == 0
