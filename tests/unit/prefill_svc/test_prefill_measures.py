"""Each transfer of a prompt's pages is measured once, however it ends."""

import pytest

from kvtransfer.transfer import TransferError
from mesh.messages.orders import Cancel
from prefill_svc.measures import PrefillMeasures
from tests.sim.loop import virtual
from tests.unit.prefill_svc.parts import LAYER_BYTES, PrefillParts, pushing


def measured(parts: PrefillParts) -> tuple[dict[str, float], dict[str, int]]:
    """(values without those that are zero, number of observations of each histogram that has any)."""
    message = parts.prompts.measures.message({})
    values = {each.name: each.value for each in message.values if each.value}
    return values, {each.name: sum(each.counts) for each in message.distributions if sum(each.counts)}


@virtual
async def test_a_transfer_that_commits_is_counted_with_its_bytes_and_what_was_hidden() -> None:
    parts = PrefillParts()
    await parts.held()
    values, seen = measured(parts)
    transport = parts.writer.name
    assert values == {f"kv_transfer_bytes/{transport}/ok": 2 * 2 * LAYER_BYTES}, "two pages of two layers"
    assert seen == {
        f"kv_transfer_seconds/{transport}/ok": 1,
        f"kv_transfer_exposed_seconds/{transport}": 1,
        f"kv_transfer_hidden_ratio/{transport}": 1,
    }


@virtual
async def test_a_transfer_whose_write_fails_is_one_error() -> None:
    parts, prompt = pushing()
    parts.pushing.computed(parts.plan(prompt), 0, 1)
    parts.pushing.computed(parts.plan(prompt), 1, 1)
    await parts.writer.complete(2, TransferError("broken"))
    values, seen = measured(parts)
    transport = parts.writer.name
    assert values == {"kv_transfer_errors/write_failed": 1, f"kv_transfer_bytes/{transport}/error": 4 * LAYER_BYTES}
    assert seen == {f"kv_transfer_seconds/{transport}/error": 1}


@virtual
async def test_a_transfer_of_a_cancelled_prompt_is_no_error() -> None:
    parts, prompt = pushing()
    cancel = Cancel(prompt.ticket.request, prompt.ticket.attempt)
    parts.prompts.cancel(cancel)
    parts.queued(2)
    parts.prompts.cancel(Cancel(2, 1))
    values, seen = measured(parts)
    assert values == {} and seen == {f"kv_transfer_seconds/{parts.writer.name}/cancelled": 1}


@pytest.mark.parametrize(("pages", "seconds"), [(1, 0.02), (100, 0.12)], ids=["short prompts", "long prompts"])
def test_the_time_of_a_page_is_that_of_the_pages_not_of_the_writes(pages: int, seconds: float) -> None:
    """A write costs 19 ms and each of its pages 1 ms more."""
    measures = PrefillMeasures(step_tokens=512, page_bytes=1000)
    assert measures.page_seconds == 0.0, "not measured yet"
    for _ in range(200):
        measures.wrote("tcp", 100 * 1000, 0.12)
        measures.wrote("tcp", pages * 1000, seconds)
    assert 0.0010 < measures.page_seconds < 0.0016, "most pages came in long writes"


def test_writes_of_long_ago_do_not_count() -> None:
    measures = PrefillMeasures(step_tokens=512, page_bytes=1000)
    for _ in range(200):
        measures.wrote("tcp", 1000, 1.0)
    for _ in range(200):
        measures.wrote("tcp", 1000, 0.01)
    assert measures.page_seconds < 0.012
