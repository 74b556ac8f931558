"""The losses of the two stages: the model learns the corpus, the draft learns the model's distribution."""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.network import TrainedNetwork
from models.packing import TextBatch


def next_token(network: TrainedNetwork, batch: TextBatch) -> Tensor:
    """The weighted mean of the next tokens' cross entropy."""
    logits = network(batch.tokens, batch.mask).float()
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    return _mean(losses, batch)


class Distil:
    """The weighted mean of KL(model || draft) over the same tokens."""

    def __init__(self, teacher: TrainedNetwork) -> None:
        self._teacher = teacher.eval()

    def __call__(self, network: TrainedNetwork, batch: TextBatch) -> Tensor:
        with torch.no_grad():
            wanted = F.log_softmax(self._teacher(batch.tokens, batch.mask).float(), -1)
        found = F.log_softmax(network(batch.tokens, batch.mask).float(), -1)
        return _mean((wanted.exp() * (wanted - found)).sum(-1).flatten(), batch)


def _mean(losses: Tensor, batch: TextBatch) -> Tensor:
    weights = batch.weights.flatten()
    return (losses * weights).sum() / weights.sum()
