"""Logits that transformers computes for a folder, in 32 bits and in 64. Those of Baton are held against them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from engine.model.weights import Floats

NEAR = 1e-4


def theirs(folder: Path, text: list[int], dtype: torch.dtype = torch.float32) -> Floats:
    """The logits of a text."""
    experts: dict[str, Any] = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", **experts
    ).eval()
    with torch.no_grad():
        logits: Floats = model(torch.tensor([text])).logits[0].numpy()
    return logits


def distance(ours: Floats, others: Floats) -> float:
    return float(np.abs(ours - others).max())


def near(ours: Floats, folder: Path, text: list[int]) -> bool:
    """True within 1e-4 of the logits of transformers. Where its 32 bits are coarse themselves, its 64 bits decide."""
    if distance(ours, theirs(folder, text)) <= NEAR:
        return True
    return distance(ours, theirs(folder, text, torch.float64)) <= NEAR
