"""Sampling on the device draws what the CPU sampler draws: the same noise, the same filters, ties to the lowest id."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import baton_kernels as bk
from baton_kernels import reference
from baton_kernels.triton import noise
from baton_kernels.triton.cases import sampling as cases
from baton_kernels.triton.launch import Launch
from baton_kernels.triton.sampling import SHAPES


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("settings", cases.SETTINGS, ids=str)
def test_tokens_and_logprobs_are_those_of_the_cpu_sampler(shape, settings, rng):
    logits = (rng.standard_normal(shape) * 3).astype(np.float32)
    n_top = min(5, shape[1])
    drawn = cases.draw(logits, "cpu", n_top=n_top, **settings)
    expected = bk.sample(
        logits, *cases.settings(shape[0], **settings).values(), n_top=np.full(shape[0], n_top, np.int32)
    )
    assert np.array_equal(drawn.tokens, expected.tokens)
    assert np.allclose(drawn.logprobs, reference.logprobs(logits)[np.arange(shape[0]), drawn.tokens], atol=2e-5)
    assert np.array_equal(drawn.top_ids, expected.top_ids)
    assert np.allclose(drawn.top_logprobs, expected.top_logprobs, atol=2e-5)


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.01}, {"top_k": 30, "top_p": 0.09}]
)
def test_equal_logits_go_to_the_lowest_ids(settings):
    tokens = cases.draw(np.zeros((12, 300), np.float32), "cpu", **settings).tokens
    assert tokens.max() <= 2 and (settings.get("top_k") != 3 or set(tokens.tolist()) == {0, 1, 2})


def test_masked_tokens_are_never_drawn_and_leave_logprobs_raw(rng):
    logits = rng.standard_normal((6, 100)).astype(np.float32)
    best = logits.argmax(1)
    allowed = np.full((6, 4), -1, np.int32)
    allowed[np.arange(6), best // 32] &= ~(np.int32(1) << (best % 32)).astype(np.int32)
    for settings in ({"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.3}):
        drawn = cases.draw(logits, "cpu", n_top=1, allowed=allowed, **settings)
        assert (drawn.tokens != best).all()
        assert np.allclose(drawn.logprobs, reference.logprobs(logits)[np.arange(6), drawn.tokens], atol=1e-5)
        assert np.array_equal(drawn.top_ids[:, 0], best)
    assert np.array_equal(cases.draw(logits, "cpu", temperature=0.0).tokens, best)


def test_a_token_depends_on_its_own_row_only(rng):
    logits = rng.standard_normal((5, 2500)).astype(np.float32)
    together = cases.draw(logits, "cpu", top_p=0.9)
    for row in range(5):
        alone = cases.draw(logits[row : row + 1], "cpu", top_p=0.9, position=row)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.logprobs[0].tobytes() == together.logprobs[row].tobytes()


@triton.jit
def _noise(seed, choice, position, out):
    at = tl.arange(0, 1024)
    key = noise.noise_key(tl.load(seed).to(tl.uint64), tl.load(choice), tl.load(position))
    tl.store(out + at, noise.gumbel(key, at))


@pytest.mark.parametrize("key", [(1, 0, 0), (2**64 - 3, 5, 100000), (2**40 + 7, 2**31 - 1, 2**31 - 1)])
def test_noise_is_the_double_logarithm_of_the_same_random_bits(key):
    seed, choice, position = key
    out = torch.full((1024,), torch.nan)
    arguments = {
        "seed": torch.from_numpy(np.array([seed], np.uint64).view(np.int64)),
        "choice": torch.tensor([choice], dtype=torch.int32),
        "position": torch.tensor([position], dtype=torch.int32),
        "out": out,
    }
    Launch("noise", _noise, (1, 1, 1), arguments, {}).run()
    assert np.allclose(out.numpy(), noise.reference(seed, choice, position, np.arange(1024)), rtol=1e-5, atol=1e-6)
