"""How often the model agrees with its draft: tokens accepted of tokens proposed, at a fixed draft length.

Counted as the engine counts (engine/acceptance.py,
decode_svc/speculation/speculation.py). The first token of an answer comes from
prefill. Then, in rounds, the draft proposes `length` tokens, as far as the answer may still grow; the model accepts up
to the first that differs from its own choice, which it emits instead, or that would end the answer. While a proposal
can still be accepted the draft has seen what the model emitted, so its choices along the model's own answer decide."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.network import Network
from models.speak import Choice, logits_after

DRAFT_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Tally:
    accepted: int = 0
    proposed: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.accepted + other.accepted, self.proposed + other.proposed)

    @property
    def share(self) -> float:
        return self.accepted / self.proposed if self.proposed else 0.0


def tally(model: Sequence[int], draft: Sequence[int], *, end: int, most: int, length: int = DRAFT_LENGTH) -> Tally:
    """`draft[i]` is what the draft chooses at position i when it has seen `model[:i]`; the answer may have `most`
    tokens."""
    accepted = proposed = 0
    position = 1
    while position < len(model):
        drafts = min(length, most - position - 1)
        agreed = 0
        while agreed < drafts and draft[position + agreed] == model[position + agreed] != end:
            agreed += 1
        accepted, proposed = accepted + agreed, proposed + drafts
        position += agreed + 1
    return Tally(accepted, proposed)


def judge(
    draft: Network,
    prompts: Sequence[Sequence[int]],
    emitted: Sequence[Sequence[int]],
    *,
    end: int,
    most: int,
    choice: Choice,
    length: int = DRAFT_LENGTH,
) -> list[Tally]:
    """One tally per prompt; the model's answers were emitted with the same choice, row i with seed i."""
    out = []
    for seed, (prompt, answer) in enumerate(zip(prompts, emitted, strict=True)):
        logits = logits_after(draft, prompt, answer)
        chosen = choice.tokens(logits, [seed] * len(answer), list(range(len(answer))))
        out.append(tally(answer, chosen, end=end, most=most, length=length))
    return out
