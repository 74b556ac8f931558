"""Prompt lookup: what followed the last few tokens where they stood before is proposed again.

For models without a draft; text that is quoted, edited or listed repeats itself. The index grows with the text, a few
operations per token, and holds only where a pair or triple of tokens stood last."""

from collections.abc import Sequence

LENGTHS = (3, 2)  # tokens that must agree; longer first
TOKENS_PER_CALL = 2048  # a long prompt is taken in over several steps, so that no step waits for it


class Lookup:
    """Over one request's text, which only ever grows."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # the tokens -> index of what followed them last
        self._known = 0  # how many tokens of the text were taken in

    def drafts(self, text: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may follow; a repetition that reaches the end goes round."""
        end = len(text)
        stop = min(end - 1, self._known + TOKENS_PER_CALL)  # what ends with the last token is what is looked up
        for last in range(self._known, stop):
            for length in LENGTHS:
                if last + 1 >= length:
                    self._after[tuple(text[last + 1 - length : last + 1])] = last + 1
        self._known = max(self._known, stop)
        if self._known < end - 1:
            return ()
        for length in LENGTHS:
            begin = self._after.get(tuple(text[end - length : end])) if end >= length else None
            if begin is not None:
                return tuple(text[begin + i % (end - begin)] for i in range(most))
        return ()
