"""Speculation changes how many steps a text takes and nothing else, whatever dies, stops or runs out on the way."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from decode_svc.speculation.speculation import Accept, DraftSource
from engine.step.plan import Piece, Plan, Sampled
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling, Tier
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual, virtual
from tests.sim.model import reference
from tests.sim.seeds.drawing import draw
from tests.sim.seeds.run import run_story
from tests.sim.workers import PAGE_TOKENS, SHAPE

SOURCES = (DraftSource.OFF, DraftSource.DRAFT, DraftSource.LOOKUP)
SMALL = 2  # words of a model that repeats itself, so that looking up finds something


def prompt(seed: int, tokens: int) -> tuple[int, ...]:
    return tuple((seed * 7919 + slot * 31 + 1) % 50 for slot in range(tokens))


def mesh(source: DraftSource, **more: object) -> Cluster:
    vocabulary = {"vocabulary": SMALL} if source is DraftSource.LOOKUP else {}
    return Cluster(1, **{"source": source, "pages": 256, **vocabulary, **more})  # type: ignore[arg-type]


def plans(cluster: Cluster, number: int = 0) -> list[Plan]:
    found = cluster.decode(number).plans
    assert found is not None
    return found


def verified(cluster: Cluster) -> int:
    """Drafts, counted in the plan log."""
    return sum(piece.sampled - 1 for plan in plans(cluster) for piece in plan.pieces if piece.sampled)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("source", SOURCES)
@virtual
async def test_the_text_is_the_models_own(source: DraftSource, temperature: float) -> None:
    cluster = await mesh(source).start(1, 1)
    for number in range(6):
        sampling = Sampling(temperature=temperature, seed=number, max_tokens=60)
        cluster.ask(prompt(number, 9 + number), sampling)
        await asyncio.sleep(0.03)
    assert await cluster.finish() == []  # every text equals the reference
    counts = cluster.decode().counts()
    assert counts["drafted"] == verified(cluster)
    assert (counts["drafted"] > 0) == (source is not DraftSource.OFF)
    assert (counts["accepted"] > 0) == (source is not DraftSource.OFF)


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@virtual
async def test_with_a_perfect_draft_of_four_a_text_takes_a_fifth_of_the_steps(local: Local) -> None:
    cluster = await mesh(DraftSource.DRAFT, local=local, foresight=1.0, acceptance=1.0).start(1, 1)
    cluster.ask(prompt(1, 9), Sampling(max_tokens=8))  # teaches what a plain step costs
    assert await cluster.finish() == []
    began = len(plans(cluster))
    client = cluster.ask(prompt(2, 8), Sampling(max_tokens=102))
    assert await cluster.finish() == []
    pieces = [piece for plan in plans(cluster)[began:] for piece in plan.pieces]
    # The first only proposes; then five tokens each.
    assert [piece.sampled for piece in pieces if piece.position] == [1] + [5] * 20
    timings = client.handle.timings
    assert (timings.drafted_tokens, timings.accepted_tokens, timings.decode_steps) == (80, 80, 21)


@virtual
async def test_right_after_its_landing_a_request_proposes_and_the_draft_has_read_its_whole_prompt() -> None:
    cluster = await mesh(DraftSource.DRAFT, local=Local.NEVER, foresight=1.0, acceptance=1.0).start(1, 1)
    cluster.ask(prompt(1, 9), Sampling(max_tokens=8))
    assert await cluster.finish() == []
    began = len(plans(cluster))
    cluster.ask(prompt(2, 23), Sampling(max_tokens=12))
    assert await cluster.finish() == []
    first, second = (plan.pieces[0] for plan in plans(cluster)[began : began + 2])
    assert first.drafting is not None and (first.drafting.start, first.drafting.unread) == (23, ())
    assert (first.drafting.propose, second.sampled) == (4, 5)


@pytest.mark.parametrize("source", [DraftSource.DRAFT, DraftSource.LOOKUP])
@virtual
async def test_kills_of_both_tiers_in_the_middle_change_no_token(source: DraftSource) -> None:
    cluster = await mesh(source).start(2, 2)
    clients = [cluster.ask(prompt(n, 12), Sampling(temperature=1.0, seed=n, max_tokens=90)) for n in range(6)]
    assert await cluster.until(lambda: all(len(client.seen) > 20 for client in clients))
    await cluster.kill("decode0")
    assert await cluster.until(lambda: all(len(client.seen) > 40 for client in clients))
    await cluster.kill("prefill0")
    await cluster.add(Tier.DECODE, "decode0")
    await cluster.kill("decode1")
    assert await cluster.finish() == []
    assert all(len(client.seen) == 90 for client in clients)
    assert cluster.decode(0).counts()["accepted"] > 0


@pytest.mark.parametrize("source", [DraftSource.DRAFT, DraftSource.LOOKUP])
def test_chaos_harms_no_request_that_speculates(source: DraftSource) -> None:
    for seed in range(2000, 2004):
        story = draw(seed)
        assert run_story(replace(story, world=replace(story.world, source=source))).violations == []


def in_the_middle(cluster: Cluster, client: SimClient) -> tuple[int, int]:
    """A position that comes from an accepted draft with more of its run behind it, and the token there."""
    for plan in plans(cluster):
        for piece in plan.pieces:
            if piece.sampled == 5 and 20 < piece.position < len(client.seen) - 6:
                run = client.seen[piece.position : piece.position + 5]
                if run[:4] == list(piece.tokens[1:]) and client.seen.index(run[2]) == piece.position + 2:
                    return piece.position + 2, run[2]
    raise AssertionError("no run of five")


async def text_of(source: DraftSource, sampling: Sampling, **more: object) -> tuple[list[int], Cluster, SimClient]:
    cluster = await mesh(source, foresight=1.0, **more).start(1, 1)
    client = cluster.ask(prompt(3, 11), sampling)
    assert await cluster.finish() == []
    return client.seen, cluster, client


@virtual
async def test_a_stop_id_inside_an_accepted_run_ends_the_text_there() -> None:
    _, cluster, client = await text_of(DraftSource.DRAFT, Sampling(max_tokens=60))
    position, token = in_the_middle(cluster, client)
    stopping = Sampling(max_tokens=60, stop_ids=(token,))
    seen, cluster, client = await text_of(DraftSource.DRAFT, stopping)
    assert len(seen) == position + 1 and seen == reference(prompt(3, 11), stopping, SHAPE.layers)
    assert client.handle.timings.accepted_tokens < client.handle.timings.drafted_tokens
    late = replace(stopping, min_tokens=position + 1)  # that stop id does not count yet
    seen, *_ = await text_of(DraftSource.DRAFT, late)
    assert len(seen) > position + 1


@pytest.mark.parametrize("max_tokens", range(1, 14))
@virtual
async def test_max_tokens_ends_the_text_wherever_it_falls_in_a_run_and_no_page_is_asked_for_beyond(
    max_tokens: int,
) -> None:
    slots = 11 + max_tokens
    seen, cluster, _ = await text_of(
        DraftSource.DRAFT, Sampling(max_tokens=max_tokens), pages=-(-slots // PAGE_TOKENS), cache=False
    )
    assert len(seen) == max_tokens
    for plan in plans(cluster):
        for piece in plan.pieces:
            assert piece.position + piece.sampled <= max_tokens


@virtual
async def test_what_a_refused_draft_left_behind_is_never_published() -> None:
    cluster = await mesh(DraftSource.DRAFT, foresight=0.5).start(1, 1)
    first = cluster.ask(prompt(4, 11), Sampling(max_tokens=60))
    assert await cluster.finish() == []
    assert cluster.decode().counts()["accepted"] < cluster.decode().counts()["drafted"]
    text = (*first.spec.prompt, *first.seen)
    cluster.ask((*text[:50], 7), Sampling(max_tokens=20))  # finds pages that speculation filled
    assert await cluster.finish() == []


@virtual
async def test_a_cancel_inside_an_accepted_run_gives_every_page_back() -> None:
    cluster = await mesh(DraftSource.DRAFT, foresight=1.0).start(1, 1)
    other = cluster.ask(prompt(6, 11), Sampling(max_tokens=50))
    client = cluster.ask(prompt(5, 11), Sampling(max_tokens=200))
    assert await cluster.until(lambda: len(client.seen) > 30 and verified(cluster) > 0)
    client.handle.cancel()
    assert await cluster.finish() == []
    assert len(other.seen) == 50


def test_when_pages_are_short_drafts_are_dropped_before_a_request_is_preempted() -> None:
    async def attempts(source: DraftSource) -> list[int]:
        cluster = await mesh(source, pages=28, prefill_pages=64, cache=False, foresight=1.0).start(1, 1)
        clients = [cluster.ask(prompt(n, 8), Sampling(max_tokens=20)) for n in range(4)]  # 28 pages in the end
        assert await cluster.finish() == []
        assert (verified(cluster) > 0) == (source is DraftSource.DRAFT)
        return [client.handle.timings.attempts for client in clients]

    assert run_virtual(attempts(DraftSource.OFF)) == [1, 1, 1, 1]
    assert run_virtual(attempts(DraftSource.DRAFT)) == [1, 1, 1, 1]


@virtual
async def test_preempted_requests_resume_with_the_same_tokens() -> None:
    cluster = await mesh(DraftSource.DRAFT, pages=24, prefill_pages=64, cache=False).start(1, 1)
    clients = [cluster.ask(prompt(n, 8), Sampling(max_tokens=30)) for n in range(6)]
    assert await cluster.finish() == []
    assert max(client.handle.timings.attempts for client in clients) > 1


def blindly(piece: Piece, sampled: Sequence[Sampled]) -> int:
    return max(0, len(sampled) - 1)


def test_a_draft_that_is_accepted_without_a_look_is_noticed() -> None:
    async def main(accept: Accept | None) -> list[str]:
        cluster = await mesh(DraftSource.DRAFT, foresight=0.5, **({"accept": accept} if accept else {})).start(1, 1)
        cluster.ask(prompt(1, 11), Sampling(max_tokens=60))
        return await cluster.finish()

    assert run_virtual(main(None)) == []
    assert any("differs" in what for what in run_virtual(main(blindly)))


@virtual
async def test_a_draft_whose_reading_was_skipped_foresees_nothing_until_it_has_caught_up() -> None:
    """Pages that were published without it are read before it proposes: acceptance is as if it had always read."""
    cluster = await mesh(DraftSource.DRAFT, foresight=1.0, local=Local.ALWAYS, chunk_tokens=64).start(0, 1)
    first = cluster.ask(prompt(7, 9), Sampling(max_tokens=4))  # plain steps: nothing is known of their cost yet
    assert await cluster.finish() == []
    text = (*first.spec.prompt, *first.seen)
    client = cluster.ask((*text[:12], 3, 4, 5), Sampling(max_tokens=41))
    assert await cluster.finish() == []
    reads = [p.drafting for plan in plans(cluster) for p in plan.pieces if p.drafting and p.drafting.unread]
    assert reads, "the third page was filled in plain steps"
    timings = client.handle.timings
    assert timings.drafted_tokens == timings.accepted_tokens > 0
