"""Prompt lookup: the tokens that followed the last few tokens earlier in the text are proposed again.

Step 7 of a request's life, for models without a draft; text that is quoted, edited or listed repeats itself. The index
grows with the text, a few operations per token, and holds only the latest place of each pair and triple of tokens."""

from collections.abc import Sequence

LENGTHS = (3, 2)  # how many last tokens must agree; longer first
TOKENS_PER_CALL = 2048  # a long prompt is indexed over several steps, so that no step waits for it


class Lookup:
    """The index of one request's text, which only ever grows."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # a group of tokens -> index of the token that followed it last
        self._known = 0  # tokens of the text that are in the index

    def drafts(self, text: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may follow. A repetition that reaches the end of the text starts over."""
        end = len(text)
        stop = min(end - 1, self._known + TOKENS_PER_CALL)  # the group at the end of the text is looked up
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
