"""A decode worker pairs only with prefill workers of its class and layout."""

from dataclasses import replace

from decode_svc.main import pair
from mesh.kv_messages import KvHello

MINE = KvHello(1, "class a", "layout", 4096, "host", 1000, 10, transports=("tcp",))
THEIRS = replace(MINE, incarnation=2, pid=11)


def test_equal_classes_agree_on_a_transport_and_say_why() -> None:
    chosen, why = pair(MINE, THEIRS)
    assert chosen == "tcp" and why


def test_another_class_is_refused_and_both_are_named() -> None:
    chosen, why = pair(MINE, replace(THEIRS, numerics="class b"))
    assert chosen == "" and "class a" in why and "class b" in why


def test_another_layout_is_refused() -> None:
    chosen, why = pair(MINE, replace(THEIRS, layout="another"))
    assert chosen == "" and "layout" in why
