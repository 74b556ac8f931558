"""One device's part of a run: the factors of its cells, and the references that their answers are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cli.verify import gpu
from cli.verify.bodies import WAYS, fingerprints, paths
from cli.verify.cells import FACTORS, Factors
from cli.verify.checks import Models
from cli.verify.reference import PAGE_TOKENS, Reference, on_cpu, on_first_gpu
from cli.verify.requests import LONGEST, MOST_TOKENS
from engine.loading.loaded import load_model
from mesh.config.common_config import default_cache_folder

MOST_SLOTS = LONGEST + MOST_TOKENS


@dataclass(frozen=True, slots=True)
class DevicePart:
    factors: Factors
    references: Mapping[str, Reference]  # by way to compute; the owner of the part closes them
    fingerprints: Mapping[str, Mapping[str, str]]  # by path and body
    abreast: int = 1  # cells under way at once
    left_out: tuple[str, ...] = ()  # factors that cannot be checked here, and why


def on_this_cpu(models: Models) -> DevicePart:
    """The CPU's part. It compares the bodies first, so nothing else may compute meanwhile; later one cell runs at a
    time."""
    prints, references = fingerprints(), dict[str, Reference]()
    for way, settings in WAYS.items():
        chosen: dict[str, Any] = {"product_path": "auto", **settings}
        model = load_model(models.model, default_cache_folder(), page_tokens=PAGE_TOKENS, **chosen)
        references[way] = on_cpu(model, most_slots=MOST_SLOTS)
    return DevicePart({**FACTORS["cpu"], "path": paths()}, references, prints)


def on_this_gpu(models: Models) -> DevicePart:
    """The GPU's part; ConfigError when no GPU can be used."""
    here = gpu.look()
    reference = on_first_gpu(here.path, models.model, default_cache_folder(), most_slots=MOST_SLOTS)
    prints = {here.path: {"triton": reference.identity.fingerprint}}
    return DevicePart(here.factors, {here.path: reference}, prints, gpu.ABREAST, here.left_out)
