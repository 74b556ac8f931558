"""The factors of cells on this machine's GPU, and what `baton verify` leaves out there and why.

Torch is imported only where there is a GPU. Every worker of a cell takes the first GPU that it sees. NCCL before 2.30
refuses two ranks on one GPU, so for NCCL each tier takes a GPU of its own where the machine has two."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cli.verify.cells import FACTORS, Factors
from engine.cuda import device
from mesh.config.config_checks import ConfigError

TWO_ON_ONE = 23000  # the first NCCL that takes two ranks on one GPU
ABREAST = 3  # cells checked at once: their workers spend most of the time waiting for imports and compilers


@dataclass(frozen=True, slots=True)
class OnGpu:
    path: str
    factors: Factors
    left_out: tuple[str, ...]  # what cannot be checked here, and why


def look() -> OnGpu:
    """Facts about the GPU; ConfigError when no GPU can be used."""
    found = device.find_gpu()
    if found.gpu is None or found.why_not:
        raise ConfigError(f"device: cuda cannot be verified here: {found.why_not}")
    why_not, path = nccl_obstacle(), found.gpu.exact_path
    factors = {
        **FACTORS["cuda"],
        "transport": tuple(name for name in FACTORS["cuda"]["transport"] if name != "nccl" or not why_not),
        "path": tuple(f"{path}:{body}" for body in device.BODIES),
    }
    return OnGpu(path, factors, (f"transport nccl: {why_not}",) if why_not else ())


def nccl_obstacle() -> str:
    """Why NCCL cannot join two workers of this machine; empty when it can."""
    from kvtransfer.nccl_library import Nccl, version

    if why := Nccl().available():
        return why
    if version() >= TWO_ON_ONE or len(visible()) > 1:
        return ""
    return f"NCCL {version()} takes one rank on a GPU; two workers need {TWO_ON_ONE} or a second GPU"


def two_ranks(environment: Mapping[str, str] = os.environ) -> tuple[tuple[str, str, str], ...]:
    """Environment of the workers of a cell over NCCL: (tier, variable, value)."""
    gpus = visible(environment)
    if len(gpus) > 1:
        return ("prefill", _VISIBLE, gpus[0]), ("decode", _VISIBLE, gpus[1])
    return tuple((tier, "NCCL_MULTI_RANK_GPU_ENABLE", "1") for tier in ("prefill", "decode"))


_VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the GPUs that workers may use, as CUDA_VISIBLE_DEVICES spells them."""
    if names := environment.get(_VISIBLE):
        return names.split(",")
    with suppress(ImportError):
        import torch

        return [str(index) for index in range(torch.cuda.device_count())]
    return []
