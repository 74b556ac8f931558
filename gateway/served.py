"""The models of one gateway: the names of each, and what its attached workers can do together.

A model's *root* is its first name. Front doors turn the name that a client wrote into the root; requests, workers,
metrics and logs carry the root, so that no request ever meets a worker of another model (gateway/candidates.py)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.core import ModelFacts
from gateway.router import Local
from gateway.workers import Workers
from mesh.messages import Hello, Tier


@dataclass(frozen=True, slots=True)
class ServedModel:
    names: tuple[str, ...]  # what clients may write into `model`; the first is the root
    folder_name: str = ""  # under which workers may present it too

    @property
    def root(self) -> str:
        return self.names[0]

    def is_presented_by(self, hello: Hello) -> bool:
        return hello.model in (*self.names, self.folder_name)


class ServedModels:
    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = tuple(models)
        self._roots = {name: model.root for model in self._models for name in model.names}
        self.roots = tuple(model.root for model in self._models)
        self.names = tuple(self._roots)

    def root(self, name: str) -> str:
        """The root of the model with this name. KeyError: no model has it."""
        return self._roots[name]

    def of_worker(self, hello: Hello) -> str | None:
        """The root of the model that a worker presents; None: this gateway does not serve it. A served name counts
        more than a folder's."""
        if hello.model in self._roots:
            return self._roots[hello.model]
        return next((model.root for model in self._models if model.is_presented_by(hello)), None)


def facts_of(root: str, workers: Workers, local: Local) -> ModelFacts:
    """The abilities of the attached workers of this model."""
    mine = workers.of(root)
    tiers = {tier: mine.tier(tier) for tier in Tier}
    decodes, prefills = tiers[Tier.DECODE], tiers[Tier.PREFILL]
    alone = local is not Local.NEVER
    able = [[worker.hello.adjusts_logits for worker in tier] for tier in tiers.values()]
    return ModelFacts(
        root=root,
        model_hash=next((worker.hello.model_hash for worker in mine), ""),
        context_tokens=min((worker.hello.context_tokens for worker in mine), default=0),
        largest_pool_tokens=max((w.load.total_pages * w.hello.page_tokens for w in decodes), default=0),
        adjusts_logits=all(any(tier) or not tier for tier in able),
        healthy=any(alone or any(p.numerics == d.numerics for p in prefills) for d in decodes),
        tiers=numbers(mine),
    )


def numbers(workers: Workers) -> Mapping[str, int]:
    """Number of workers of each tier that take new requests."""
    return {tier.value: len(workers.tier(tier)) for tier in Tier}


def one_or_many(model: "str | ServedModels") -> ServedModels:
    """The models of a gateway; a name alone stands for one model of this name."""
    return model if isinstance(model, ServedModels) else ServedModels([ServedModel((model,))])
