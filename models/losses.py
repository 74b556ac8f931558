"""What the two stages minimise: the model the corpus itself, the draft its distance from the model."""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.network import Network
from models.packing import Batch


def next_token(network: Network, batch: Batch) -> Tensor:
    """Weighted mean of the cross entropy of what comes next."""
    logits = network(batch.tokens, batch.mask).float()
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    return _mean(losses, batch)


class Distil:
    """Weighted mean of KL(model || draft) over the same tokens."""

    def __init__(self, teacher: Network) -> None:
        self._teacher = teacher.eval()

    def __call__(self, network: Network, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = F.log_softmax(self._teacher(batch.tokens, batch.mask).float(), -1)
        found = F.log_softmax(network(batch.tokens, batch.mask).float(), -1)
        return _mean((wanted.exp() * (wanted - found)).sum(-1).flatten(), batch)


def _mean(losses: Tensor, batch: Batch) -> Tensor:
    weights = batch.weights.flatten()
    return (losses * weights).sum() / weights.sum()
