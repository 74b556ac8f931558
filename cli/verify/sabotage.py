"""The negative control of `baton verify`: a mesh does one thing wrong, and the comparison must notice it.

This file knows only the kinds of sabotage and how a result is judged. The saboteur itself, which damages pages and
breaks products, lives in tests/sabotage and is not shipped: it is loaded only from a checkout."""

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import cli
from cli.verify.checks import Checked, Models
from cli.verify.devices import DevicePart
from mesh.config.config_checks import ConfigError

_CHECKOUT = Path(cli.__file__).resolve().parents[1]
_SABOTEUR = "tests.sabotage.saboteur"


class Sabotage(Enum):
    PAGE = "page"  # one bit of a landed key flips
    FALLBACK = "fallback"  # decode prefills the prompts itself and reports nothing
    BATCH = "batch"  # decode's product depends on the batch
    SCALE = "scale"  # one output of decode's quantized matrices has a scale that is twice as large


@dataclass(frozen=True, slots=True)
class Sabotaged:
    """One cell, clean and sabotaged."""

    clean: Checked
    spoilt: Checked
    noticed: int  # value of the counter that is meant to notice this sabotage
    wanted: int  # how many it must notice at least


Saboteur = Callable[[Sabotage, DevicePart, Models, int], Awaitable[list[Sabotaged]]]  # the last one is the seed


def load_saboteur(checkout: Path = _CHECKOUT) -> Saboteur:
    """ConfigError where Baton was installed without its tests."""
    file = checkout.joinpath(*_SABOTEUR.split(".")).with_suffix(".py")
    if not file.is_file():
        raise ConfigError(
            f"--sabotage needs a checkout of Baton: {file} does not exist; clone the repository and run "
            "`make verify ARGS='--sabotage page'` there"
        )
    saboteur: Saboteur = importlib.import_module(_SABOTEUR).sabotage
    return saboteur
