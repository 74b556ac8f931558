"""The router picks workers for a request from what they last reported."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.routing.cheapest import CANNOT_PUSH_TIMES
from gateway.routing.costs import Need
from gateway.routing.router import Local, Route, route
from gateway.routing.worker_table import Cached, WorkerTable
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier
from mesh.messages.orders import Snapshot
from mesh.messages.reports import Hello, Load, PrefixChange

PAGE = 4


def worker(tier: Tier, incarnation: int, numerics: str = "a", **load: Any) -> AttachedWorker:
    known = Load(**{"free_pages": 100, "total_pages": 100, **load})
    name = f"{tier.value}{incarnation}"
    hello = Hello(tier, incarnation, name, numerics, "print", "model", "0", PAGE, 4096, known, PrefixChange(0))
    sent: list[object] = []
    return AttachedWorker(hello, cast(Any, SimpleNamespace(send=sent.append, sent=sent)), known)


def prefill(incarnation: int, numerics: str = "a", **load: Any) -> AttachedWorker:
    return worker(Tier.PREFILL, incarnation, numerics, **load)


def decode(incarnation: int, numerics: str = "a", **load: Any) -> AttachedWorker:
    return worker(Tier.DECODE, incarnation, numerics, **load)


def choose(
    decodes: list[AttachedWorker],
    prefills: list[AttachedWorker],
    *,
    tokens: int = 100,
    numerics: str = "",
    matched: dict[int, int] | None = None,
    **more: Any,
) -> tuple[int, int | None] | None:
    table = WorkerTable()
    for one in (*decodes, *prefills):
        table.add(one)
    slots = {one.incarnation: slot for slot, one in enumerate((*decodes, *prefills))}
    held = [Cached(count, 1 << slots[incarnation]) for incarnation, count in (matched or {}).items()]
    chosen = route(Need(tokens, numerics, cached=held), table, **more)
    for one in (*decodes, *prefills):
        table.remove(one)
    assert chosen is None or isinstance(chosen, Route)
    return chosen and (chosen.decode.incarnation, chosen.prefill.incarnation if chosen.prefill else None)


def test_without_a_decode_worker_there_is_no_route() -> None:
    assert choose([], []) is None and choose([], [prefill(1)]) is None


@pytest.mark.parametrize("order", [1, -1])
def test_only_equal_classes_are_paired(order: int) -> None:
    prefills, decodes = [prefill(1, "a"), prefill(2, "b")], [decode(11, "b"), decode(12, "c")]
    assert choose(decodes[::order], prefills[::order]) == (11, 2)


def test_a_fingerprint_of_its_own_makes_a_class_of_its_own() -> None:
    one, other = prefill(1), decode(11)
    other.hello = Hello(**{f: getattr(other.hello, f) for f in Hello.__slots__} | {"fingerprint": "another"})
    assert choose([other], [one], local=Local.NEVER) is None


def test_a_class_that_the_client_began_in_is_kept() -> None:
    decodes, prefills = (
        [decode(11, "a"), decode(12, "b", running=50)],
        [prefill(1, "a"), prefill(2, "b", queued_tokens=9999)],
    )
    assert choose(decodes, prefills) == (11, 1)
    assert choose(decodes, prefills, numerics="b fingerprint print") == (12, 2)
    assert choose(decodes, prefills, numerics="z fingerprint print") is None


def test_the_shorter_queue_gets_the_prompt() -> None:
    assert choose([decode(11)], [prefill(1, queued_tokens=500), prefill(2, queued_tokens=499)]) == (11, 2)


def test_a_queue_is_measured_in_time_not_in_tokens() -> None:
    slow = prefill(1, queued_tokens=400, tokens_per_second=100.0)
    fast = prefill(2, queued_tokens=2000, tokens_per_second=10_000.0)
    assert choose([decode(11)], [slow, fast]) == (11, 2)


def test_what_was_sent_since_the_last_report_counts() -> None:
    one, two = prefill(1), prefill(2)
    one.count(300)
    assert choose([decode(11)], [one, two]) == (11, 2)
    one.report(Load())
    two.count(1)
    assert choose([decode(11)], [one, two]) == (11, 1)


def test_a_prompt_goes_where_its_beginning_is_known() -> None:
    prefills = [prefill(1), prefill(2, queued_tokens=50)]
    assert choose([decode(11)], prefills, matched={2: 80}) == (11, 2)
    assert choose(
        [decode(11), decode(12, running=1)], [prefill(1)], tokens=400, matched={12: 396}, local=Local.NEVER
    ) == (
        12,
        1,
    )


def test_a_known_beginning_does_not_outweigh_a_long_queue() -> None:
    assert choose([decode(11)], [prefill(1), prefill(2, queued_tokens=5000)], matched={2: 80}) == (11, 1)


def test_the_smaller_batch_gets_the_request() -> None:
    assert choose([decode(11, running=5), decode(12, running=4)], [prefill(1)]) == (12, 1)


def test_a_decode_worker_without_room_is_the_last_resort() -> None:
    full, busy = decode(11, free_pages=24), decode(12, running=60)
    assert choose([full, busy], [prefill(1)]) == (12, 1)
    assert choose([full], [prefill(1)]) == (11, 1)
    assert choose([decode(11, waiting=1), busy], [prefill(1)]) == (12, 1)


def test_decode_prefills_itself_when_it_lacks_at_most_a_page() -> None:
    assert choose([decode(11)], [prefill(1)], matched={11: 96}) == (11, None)
    assert choose([decode(11)], [prefill(1)], matched={11: 95}) == (11, 1)


@pytest.mark.parametrize(
    ("local", "expected"), [(Local.AUTO, (11, None)), (Local.ALWAYS, (11, None)), (Local.NEVER, None)]
)
def test_without_a_prefill_worker_decode_prefills_itself_unless_it_never_may(local: Local, expected: object) -> None:
    assert choose([decode(11)], [], local=local) == expected
    assert choose([decode(11, "a")], [prefill(1, "b")], local=local) == expected


def test_never_and_always_are_obeyed() -> None:
    assert choose([decode(11)], [prefill(1)], matched={11: 100}, local=Local.NEVER) == (11, 1)
    assert choose([decode(11)], [prefill(1)], local=Local.ALWAYS) == (11, None)


def test_a_decode_worker_with_a_prefill_worker_is_preferred_to_one_alone() -> None:
    assert choose([decode(11, "a"), decode(12, "b", running=60)], [prefill(1, "b")]) == (12, 1)


def test_the_decode_worker_that_has_the_request_is_kept_while_it_is_usable() -> None:
    decodes = [decode(11, running=60, waiting=3), decode(12)]
    assert choose(decodes, [prefill(1)], keep=11) == (11, 1)
    assert choose(decodes, [prefill(1)], keep=13) == (12, 1)
    assert choose(decodes, [prefill(1)], keep=11, refused={11}) == (12, 1)


def test_the_prefill_worker_that_failed_comes_last_and_is_still_better_than_none() -> None:
    assert choose([decode(11)], [prefill(1), prefill(2, queued_tokens=9999)], last=1) == (11, 2)
    assert choose([decode(11)], [prefill(1)], last=1) == (11, 1)


def test_the_prefill_worker_that_may_hold_the_pages_comes_first() -> None:
    prefills = [prefill(1, queued_tokens=9999), prefill(2)]
    assert choose([decode(11)], prefills, first=1) == (11, 1)
    assert choose([decode(11)], prefills, first=3) == (11, 2)


def test_a_worker_that_refused_gets_no_second_try() -> None:
    assert choose([decode(11)], [prefill(1), prefill(2, queued_tokens=9999)], refused={1}) == (11, 2)
    assert choose([decode(11)], [prefill(1)], refused={11}) is None


def test_a_pair_that_could_not_push_is_avoided_then_given_up() -> None:
    two = [prefill(1), prefill(2, queued_tokens=900)]
    assert choose([decode(11)], two, failed={(1, 11): 1}) == (11, 2)
    assert choose([decode(11), decode(12, running=30)], [prefill(1)], keep=11, failed={(1, 11): 1}) == (12, 1)
    assert choose([decode(11)], [prefill(1)], keep=11, failed={(1, 11): CANNOT_PUSH_TIMES - 1}) == (11, 1)
    assert choose([decode(11)], [prefill(1)], keep=11, failed={(1, 11): CANNOT_PUSH_TIMES}) == (11, None)
    assert choose([decode(11)], [prefill(1)], local=Local.NEVER, failed={(1, 11): CANNOT_PUSH_TIMES}) is None


def test_the_decode_worker_is_kept_while_a_prefill_worker_is_left_that_did_not_fail_with_it() -> None:
    assert choose([decode(11, running=60), decode(12)], [prefill(1), prefill(2)], keep=11, failed={(1, 11): 1}) == (
        11,
        2,
    )


def test_after_a_gap_prefixes_are_unknown_until_a_snapshot_comes() -> None:
    one = prefill(1)
    one.change(PrefixChange(3, (b"x", b"y"), snapshot=True))
    one.change(PrefixChange(4, (b"z",), (b"x",)))
    assert one.prefix == {b"y", b"z"} and not one.session.sent  # type: ignore[attr-defined]
    one.change(PrefixChange(6, (b"w",)))
    assert one.prefix == set() and one.session.sent == [Snapshot()]  # type: ignore[attr-defined]
    one.change(PrefixChange(6, (b"q",), snapshot=True))
    one.change(PrefixChange(7, (b"r",)))
    assert one.prefix == {b"q", b"r"}


def test_a_preferred_worker_wins_where_others_are_hardly_cheaper() -> None:
    decodes, prefills = [decode(11), decode(12, running=2)], [prefill(1), prefill(2, queued_tokens=20)]
    assert choose(decodes, prefills) == (11, 1)
    assert choose(decodes, prefills, preferred=(12, 2)) == (12, 2)
    assert choose(decodes, prefills, preferred=(99,)) == (11, 1)
    crowded = [decode(11), decode(12, running=40)]
    assert choose(crowded, prefills, preferred=(12,)) == (11, 1)
