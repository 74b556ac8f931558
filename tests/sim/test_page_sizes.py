"""Tiers whose pages have other sizes, in virtual time: prefixes, damage and repair, with every token compared."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.routing.router import Local
from kvtransfer.conversion import Conversion
from prefill_svc.pages import PrefillPages, PromptPages
from prefill_svc.pushing import Pushing
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual, virtual

TEXT = tuple((slot * 31 + slot // 7) % 50 for slot in range(64))
SIZES = [(4, 8), (8, 4), (8, 2), (2, 8), (6, 4), (4, 6)]


async def served(
    sizes: tuple[int, int], *, one_sided: bool, spoil: int = 0, seconds: float = 120.0
) -> tuple[list[str], Cluster]:
    """Prompts with a common beginning; then a decode worker that has nothing meets a prefill worker that has it all."""
    cluster = Cluster(
        1, pages=256, local=Local.NEVER, chunk_tokens=6, page_tokens=sizes, one_sided=one_sided, max_batch=4
    )
    await cluster.start(1, 1)
    for length in (64, 33, 50, 7, 1, 64):
        cluster.ask((*TEXT[:length], length % 11))
    found = await cluster.finish(seconds)
    await cluster.restart("decode0")
    await cluster.until(lambda: len(cluster.gateway.workers) == 2)
    cluster.fabric.spoil = spoil
    for length in (64, 48, 24):  # whole pages: the prefix cache of prefill has every token
        cluster.ask(TEXT[:length])
    return found + await cluster.finish(seconds), cluster


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
@virtual
async def test_every_token_is_right_and_every_page_comes_back(sizes: tuple[int, int], one_sided: bool) -> None:
    found, cluster = await served(sizes, one_sided=one_sided)
    assert found == []
    decode = cluster.decode()
    assert decode.pool.shape.page_tokens == sizes[1] and cluster.prefill().pool.shape.page_tokens == sizes[0]
    assert decode.landings.spans.whole == 3 and decode.landings.spans.damaged == 0


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
@virtual
async def test_damaged_spans_of_converted_pages_are_sent_again(sizes: tuple[int, int], one_sided: bool) -> None:
    found, cluster = await served(sizes, one_sided=one_sided, spoil=3)
    assert found == []
    spans, counts = cluster.decode().landings.spans, cluster.prefill().counts()
    assert spans.damaged >= 3 and spans.whole == 3 and counts["bytes_resent"] > 0


def test_negative_control_a_page_that_is_pushed_before_its_copy_is_made_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fully cached prompt computes its last row in a copy of its last page, which the first step makes. Smaller pages
    of decode lie in that copy too, and nothing is in it before."""
    take = PrefillPages.take

    def hasty(self: PrefillPages, *arguments: Any) -> PromptPages | None:
        own = take(self, *arguments)
        return own and replace(own, ready=own.cached)

    monkeypatch.setattr(PrefillPages, "take", hasty)
    found, _ = run_virtual(served((8, 2), one_sided=True))
    assert "differs" in "".join(found)


def test_negative_control_a_page_that_is_read_from_the_wrong_token_on_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overlaps = Conversion._overlaps

    def at_the_first_token(self: Conversion, index: int, pages: int) -> Any:
        return overlaps(self, 0, pages)

    monkeypatch.setattr(Conversion, "_overlaps", at_the_first_token)
    found, _ = run_virtual(served((8, 4), one_sided=True))
    assert "differs" in "".join(found)


def test_negative_control_pages_that_are_counted_in_prefills_size_never_land(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pushing, "_target", lambda self, prompt: self._shape)
    found, cluster = run_virtual(served((4, 8), one_sided=True, seconds=5.0))
    assert found or cluster.decode().landings.spans.whole < 3
