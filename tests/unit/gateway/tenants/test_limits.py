"""What one tenant may use: a bucket of tokens, choices that run, priorities."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.admission import AHEAD_TOKENS, OPEN, UNKNOWN, TenantAdmission, plain_salt
from gateway.tenants.credentials import CallerCredentials
from gateway.tenants.keys import KeyFile
from gateway.tenants.limits import TenantUse
from gateway.tenants.rows import Tenant
from gateway.tenants.tenants import MOST_SHOWN, OTHERS, Tenants, Work
from mesh.errors import Forbidden, Internal, InvalidRequest, RateLimited, Unauthenticated
from tests.unit.gateway.tenants.keys_files import SetClock, key_of, write_keys


def tenant(clock: SetClock, **limits: Any) -> TenantUse:
    return TenantUse(Tenant("t", **limits, salt_key=b"k"), clock())


def admitted(use: TenantUse, clock: SetClock) -> TenantAdmission:
    admission = TenantAdmission(use, clock)
    admission.starts(spends=True)
    return admission


def run(use: TenantUse, clock: SetClock, *, prompt: int = 10, tokens: int = 0, choices: int = 1) -> TenantAdmission:
    """A request that has begun, each choice with so many tokens."""
    admission = admitted(use, clock)
    try:
        admission.adds(prompt_tokens=prompt, choices=choices, max_tokens=max(tokens, 1))
    except RateLimited:
        admission.close()
        raise
    admission.begins()
    for _ in range(tokens * choices):
        admission.spends()
    return admission


def test_the_wait_follows_from_the_bucket() -> None:
    clock = SetClock()
    use = tenant(clock, tokens_per_minute=600, burst_tokens=100)
    run(use, clock, prompt=60, tokens=70).close()
    with pytest.raises(RateLimited, match=r"600 tokens a minute; the next request may begin in 3\.1 s") as refused:
        admitted(use, clock)
    assert refused.value.retry_after_seconds == pytest.approx(3.1)  # a debt of 30, and one more, at 10 a second
    clock.now += 3.0
    with pytest.raises(RateLimited):
        admitted(use, clock)
    clock.now += 0.1
    admitted(use, clock).close()
    assert (use.prompt_tokens, use.generated_tokens, use.refused["tokens"]) == (60, 70, 2)


def test_what_is_refused_costs_nothing() -> None:
    clock = SetClock()
    use = tenant(clock, tokens_per_minute=60, concurrent=2)
    first = run(use, clock, prompt=100)
    before = use.level, use.aside, use.choices
    with pytest.raises(RateLimited):
        admitted(use, clock)
    assert (use.level, use.aside, use.choices) == before
    first.close()
    assert (use.aside, use.choices) == (0, 0)


def test_a_prompt_that_no_worker_took_is_given_back_and_one_that_began_is_not() -> None:
    clock = SetClock()
    use = tenant(clock, tokens_per_minute=600)
    waiting = admitted(use, clock)
    waiting.adds(prompt_tokens=300, choices=1, max_tokens=5)
    assert use.left(clock()) == 600 - 300 - 5
    waiting.close()
    waiting.close()
    assert use.left(clock()) == 600 and use.prompt_tokens == 0
    cancelled = run(use, clock, prompt=300, tokens=5)
    cancelled.begins()  # a second attempt costs nothing more
    cancelled.close()
    assert use.left(clock()) == 600 - 305


def test_many_requests_cannot_begin_on_the_last_tokens_together() -> None:
    clock = SetClock()
    use = tenant(clock, tokens_per_minute=1000)
    running = list[TenantAdmission]()
    with pytest.raises(RateLimited):
        for _ in range(100):
            running.append(admitted(use, clock))
            running[-1].adds(prompt_tokens=1, choices=1, max_tokens=8000)
    assert len(running) == -(-1000 // (AHEAD_TOKENS + 1)), "each has put some tokens aside"
    for each in running:
        each.close()
    assert use.aside == 0


def test_requests_that_were_let_in_together_are_looked_at_again_when_their_prompts_are_known() -> None:
    clock = SetClock()
    use = tenant(clock, tokens_per_minute=1000)
    entered = [admitted(use, clock) for _ in range(50)]
    with pytest.raises(RateLimited):
        for each in entered:
            each.adds(prompt_tokens=100, choices=1, max_tokens=8000)
    assert use.aside < 1000 + 100 + AHEAD_TOKENS


def test_one_request_may_exceed_the_bucket_with_all_its_prompts_and_pays_later() -> None:
    clock = SetClock()
    use = tenant(clock, tokens_per_minute=60)
    large = admitted(use, clock)
    for _ in range(5):
        large.adds(prompt_tokens=100, choices=1, max_tokens=10)
    large.begins()
    large.close()
    clock.now += 7 * 60
    with pytest.raises(RateLimited):
        admitted(use, clock)
    clock.now += 60
    admitted(use, clock)


def test_choices_count_with_n_and_prompts_and_a_request_counts_while_it_is_read() -> None:
    clock = SetClock()
    use = tenant(clock, concurrent=4)
    first = admitted(use, clock)
    assert use.choices == 1
    first.adds(prompt_tokens=1, choices=2, max_tokens=1)
    first.adds(prompt_tokens=1, choices=1, max_tokens=1)
    assert use.choices == 3
    second = admitted(use, clock)
    with pytest.raises(RateLimited, match="may run 4 choices at a time, which this request would exceed") as later:
        second.adds(prompt_tokens=1, choices=2, max_tokens=1)
    with pytest.raises(RateLimited):
        admitted(use, clock)
    assert later.value.retry_after_seconds == 1.0
    first.close()
    second.adds(prompt_tokens=1, choices=4, max_tokens=1)
    second.close()
    with pytest.raises(RateLimited, match=r"with its 5 .* ask for fewer") as never:
        admitted(use, clock).adds(prompt_tokens=1, choices=5, max_tokens=1)
    assert never.value.retry_after_seconds is None, "trying again cannot help"


def test_examinations_and_complete_answers_count_as_one() -> None:
    clock = SetClock()
    use = tenant(clock, concurrent=1)
    admission = admitted(use, clock)
    admission.adds(prompt_tokens=5, choices=0, max_tokens=0)
    assert use.choices == 1
    admission.close()
    assert use.choices == 0


@pytest.mark.parametrize(
    ("own", "expected"), [(0, 30), (5, 35), (-10, 20), (20, 50), (21, None), (-11, None), (600, None)]
)
def test_a_client_moves_its_priority_within_the_range_of_its_row(own: int, expected: int | None) -> None:
    clock = SetClock()
    admission = TenantAdmission(tenant(clock, priority=30, priorities=(-10, 20)), clock)
    if expected is None:
        with pytest.raises(InvalidRequest, match="prio must be 0, or from -10 to 20 for t, not") as refused:
            admission.priority(own, "prio")
        assert refused.value.field == "prio"
    else:
        assert admission.priority(own, "prio") == expected


def test_a_priority_is_never_worth_more_than_600_seconds() -> None:
    clock = SetClock()
    use = tenant(clock, priority=-550, priorities=(-600, 600))
    assert TenantAdmission(use, clock).priority(-600, "priority") == -600
    assert TenantAdmission(tenant(clock, priority=10, priorities=(5, 600)), clock).priority(0, "priority") == 10


def test_salts_differ_between_tenants_and_texts_and_no_text_makes_another_tenants() -> None:
    clock = SetClock()
    uses = [TenantUse(Tenant(name, salt_key=name.encode()), 0.0) for name in ("a", "b")]
    texts = ["", "x", "y", "a", "b"]
    salts = [TenantAdmission(use, clock).salt(text) for use in uses for text in texts]
    assert len(set(salts)) == len(salts) and {len(salt) for salt in salts} == {16}
    assert not set(salts) & {plain_salt(text) for text in texts}
    assert OPEN.salt("x") == plain_salt("x") and OPEN.salt("") == b""


def test_a_request_that_no_door_has_admitted_runs_nothing() -> None:
    for call in (lambda: UNKNOWN.salt(""), lambda: UNKNOWN.adds(prompt_tokens=1, choices=1, max_tokens=1)):
        with pytest.raises(Internal):
            call()


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "spend", "close", "wait"]), st.integers(0, 400)), min_size=1, max_size=80
)


@given(STEPS)
def test_whatever_is_begun_cancelled_or_left_running_is_paid_for_by_bucket_and_rate(steps: list[Step]) -> None:
    clock = SetClock(0.0)
    use = tenant(clock, tokens_per_minute=600, burst_tokens=500, concurrent=3)
    running = list[TenantAdmission]()
    for what, number in steps:
        if what == "begin":
            try:
                running.append(run(use, clock, prompt=number))
            except RateLimited:
                pass
        elif what == "spend" and running:
            for _ in range(number):
                running[number % len(running)].spends()
        elif what == "close" and running:
            running.pop(number % len(running)).close()
        elif what == "wait":
            clock.now += number / 10
        assert use.left(clock()) <= 500
        assert use.aside >= 0 and use.choices == len(running) <= 3
    for each in running:
        each.close()
    assert (use.aside, use.choices) == (0, 0)
    spent = use.prompt_tokens + use.generated_tokens
    assert use.level <= 500 + clock.now * 10 - spent + 1e-6


def test_a_changed_row_keeps_a_debt_and_running_choices() -> None:
    clock = SetClock()
    use = tenant(clock, tokens_per_minute=60)
    running = run(use, clock, prompt=200)
    use.adopt(Tenant("t", tokens_per_minute=6000), clock())
    assert use.level == 60 - 200 and use.choices == 1
    running.close()
    free = tenant(clock)
    run(free, clock, prompt=10_000).close()
    free.adopt(Tenant("t", tokens_per_minute=60), clock())
    assert free.level == 60, "what was free is no debt"
    free.adopt(Tenant("t", tokens_per_minute=6), clock())
    assert free.level == 6


def entering(tenants: Tenants, name: str, work: Work = Work.GENERATES) -> TenantAdmission:
    return tenants.enter(CallerCredentials(key_of(name).encode()), work)


async def test_a_reload_keeps_what_runs_and_forgets_who_is_gone(tmp_path: Path) -> None:
    file, clock = write_keys(tmp_path / "keys", alice="concurrent=1", bob=""), SetClock()
    keys = KeyFile(file)
    tenants = Tenants(keys, clock)
    running = entering(tenants, "alice")
    write_keys(file, alice="concurrent=2", carol="")
    await keys.look()
    await keys.look()
    second = entering(tenants, "alice")
    with pytest.raises(RateLimited):
        entering(tenants, "alice")
    with pytest.raises(Unauthenticated):
        entering(tenants, "bob")
    running.close()
    second.close()
    entering(tenants, "alice").close()


def test_only_operators_look_at_operations(tmp_path: Path) -> None:
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", alice="", ops="operator")), SetClock())
    entering(tenants, "ops", Work.OPERATES)
    with pytest.raises(Forbidden, match="the key of alice is no operator's"):
        entering(tenants, "alice", Work.OPERATES)


def test_looking_and_tokenizing_need_no_tokens(tmp_path: Path) -> None:
    limits = "tokens_per_minute=1 concurrent=1"
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", alice=limits)), SetClock())
    spender = entering(tenants, "alice")
    spender.adds(prompt_tokens=50, choices=1, max_tokens=1)
    spender.begins()
    entering(tenants, "alice", Work.LOOKS)
    with pytest.raises(RateLimited, match="may run 1 choices"):
        entering(tenants, "alice", Work.COMPUTES)
    spender.close()
    entering(tenants, "alice", Work.COMPUTES).close()
    with pytest.raises(RateLimited, match="has spent"):
        entering(tenants, "alice")


async def test_metrics_name_a_hundred_tenants(tmp_path: Path) -> None:
    names = {f"tenant-{number:03}": "" for number in range(MOST_SHOWN + 20)}
    file = write_keys(tmp_path / "keys", **names)
    keys = KeyFile(file)
    tenants = Tenants(keys, SetClock())
    for name in names:
        entering(tenants, name).close()
    shown = dict(tenants.uses())
    assert list(shown) == [*list(names)[:MOST_SHOWN], OTHERS] and len(shown[OTHERS]) == 20
    write_keys(file, **dict(list(names.items())[:1]))
    await keys.look()
    await keys.look()
    left = dict(tenants.uses())
    assert len(left) == 2 and len(left[OTHERS]) == MOST_SHOWN + 19, "counters never fall"
