"""The assets of every model of a gateway, by the names that clients write.

A front door takes a `ModelAssets`: for each request it looks up the tokenizer, template and defaults of that request's
model. The assets of a single model are one too, for gateways that serve no other."""

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.prompts.assets import Assets


class ModelAssets(Protocol):
    def of(self, name: str) -> Assets:
        """The assets of the model with this name, which gateway/validation/validate.py has found among the served
        ones."""


class AssetsByName:
    def __init__(self, assets: Mapping[str, Assets]) -> None:
        """`assets`: those of each name; names of one model share them."""
        self._assets = dict(assets)
        self._root: Callable[[str], str] = lambda name: name

    def resolve_by(self, root: Callable[[str], str]) -> None:
        """Other names, such as those of adapters, have the assets of the model that `root` finds for them."""
        self._root = root

    def of(self, name: str) -> Assets:
        return self._assets[name if name in self._assets else self._root(name)]
