"""Rows of a keys file: what they give, what is refused and how keys are found."""

import hashlib

import pytest

from gateway.tenants.rows import KeyTable, hash_of, parse_table
from mesh.config.config_checks import ConfigError

ONE, TWO = hash_of("the first key"), hash_of("the second key")


def parsed(*rows: str) -> KeyTable:
    return parse_table("\n".join(rows) + "\n", "keys")


def test_a_row_gives_a_tenant_its_limits() -> None:
    table = parsed(
        "# a comment",
        "",
        f"alice {ONE} tokens_per_minute=600 burst_tokens=50 concurrent=3 priority=-5 priorities=-10..20  # hers",
        f"ops {TWO} operator",
    )
    alice, ops = table.by_key(b"the first key"), table.by_key(b"the second key")
    assert alice is not None and ops is not None and list(table.tenants) == ["alice", "ops"]
    assert (alice.tokens_per_minute, alice.bucket_tokens, alice.concurrent) == (600, 50, 3)
    assert (alice.priority, alice.priorities, alice.operator) == (-5, (-10, 20), False)
    assert (ops.bucket_tokens, ops.concurrent, ops.priorities, ops.operator) == (0, 0, (0, 600), True)


def test_a_tenant_may_have_several_keys_and_one_salt() -> None:
    table = parsed(f"alice {ONE} concurrent=3", f"alice {TWO}")
    assert table.by_key(b"the first key") is table.by_key(b"the second key") is table.tenants["alice"]
    assert table.by_key(b"The first key") is table.by_key(b"") is table.by_key(ONE.encode()) is None


def test_tenants_of_equal_names_and_other_keys_or_equal_keys_and_other_names_have_other_salts() -> None:
    salts = {
        parsed(f"{name} {credential}").tenants[name].salt_key
        for name in ("alice", "bob")
        for credential in (ONE, TWO, "certificate:a", "certificate:b")
    }
    assert len(salts) == 8
    assert parsed(f"alice {ONE} concurrent=3").tenants["alice"].salt_key in salts, "limits change no salt"


def test_hashes_that_begin_alike_are_told_apart() -> None:
    near = "sha256:" + hashlib.sha256(b"the first key").hexdigest()[:60] + "0000"
    table = parsed(f"alice {near}", f"bob {ONE}")
    assert table.by_key(b"the first key") is table.tenants["bob"]


def test_a_certificate_names_a_tenant_and_several_name_none() -> None:
    table = parsed("alice certificate:a.internal", "alice certificate:spiffe://x/a", "bob certificate:b.internal")
    assert table.by_certificate(frozenset({"a.internal", "other"})) is table.tenants["alice"]
    assert table.by_certificate(frozenset({"a.internal", "spiffe://x/a"})) is table.tenants["alice"]
    assert table.by_certificate(frozenset({"a.internal", "b.internal"})) is None
    assert table.by_certificate(frozenset()) is None


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (f"-alice {ONE}", "a name is 1 to 64"),
        (f"{'a' * 65} {ONE}", "a name is 1 to 64"),
        ("alice", "behind the name stands sha256:"),
        ("alice secret-key-in-plain-text", "behind the name stands sha256:"),
        (f"alice {ONE[:-1]}", "behind the name stands sha256:"),
        ("alice certificate:", "behind the name stands sha256:"),
        (f"alice {ONE} tokens_per_minutes=5", "a word behind the credential is no limit; known: tokens_per_minute"),
        (f"alice {ONE} concurrent", "is no limit"),
        (f"alice {ONE} salt_key=x", "is no limit"),
        (f"alice {ONE} name=x", "is no limit"),
        (f"alice {ONE} concurrent=0", "concurrent must be a whole number from 1 to"),
        (f"alice {ONE} tokens_per_minute=6e4", "tokens_per_minute must be a whole number"),
        (f"alice {ONE} tokens_per_minute=٣", "tokens_per_minute must be a whole number"),
        (f"alice {ONE} priority=601", "priority must be a whole number from -600 to 600"),
        (f"alice {ONE} priorities=5", "priorities is a range"),
        (f"alice {ONE} priorities=5..1", "ends before it begins"),
        (f"alice {ONE} priorities=5..x", "priorities must be a whole number"),
        (f"alice {ONE} burst_tokens=5", "burst_tokens needs tokens_per_minute"),
        (f"alice {ONE} concurrent=5 concurrent=6", "concurrent stands there twice"),
        (f"bob {TWO}", "an earlier line has this key"),
        (f"bob {TWO.upper().replace('SHA256', 'sha256')}", "an earlier line has this key"),
        (f"carol {ONE} operator", "the limits of carol stand in its first line"),
        ("bob certificate:c.internal", "an earlier line has this certificate"),
    ],
)
def test_a_wrong_row_is_refused_by_its_line_and_never_repeated(row: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"keys, line 3: ") as refused:
        parsed(f"carol {TWO}", "carol certificate:c.internal", row)
    assert problem in str(refused.value)
    assert "secret-key" not in str(refused.value) and ONE[7:30] not in str(refused.value)
    assert "salt_key" not in repr(parsed(f"carol {TWO}").tenants["carol"])
