"""How often the model agrees with its draft: tokens accepted of tokens proposed, at a fixed draft length.

This counts as the engine does (`engine/drafts/acceptance.py`). The first token of an answer comes from prefill. Then
the draft proposes up to `length` tokens per round, and no more than the answer may still grow. The model accepts them
up to the first one that differs from its own choice, which it emits instead, or that ends the answer. As long as
proposals are accepted, the draft has seen exactly what the model emitted: so its choices along the model's answer
decide."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.network import TrainedNetwork
from models.speak import TokenChoice, logits_after

DRAFT_LENGTH = 4


@dataclass(frozen=True, slots=True)
class AcceptanceTally:
    accepted: int = 0
    proposed: int = 0

    def __add__(self, other: "AcceptanceTally") -> "AcceptanceTally":
        return AcceptanceTally(self.accepted + other.accepted, self.proposed + other.proposed)

    @property
    def share(self) -> float:
        return self.accepted / self.proposed if self.proposed else 0.0


def tally(
    model: Sequence[int], draft: Sequence[int], *, end: int, most: int, length: int = DRAFT_LENGTH
) -> AcceptanceTally:
    """Counts for one answer `model` of at most `most` tokens. `draft[i]` is the draft's choice after `model[:i]`."""
    accepted = proposed = 0
    position = 1
    while position < len(model):
        drafts = min(length, most - position - 1)
        agreed = 0
        while agreed < drafts and draft[position + agreed] == model[position + agreed] != end:
            agreed += 1
        accepted, proposed = accepted + agreed, proposed + drafts
        position += agreed + 1
    return AcceptanceTally(accepted, proposed)


def judge(
    draft: TrainedNetwork,
    prompts: Sequence[Sequence[int]],
    emitted: Sequence[Sequence[int]],
    *,
    end: int,
    most: int,
    choice: TokenChoice,
    length: int = DRAFT_LENGTH,
) -> list[AcceptanceTally]:
    """One tally per prompt. The model emitted its answers with the same `choice`, answer i with seed i."""
    out = []
    for seed, (prompt, answer) in enumerate(zip(prompts, emitted, strict=True)):
        logits = logits_after(draft, prompt, answer)
        chosen = choice.tokens(logits, [seed] * len(answer), list(range(len(answer))))
        out.append(tally(answer, chosen, end=end, most=most, length=length))
    return out
