"""The facts about the served models that the API's description states: names, context and vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class DescribedModel(Protocol):
    """One model, or several; a model's assets are one."""

    @property
    def name(self) -> str: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DescribedModels:
    """Several models: a request that one of them takes lies within these bounds."""

    name: str
    context_tokens: int
    vocabulary: int


def described_together(models: Sequence[DescribedModel]) -> DescribedModel:
    return DescribedModels(
        name=", ".join(model.name for model in models),
        context_tokens=max(model.context_tokens for model in models),
        vocabulary=max(model.vocabulary for model in models),
    )
