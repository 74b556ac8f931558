"""A device's part of a run: what its cells are made of, and the engines alone that they are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass

from cli.verify import gpu
from cli.verify.alone import PAGE_TOKENS, Alone, on_cpu
from cli.verify.asks import LONGEST, MOST_TOKENS
from cli.verify.bodies import fingerprints, paths
from cli.verify.cells import FACTORS, Factors
from cli.verify.checks import Models
from engine.loaded import load_model
from mesh.config import default_cache_folder

MOST_SLOTS = LONGEST + MOST_TOKENS


@dataclass(frozen=True, slots=True)
class Part:
    factors: Factors
    references: Mapping[str, Alone]  # by path; whoever has the part closes them
    fingerprints: Mapping[str, Mapping[str, str]]  # by path and body
    abreast: int = 1  # cells under way at a time
    left_out: tuple[str, ...] = ()  # what cells could be made of elsewhere, and why not here


def on_this_cpu(models: Models) -> Part:
    """Nobody else may compute meanwhile: bodies are compared first. A cell has the machine to itself, too."""
    prints, references = fingerprints(), dict[str, Alone]()
    for path in prints:
        model = load_model(models.model, default_cache_folder(), product_path=path, page_tokens=PAGE_TOKENS)
        references[path] = on_cpu(model, most_slots=MOST_SLOTS)
    return Part({**FACTORS["cpu"], "path": paths()}, references, prints)


def on_this_gpu(models: Models) -> Part:
    """ConfigError when there is none to be used."""
    here = gpu.look()
    alone = gpu.open_alone(here.path, models.model, default_cache_folder(), most_slots=MOST_SLOTS)
    prints = {here.path: {"triton": alone.identity.fingerprint}}
    return Part(here.factors, {here.path: alone}, prints, gpu.ABREAST, here.left_out)
