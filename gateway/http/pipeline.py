"""The requests of one connection in their order: one is answered, and those behind it wait."""

from collections import deque

from gateway.http.exchange import Exchange


class RequestPipeline:
    def __init__(self) -> None:
        self.parsed: Exchange | None = None  # the request that is parsed, or was last
        self.running: Exchange | None = None  # the request whose answer is under way
        self.waiting = deque[Exchange]()

    def withdraw(self) -> None:
        """The request that is parsed never becomes whole. Answers to those before it are still owed."""
        withdrawn, self.parsed = self.parsed, None
        if withdrawn is None:
            return
        withdrawn.client_gone()
        if withdrawn is self.running:
            self.running = None
        elif withdrawn in self.waiting:
            self.waiting.remove(withdrawn)

    def client_gone(self) -> None:
        for each in (self.running, self.parsed, *self.waiting):
            if each is not None:
                each.client_gone()
        self.parsed = self.running = None  # these refer to the connection
        self.waiting.clear()
