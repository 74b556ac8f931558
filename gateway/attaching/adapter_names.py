"""The adapters that clients can choose, by name: what each stands for, as the attached workers report it.

Workers know which content a name stands for, and a gateway learns it from them. While they differ, as in the middle of
a load, the name stands for the content that it stood for before, until no worker has that any more. So a client never
gets two contents in turn."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.workers.attached import AttachedWorker
from mesh.messages.adapters import NamedAdapter

log = logging.getLogger("baton.gateway")


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    root: str  # the model that it belongs to
    name: str
    digest: str  # hash of its content; empty: no worker has it yet
    folder: str = ""


class AdapterNames:
    def __init__(self, declared: Mapping[str, str], taken: Iterable[str]) -> None:
        """`declared`: roots by the names that the configuration has; `taken`: names of models."""
        self._declared = {name: ServedAdapter(root, name, "") for name, root in declared.items()}
        self._taken = frozenset(taken)
        self._served = dict[str, ServedAdapter]()
        self._unloaded = set[str]()  # names that an operator unloaded here: a worker that starts again unloads them too

    def names(self) -> tuple[str, ...]:
        waiting = (name for name in self._declared if name not in self._served and name not in self._unloaded)
        return (*self._served, *waiting)

    def get(self, name: str) -> ServedAdapter | None:
        if name in self._served:
            return self._served[name]
        return None if name in self._unloaded else self._declared.get(name)

    def of(self, root: str) -> list[ServedAdapter]:
        return [each for each in self._served.values() if each.root == root]

    def unloaded(self, name: str) -> None:
        """From now on no request can choose it, whatever workers report."""
        self._unloaded.add(name)
        self._served.pop(name, None)

    def loaded(self, name: str) -> None:
        self._unloaded.discard(name)

    def is_unloaded(self, name: str) -> bool:
        return name in self._unloaded

    def problem(self, name: str, root: str) -> str:
        """Why no adapter of this model can have the name; empty: one can."""
        if name in self._taken:
            return f"{name!r} is the name of a model"
        other = self.get(name)
        return f"{name!r} is an adapter of {other.root!r}" if other is not None and other.root != root else ""

    def update(self, root: str, workers: Iterable[AttachedWorker]) -> None:
        """The workers of this model report other adapters than before, or others have become attached."""
        found = dict[str, list[NamedAdapter]]()
        for worker in workers:
            for adapter in worker.adapters.values():
                found.setdefault(adapter.name, []).append(adapter)
        for name, offered in found.items():
            if name in self._unloaded:
                continue
            before = self._served.get(name)
            if problem := self.problem(name, root):
                log.error("an adapter of model %s is not served: %s", root, problem)
            elif before is None or all(each.digest != before.digest for each in offered):
                newest = offered[-1]
                self._served[name] = ServedAdapter(root, name, newest.digest, newest.folder)
                log.info("adapter %r of %s is %s", name, root, newest.digest[:16])
        for name in [each.name for each in self.of(root) if each.name not in found]:
            del self._served[name]
