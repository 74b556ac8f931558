"""Reads the beginning of an answer, while it streams, until its reasoning is over or the answer turns out to have none.

gateway/text/answer_parser.py reads what follows. White space around the marks belongs to neither part."""

from gateway.text.formats import ReasoningFormat
from gateway.text.parsed import MAX_SPACE, SPACE, open_tail


class ReasoningReader:
    def __init__(self, format: ReasoningFormat, *, begun: bool) -> None:
        """`begun`: the prompt has opened the reasoning."""
        self._format, self._strip = format, begun
        self.begun = begun
        self.over = False  # what follows is text or calls

    def read(self, rest: str, *, final: bool = False) -> tuple[str, str]:
        """The reasoning that leaves, and what of `rest` is not used yet. `final`: nothing follows."""
        if not self.begun:
            body = rest.lstrip(SPACE)
            if not body.startswith(self._format.begin):
                may_begin = len(rest) - len(body) <= MAX_SPACE and self._format.begin.startswith(body)
                self.over = not may_begin
                return "", rest
            rest = body[len(self._format.begin) :]
            self.begun = True
            self._strip = True
        if self._strip:
            rest = rest.lstrip(SPACE)
            self._strip = not rest
        inside, mark, behind = rest.partition(self._format.end)
        if mark:
            self.over = True
            return inside.rstrip(SPACE), behind
        held = 0 if final else open_tail(inside, self._format.end)
        bare = inside[: len(inside) - held]
        space = 0 if final else len(bare) - len(bare.rstrip(SPACE))
        held += space if space <= MAX_SPACE else 0
        return inside[: len(inside) - held], inside[len(inside) - held :]
