"""Training: batches whose texts do not see each other, a loop that resumes where it was cut, whole exports."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.agreement import engine_answers, transformers_answers
from models.export import export, read
from models.group import TrainingGroup
from models.losses import Distil, next_token
from models.muon import Rates, orthogonal
from models.network import NetworkShape, TrainedNetwork
from models.packing import ASKED_WEIGHT, Packer, TextBatch
from models.speak import answers, logits_after
from models.template import END
from models.tokenizer import token_id
from models.training import TrainingStage, fit, share, smooth

STAGE = TrainingStage("model", seed=1, steps=6, batch_tokens=384, processes=1, precision="fp32", rates=Rates())


def test_a_text_in_a_row_is_computed_as_if_it_were_alone(tokenizer: Tokenizer, network: TrainedNetwork) -> None:
    packer = Packer(tokenizer, 1, 384)
    begin = token_id(tokenizer, "<|begin|>")
    batch = next(one for one in map(packer.batch, range(99)) if (one.tokens[0, 1:] == begin).sum() >= 2)
    _, first, after, *_ = (batch.tokens[0] == begin).nonzero().flatten().tolist()
    with torch.no_grad():
        together = network(batch.tokens[:1], batch.mask[:1])[0, first:after]
        length = after - first
        mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        alone = network(batch.tokens[:1, first:after], mask)[0]
    assert torch.allclose(together, alone, atol=1e-4)


def test_answers_weigh_fully_questions_little_and_seams_nothing(tokenizer: Tokenizer) -> None:
    packer = Packer(tokenizer, 1, 384)
    ids = tokenizer.encode("<|begin|><|user|>Hi<|end|><|assistant|>Yes.<|end|><|user|>", add_special_tokens=False).ids
    weights = packer.weights(ids)
    end = len(ids) - 1
    assert weights[end] == ASKED_WEIGHT and set(weights[ids.index(token_id(tokenizer, "<|assistant|>")) + 1 : end]) == {
        1
    }
    batch = packer.batch(0)
    begin = token_id(tokenizer, "<|begin|>")
    assert (batch.weights[batch.targets == begin] == 0).all()
    assert (batch.weights[batch.targets == token_id(tokenizer, "<|pad|>")] == 0).all()


def test_a_batch_is_a_function_of_seed_step_and_rank(tokenizer: Tokenizer) -> None:
    one, same = Packer(tokenizer, 1, 384), Packer(tokenizer, 1, 384)
    assert torch.equal(one.batch(3).tokens, same.batch(3).tokens)
    for other in (one.batch(4), one.batch(3, 1), Packer(tokenizer, 2, 384).batch(3)):
        assert not torch.equal(one.batch(3).tokens, other.tokens)


def test_training_begins_with_sums(tokenizer: Tokenizer) -> None:
    packer = Packer(tokenizer, 1, 2048, first_steps=3)
    plus = token_id(tokenizer, "Ġ+")
    early, late = (
        sum(int((packer.batch(step).tokens == plus).sum()) for step in steps) for steps in ((0, 1, 2), (3, 4, 5))
    )
    assert early > 2 * late > 0


def test_long_rows_come_regularly(tokenizer: Tokenizer) -> None:
    packer = Packer(tokenizer, 1, 2048)
    assert [packer.batch(step).tokens.shape[1] for step in (14, 15, 16)] == [384, 2048, 384]


def test_a_run_that_was_cut_ends_as_one_that_was_not(
    tokenizer: Tokenizer, small_shape: NetworkShape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.training.CHECKPOINT_SECONDS", -1.0)
    packer = Packer(tokenizer, 1, 384)
    whole, cut = TrainedNetwork(small_shape).initialise(1), TrainedNetwork(small_shape).initialise(1)
    curve = fit(STAGE, whole, packer, next_token, tmp_path / "whole", TrainingGroup())
    calls = 0

    def until_cut(network: TrainedNetwork, batch: TextBatch) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return next_token(network, batch)

    with pytest.raises(KeyboardInterrupt):
        fit(STAGE, cut, packer, until_cut, tmp_path / "cut", TrainingGroup())
    again = TrainedNetwork(small_shape).initialise(2)
    assert fit(STAGE, again, packer, next_token, tmp_path / "cut", TrainingGroup()) == curve
    for name, values in whole.state_dict().items():
        assert torch.equal(values, again.state_dict()[name]), name
    assert not torch.equal(whole.embed_tokens.weight, cut.embed_tokens.weight)


def test_other_settings_do_not_resume(tokenizer: Tokenizer, small_shape: NetworkShape, tmp_path: Path) -> None:
    packer = Packer(tokenizer, 1, 384)
    fit(STAGE, TrainedNetwork(small_shape).initialise(1), packer, next_token, tmp_path, TrainingGroup())
    other = TrainingStage("model", seed=2, steps=6, batch_tokens=384, processes=1, precision="fp32", rates=Rates())
    with pytest.raises(ValueError, match="seed"):
        fit(other, TrainedNetwork(small_shape).initialise(1), packer, next_token, tmp_path, TrainingGroup())


def test_a_draft_comes_nearer_to_its_model(
    tokenizer: Tokenizer, network: TrainedNetwork, small_shape: NetworkShape, tmp_path: Path
) -> None:
    packer, distil = Packer(tokenizer, 1, 384), Distil(network)
    draft = TrainedNetwork(small_shape).initialise(9)
    with torch.no_grad():
        assert distil(network, packer.batch(99)).item() == pytest.approx(0.0, abs=1e-6)
        before = distil(draft, packer.batch(99)).item()
    stage = TrainingStage("draft", seed=1, steps=25, batch_tokens=384, processes=1, precision="fp32", rates=Rates())
    fit(stage, draft, packer, distil, tmp_path, TrainingGroup())
    with torch.no_grad():
        assert 0 < distil(draft, packer.batch(99)).item() < 0.9 * before


def test_an_exported_network_says_the_same_in_the_engine_and_in_transformers(
    tokenizer: Tokenizer, network: TrainedNetwork, tmp_path: Path
) -> None:
    export(network, tokenizer, tmp_path)
    end = token_id(tokenizer, END)
    prompts = [tokenizer.encode(f"<|begin|>{text}", add_special_tokens=False).ids for text in ("Count to 4.", "3 + 4")]
    back = read(tmp_path)
    for others in (
        answers(back, prompts, most=24, end=end),
        engine_answers(tmp_path, prompts, most=24, end=end, product_path="fp32"),
        transformers_answers(tmp_path, prompts, most=24, end=end),
    ):
        for prompt, answer in zip(prompts, others, strict=True):
            logits = logits_after(back, prompt, answer)
            chosen = logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]
            assert (logits.amax(-1) - chosen).max() < 1e-4  # the best token, but for rounding
            assert len(answer) == 24 or answer[-1] == end


def test_reading_gives_back_what_was_exported_rounded_to_bf16(
    tokenizer: Tokenizer, network: TrainedNetwork, tmp_path: Path
) -> None:
    export(network, tokenizer, tmp_path)
    back = read(tmp_path).state_dict()
    for name, values in network.state_dict().items():
        assert torch.equal(back[name], values.bfloat16().float()), name


def test_a_muon_step_turns_all_directions_alike() -> None:
    matrices = torch.randn(3, 40, 16, generator=torch.Generator().manual_seed(1)) * torch.logspace(-2, 1, 16)
    before, after = torch.linalg.svdvals(matrices), torch.linalg.svdvals(orthogonal(matrices))
    assert (before.amax(1) / before.amin(1)).min() > 100
    assert (after.amax(1) / after.amin(1)).max() < 10 and 0.6 < after.mean() < 1.2


def test_the_rate_rises_in_a_line_and_ends_near_nothing() -> None:
    shares = [share(step, 1000) for step in range(1000)]
    assert shares[:100] == sorted(shares[:100]) and shares[99] == 1.0
    assert shares[100:] == sorted(shares[100:], reverse=True) and shares[-1] < 0.03


def test_a_smoothed_curve_keeps_its_mean() -> None:
    curve = [(float(x), float(x % 7)) for x in range(1000)]
    points = smooth(curve)
    assert len(points) == 200 and points[-1][0] == 999.0
    assert sum(y for _, y in points) / 200 == pytest.approx(sum(y for _, y in curve) / 1000)
