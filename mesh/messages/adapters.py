"""Messages about adapters between a gateway and its workers: what workers have, and orders to load or unload one.

A load has two parts, so that it reaches all workers of a model or none: each reads the folder and reports the content's
hash; only when all have reported the same one does the gateway let the name stand for it. docs/adapters.md has the
picture."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """A name, the content that it stands for, and where the worker found it."""

    name: str  # what clients write into `model`
    digest: str  # hash of the content
    folder: str


@dataclass(frozen=True, slots=True)
class Adapters:
    """Worker to gateway: all its names, whenever one has changed."""

    items: tuple[NamedAdapter, ...]


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """Gateway to worker: read this folder. No name stands for it yet."""

    number: int  # the answer repeats it
    name: str
    folder: str


@dataclass(frozen=True, slots=True)
class AdapterRead:
    """Worker to gateway: the hash of what it has read, or why it cannot."""

    number: int
    digest: str  # empty: it cannot be read
    fault: str  # for the operator; empty: it can


@dataclass(frozen=True, slots=True)
class AssignAdapter:
    """Gateway to worker: from now on the name stands for the content that was read under this number."""

    number: int


@dataclass(frozen=True, slots=True)
class AbandonAdapter:
    """Gateway to worker: no name comes to stand for what was read under this number."""

    number: int


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Gateway to worker: the name is gone. Requests that run go on."""

    name: str
