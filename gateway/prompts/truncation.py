"""Cuts a prompt that is longer than its client wants, at its beginning or at its end.

Step 1 of a request's life. The special tokens around a text stay: a prompt without them is another one to the model."""

from dataclasses import dataclass, replace

from gateway.prompts.assets import Assets
from gateway.prompts.prompt import encode_text
from gateway.text.mark_tokens import stands_open
from gateway.text.tool_calls import AnswerFormat
from mesh.errors import InvalidRequest

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Truncation:
    tokens: int  # most tokens of the prompt
    keep_end: bool = True  # False: the beginning stays instead

    def cut(self, ids: Ids, around: int = 0) -> Ids:
        return ids[self.kept(len(ids), around)]

    def kept(self, count: int, around: int = 0) -> slice:
        """The part of `count` ids that stays. `around`: tokens that the prompt has besides these."""
        room = max(0, self.tokens - around)
        return slice(max(0, count - room), None) if self.keep_end else slice(room)


def truncation_of(most: int | None, *, keep_end: bool, context: int, answer: int, field: str) -> Truncation | None:
    """`most`: tokens of the prompt; -1: as many as the context holds beside the answer; None: no cut."""
    if most is None:
        return None
    if most < 1 and most != -1:
        raise InvalidRequest(field, f"{field} must be at least 1, or -1, not {most}")
    return Truncation(most if most > 0 else max(1, context - answer), keep_end=keep_end)


async def encode_cut(assets: Assets, text: str, cut: Truncation | None, *, field: str, special: bool) -> Ids:
    ids = await encode_text(assets, text, field=field, special=special, cut=cut is not None)
    if cut is None or len(ids) <= cut.tokens:
        return ids
    plain = await encode_text(assets, text, field=field, special=False, cut=True) if special else ids
    around = len(ids) - len(plain)
    starts = [start for start in range(around + 1) if ids[start : start + len(plain)] == plain]
    if not starts or around >= cut.tokens:
        return cut.cut(ids)
    return ids[: starts[0]] + cut.cut(plain, around) + ids[starts[0] + len(plain) :]


def cut_chat(assets: Assets, cut: Truncation | None, ids: Ids, reading: AnswerFormat) -> tuple[Ids, AnswerFormat]:
    """The prompt of a chat, cut, and how its answer is read: a mark that is cut off has opened no reasoning."""
    if cut is None or len(ids) <= cut.tokens:
        return ids, reading
    kept, marks = cut.cut(ids), assets.reasoning_marks
    if not reading.reasoning_begun or marks is None:
        return kept, reading
    return kept, replace(reading, reasoning_begun=cut.keep_end and stands_open(kept, marks.begin, marks.end))
