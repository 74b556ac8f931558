"""A decode worker pairs only with prefill workers of its class and layout."""

from dataclasses import replace

from decode_svc.main import pair
from mesh.messages.kv_messages import KvHello
from mesh.messages.page_shape import opaque_pages

MINE = KvHello(1, "class a", opaque_pages((2, 2048), content="model a"), "host", 1000, 10, transports=("tcp",))
THEIRS = replace(MINE, incarnation=2, pid=11)


def test_equal_classes_agree_on_a_transport_and_say_why() -> None:
    chosen, why = pair(MINE, THEIRS)
    assert chosen == "tcp" and why


def test_another_class_is_refused_and_both_are_named() -> None:
    chosen, why = pair(MINE, replace(THEIRS, numerics="class b"))
    assert chosen == "" and "class a" in why and "class b" in why


def test_pages_of_another_model_are_refused() -> None:
    chosen, why = pair(MINE, replace(THEIRS, shape=opaque_pages((2, 2048), content="model b")))
    assert chosen == "" and "model a" in why and "model b" in why
