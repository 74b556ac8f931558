"""A prefill worker without one rule of the hand-off protocol: each mutant replaces the guards of one rule."""

from collections.abc import Callable

from prefill_svc import handoff, prompts
from prefill_svc.prompts import Prompt, PromptPhase

Patch = Callable[[object, str, object], None]  # signature of monkeypatch.setattr: (target, name, value)
Mutant = Callable[[Patch], None]


def one_ready(patch: Patch) -> None:
    """A prompt sends Ready again after each silence, and accepts every Landing that answers one."""

    def may_ask(prompt: Prompt) -> bool:
        return prompt.phase is PromptPhase.QUEUED or (prompt.phase is PromptPhase.ASKED and prompt.answer.over)

    def expects_landing(prompt: Prompt) -> bool:
        return prompt.phase in (PromptPhase.QUEUED, PromptPhase.ASKED)

    queued = prompts.MOVES[PromptPhase.QUEUED] | {PromptPhase.PUSHING}
    patch(handoff, "may_ask", may_ask)
    patch(handoff, "expects_landing", expects_landing)
    patch(prompts, "MOVES", {**prompts.MOVES, PromptPhase.QUEUED: queued})


def requiet(patch: Patch) -> None:
    """Messages for a ticket that this worker does not know stay unanswered."""
    patch(handoff, "answer_unknown", lambda link, ticket, incarnation: None)


MUTANTS: dict[str, Mutant] = {"one_ready": one_ready, "requiet": requiet}
