"""What a decode worker has counted, as those who check a mesh read it."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from decode_svc.account import Account
from engine.pages import PagePool


def account(**receivers: Counter[str]) -> Account:
    had: Any = SimpleNamespace(
        whole=3, admitted=5, bytes_landed=1 << 40, steps=7, largest_batch=2, drafted=9, accepted=4
    )
    behind: Any = {name: SimpleNamespace(refused=refused) for name, refused in receivers.items()}
    return Account({}, PagePool(8), landings=had, planning=had, speculation=had, receivers=behind)


def test_connections_that_came_to_nothing_are_told_by_transport_and_reason() -> None:
    counts = account(nccl=Counter(gone=2, late=1), tcp=Counter()).counts()
    assert {name: count for name, count in counts.items() if name.startswith("refused")} == {
        "refused_nccl_gone": 2,
        "refused_nccl_late": 1,
    }


def test_admissions_are_told_by_who_prefilled_them_and_pages_by_their_state() -> None:
    mine = account()
    mine.admitted_local = 6
    counts = mine.counts()
    assert (counts["admitted_remote"], counts["admitted_patched"], counts["admitted_local"]) == (3, 2, 6)
    assert sum(count for name, count in counts.items() if name.startswith("pages_")) == counts["pages_free"] == 8


def test_the_load_names_the_whole_pool() -> None:
    assert (account().load().free_pages, account().load().total_pages) == (8, 8)
