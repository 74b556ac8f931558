"""The models of one gateway: the names of each, and what its attached workers can do together.

A model's *root* is its first name. Front doors turn the name that a client wrote into the root; requests, workers,
metrics and logs carry the root, so that no request ever meets a worker of another model
(gateway/sequencing/candidates.py)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.attaching.adapter_names import AdapterNames, ServedAdapter
from gateway.core.interface import ChosenAdapter, ModelFacts
from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.workers.pairs import any_pair
from mesh.messages.jobs import Tier
from mesh.messages.reports import Hello


@dataclass(frozen=True, slots=True)
class ServedModel:
    names: tuple[str, ...]  # what clients may write into `model`; the first is the root
    folder_name: str = ""  # under which workers may present it too
    vocabulary: int = 0  # token ids of its tokenizer here; 0: not known
    context_tokens: int = 0  # tokens of a prompt and its answer, as the gateway serves it; 0: not known
    adapters: tuple[str, ...] = ()  # names of adapters that the configuration has

    @property
    def root(self) -> str:
        return self.names[0]


class ServedModels:
    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = tuple(models)
        self._by_name = {name: model for model in self._models for name in model.names}
        self.roots = tuple(model.root for model in self._models)
        declared = {name: model.root for model in self._models for name in model.adapters}
        self.adapters = AdapterNames(declared, self._by_name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of models, and of adapters behind them."""
        return (*self._by_name, *self.adapters.names())

    def root(self, name: str) -> str:
        """The root of the model with this name, or of the one that an adapter of this name belongs to. KeyError: there
        is none."""
        if name in self._by_name:
            return self._by_name[name].root
        adapter = self.adapters.get(name)
        if adapter is None:
            raise KeyError(name)
        return adapter.root

    def of_worker(self, hello: Hello) -> tuple[str, str]:
        """The root of the model that a worker presents, and why it is refused: one of both is empty. A served name
        counts more than the name of a folder, which several models may share."""
        named = self._by_name.get(hello.model)
        found = [named] if named else [model for model in self._models if model.folder_name == hello.model]
        if len(found) != 1:
            several = ", which is the name of several folders" if found else ""
            return "", f"it has model {hello.model}{several}, served are {', '.join(self._by_name)}"
        (model,) = found
        if model.vocabulary and hello.vocabulary and model.vocabulary != hello.vocabulary:
            theirs, ours = f"{hello.vocabulary} token ids", f"{model.vocabulary} in the gateway's folder"
            return "", f"it has model {hello.model} with {theirs}, and there are {ours}: they are different models"
        if hello.context_tokens < model.context_tokens:
            theirs, ours = f"{hello.context_tokens} tokens of context", f"the gateway serves {model.context_tokens}"
            return "", f"context_tokens: it has {theirs}, and {ours}; set it at the top of the file, for both"
        return model.root, ""


def facts_of(root: str, workers: Workers, local: Local, adapter: ServedAdapter | None = None) -> ModelFacts:
    """The abilities of the attached workers of this model. `adapter`: the one that the name stands for."""
    mine = workers.of(root)
    tiers = {tier: mine.tier(tier) for tier in Tier}
    decodes, prefills = tiers[Tier.DECODE], tiers[Tier.PREFILL]
    alone = local is not Local.NEVER
    able = [[worker.hello.adjusts_logits for worker in tier] for tier in tiers.values()]
    return ModelFacts(
        root=root,
        model_hash=next((worker.hello.model_hash for worker in mine), ""),
        context_tokens=min((worker.hello.context_tokens for worker in mine), default=0),
        largest_pool_tokens=max((w.pool_tokens for w in decodes), default=0),
        adjusts_logits=all(any(tier) or not tier for tier in able),
        healthy=bool(decodes) and (alone or any_pair(prefills, decodes)),
        tiers=numbers(mine),
        adapter=None if adapter is None else ChosenAdapter(adapter.name, adapter.digest),
    )


def numbers(workers: Workers) -> Mapping[str, int]:
    """Number of workers of each tier that take new requests."""
    return {tier.value: len(workers.tier(tier)) for tier in Tier}


def one_or_many(model: "str | ServedModels") -> ServedModels:
    """The models of a gateway; a name alone stands for one model of this name."""
    return model if isinstance(model, ServedModels) else ServedModels([ServedModel((model,))])
