"""Chooses the product path of a model, and its body. BATON_PRODUCT_PATH wins over the setting.

The choice is made once, when weights are opened, so every program that computes (worker, verify, doctor, benchmarks)
obeys the same variable. A path decides bits. A body is a set of instructions that carries a path out; it
changes no bit."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import baton_kernels
from engine.formats.errors import ModelError

VARIABLE = "BATON_PRODUCT_PATH"
AUTO, AUTO_AMX = "auto", "auto-amx"  # the latter takes `amx` where the former takes `pairs`


@dataclass(frozen=True, slots=True)
class PathChoice:
    path: str  # product path of attention, pages and dense matrices
    recipe: str  # "stored": matrices as the checkpoint has them; "dense": quantized ones widened; int8 | int4: rounded


def choose_path(
    product_path: str,
    dtype: str,
    quantize: str = "",
    *,
    stored: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> PathChoice:
    """The path for a checkpoint of this dtype. If the variable names a body, kernels use it from now on. Integers have
    `pairs` for attention and pages, which is quick on every machine, or `amx`. `stored`: the checkpoint is quantized; a
    path by name then widens it, the automatic ones do not."""
    place, field, wanted, body = "configuration", "product_path", product_path, ""
    if variable := environment.get(VARIABLE):
        place, field = "environment", VARIABLE
        wanted, _, body = variable.partition(":")
    chosen_here = wanted in (AUTO, AUTO_AMX)
    if quantize and not chosen_here:
        problem = f"{wanted!r} keeps the weights as they are, and `quantize` rounds them to {quantize}"
        raise ModelError(place, field, problem, f"Set {field} to 'auto' or 'auto-amx', or leave `quantize` out.")
    integers = bool(quantize) or (stored and chosen_here)
    path = _automatic(wanted, "bf16") if integers else _path(place, field, wanted, "bf16" if stored else dtype)
    if body:
        _force(body, "integers" if integers else path)
    return PathChoice(path, quantize or ("stored" if integers or not stored else "dense"))


def _automatic(wanted: str, dtype: str) -> str:
    """Returns the path that all machines share, unless tiles are asked for by name."""
    return "fp32" if dtype != "bf16" else "amx" if wanted == AUTO_AMX else "pairs"


def _path(place: str, field: str, wanted: str, dtype: str) -> str:
    if wanted in (AUTO, AUTO_AMX):
        return _automatic(wanted, dtype)
    if wanted not in baton_kernels.PATHS:
        known = ", ".join((AUTO, AUTO_AMX, *baton_kernels.PATHS))
        raise ModelError(place, field, f"{wanted!r} is unknown", f"Use one of {known}.")
    if wanted != "fp32" and dtype != "bf16":
        problem = f"{wanted!r} computes with bf16 weights and this checkpoint is {dtype}"
        raise ModelError(place, field, problem, f"Set {field} to 'auto' or 'fp32'.")
    return wanted


def _force(body: str, path: str) -> None:
    usable = baton_kernels.product_bodies(path)
    if body in baton_kernels.not_built():
        problem = f"the kernels were built without the body {body!r}, which this processor does not need"
        raise ModelError("environment", VARIABLE, problem, "Run `python -m baton_kernels.build`, which builds all.")
    if body not in usable:
        known = ", ".join(f"{path}:{name}" for name in usable)
        raise ModelError(
            "environment", VARIABLE, f"this machine has no body {body!r} for {path!r}", f"Use one of {known}."
        )
    baton_kernels.choose(body)
