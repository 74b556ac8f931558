"""A worker's Attachments with what tests do not look at, and the Hello that it sends."""

from typing import Any

from engine.pool.pages import PagePool
from mesh.messages.jobs import Tier
from mesh.messages.reports import Hello, Load, PrefixChange
from mesh.rules import RULES
from mesh.sessions.attach import Attachments

HELLO = Hello(Tier.DECODE, 1, "worker", "a", "print", "m", "0", 4, 64, Load(), PrefixChange(0, (), (), True))


def attachments(network: Any, **more: Any) -> Attachments:
    usual: dict[str, Any] = {
        "gateways": ("gateway",),
        "rules": RULES,
        "hello": HELLO,
        "load": Load,
        "cached": tuple,
        "on_message": lambda session, message: None,
        "on_end": lambda session: None,
        "pages": PagePool(8),
    }
    return Attachments(network, **usual | more)
