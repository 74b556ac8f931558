"""A tokenizer of the corpus and a network small enough to train in a second."""

import itertools

import pytest
import torch
from tokenizers import Tokenizer

from models.corpus import texts
from models.network import NetworkShape, TrainedNetwork
from models.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(itertools.islice(texts(1), 600), vocabulary=512)


@pytest.fixture
def small_shape() -> NetworkShape:
    return NetworkShape(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=512, context=512)


@pytest.fixture
def network(small_shape: NetworkShape) -> TrainedNetwork:
    torch.set_num_threads(1)
    return TrainedNetwork(small_shape).initialise(3).eval()
