"""The place of a worker in its mesh: who it is, which gateways it serves, and what it tells them."""

from collections.abc import Callable
from dataclasses import dataclass

from mesh.messages.message import Message
from mesh.messages.reports import Hello, Load, Measures
from mesh.network.interface import Network
from mesh.rules import RULES, Rules
from mesh.sessions.adapter_book import AdapterBook
from mesh.sessions.attach import Attachments
from mesh.sessions.page_reports import PageBook
from mesh.sessions.session import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    network: Network
    hello: Hello  # without address, load and prefix, which change
    gateways: tuple[str, ...]
    metrics: bool = False  # gateways get what this worker measures
    trace_steps: int = 0  # one step in this number is recorded for traces; 0: none
    rules: Rules = RULES

    def attachments(
        self,
        *,
        load: Callable[[], Load],
        cached: Callable[[], tuple[bytes, ...]],
        on_message: Callable[[Session, Message], None],
        on_end: Callable[[Session], None],
        pages: PageBook,
        on_activity: Callable[[], None],
        measures: Callable[[], Measures],
        adapters: AdapterBook,
    ) -> Attachments:
        """The worker's sessions with its gateways, see `Attachments`."""
        return Attachments(
            self.network,
            gateways=self.gateways,
            rules=self.rules,
            hello=self.hello,
            load=load,
            cached=cached,
            on_message=on_message,
            on_end=on_end,
            pages=pages,
            on_activity=on_activity,
            measures=measures if self.metrics else None,
            adapters=adapters,
        )
