"""The rows of the next step: chunks of prompts that have landed, and of those that are examined.

Step 4 of a request's life."""

from engine.examining.examinations import Examinations
from engine.step.batch import Remaining, chunks
from engine.step.plan import Piece
from prefill_svc.pages import PrefillPages
from prefill_svc.prompts import Prompts


class PrefillPlanning:
    def __init__(
        self,
        prompts: Prompts,
        pages: PrefillPages,
        examinations: Examinations,
        *,
        page_tokens: int,
        chunk_tokens: int,
        step_tokens: int,
        drafts: bool,
    ) -> None:
        self._prompts, self._pages, self._examinations = prompts, pages, examinations
        self._page_tokens = page_tokens
        self._chunk_tokens = chunk_tokens
        self._step_tokens = step_tokens
        self._drafts = drafts

    def pieces(self) -> tuple[tuple[Piece, ...], tuple[tuple[int, int], ...]]:
        """The most senior first, within the step's budget of tokens; and pages that are copied before."""
        computing = {p.key: p for p in self._prompts if p.computing and p.adapter.ready}
        landed = [(self._prompts.seniority(p), Remaining(p.key, p.total, p.done)) for p in computing.values()]
        waiting = [each for _, each in sorted([*landed, *self._examinations.remaining()], key=lambda pair: pair[0])]
        pieces, copies = list[Piece](), list[tuple[int, int]]()
        for chunk in chunks(waiting, budget=self._step_tokens, chunk=self._chunk_tokens):
            if chunk.key in self._examinations:
                pieces.append(self._examinations.piece(chunk))
                continue
            prompt = computing[chunk.key]
            if chunk.last and prompt.masks is not None and prompt.masks.late:
                continue  # its last rows wait for what its grammar allows; other prompts do not
            copies.extend(prompt.own.copies)
            self._pages.cover(prompt.own, chunk.first, chunk.first + chunk.count)
            sizes = {"page_tokens": self._page_tokens, "bands": self._pages.bands.count}
            pieces.append(prompt.piece(chunk, **sizes, drafts=self._drafts))
        return tuple(pieces), tuple(copies)
