"""`python -m models.train`: trains tokenizer, model and draft, one after the other. It skips what is finished and
resumes what was cut off.

Checkpoints are written every two minutes under --state; the finished pair goes to --out with the loss curve. The result
of a stage depends on the seed, the kind of machine and the number of processes only."""

import argparse
import itertools
import sys
from pathlib import Path

import torch

from engine.builtin import PAIR
from models.corpus import FIRST, texts
from models.curve import draw_curve
from models.export import export
from models.group import TrainingGroup
from models.losses import Distil, next_token
from models.muon import Rates
from models.network import DRAFT, MODEL, TrainedNetwork
from models.packing import Packer
from models.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from models.training import LossOf, TrainingStage, fit

_TOKENIZER_TEXTS = 20_000
_FIRST = 0.2  # share of the steps with the first mix


def main() -> None:
    arguments = _arguments()
    precision = _fastest() if arguments.precision == "auto" else arguments.precision
    state: Path = arguments.state
    state.mkdir(parents=True, exist_ok=True)
    group = TrainingGroup.start(arguments.processes, state)
    if group.leads and not (state / "tokenizer.json").exists():
        sys.stderr.write("training the tokenizer\n")
        save_tokenizer(
            train_tokenizer(itertools.islice(texts(arguments.seed, FIRST), _TOKENIZER_TEXTS)), state, MODEL.context
        )
    group.wait()
    tokenizer = load_tokenizer(state)

    def stage(name: str, million_tokens: float, rates: Rates) -> TrainingStage:
        steps = max(1, round(million_tokens * 1e6 / arguments.batch_tokens))
        return TrainingStage(name, arguments.seed, steps, arguments.batch_tokens, arguments.processes, precision, rates)

    def trained(network: TrainedNetwork, stage: TrainingStage, loss_of: LossOf) -> list[tuple[float, float]]:
        share = stage.batch_tokens // stage.processes
        packer = Packer(tokenizer, stage.seed, share, first_steps=round(_FIRST * stage.steps))
        curve = fit(stage, network.initialise(stage.seed), packer, loss_of, state, group)
        if group.leads:
            export(network, tokenizer, arguments.out / stage.name)
        return curve

    model, draft = TrainedNetwork(MODEL), TrainedNetwork(DRAFT)
    curves = {"model": trained(model, stage("model", arguments.tokens, Rates()), next_token)}
    curves["draft"] = trained(draft, stage("draft", arguments.draft_tokens, Rates()), Distil(model))
    group.finish()
    (arguments.out / "loss.svg").write_text(draw_curve(curves))
    sys.stderr.write(f"the pair is in {arguments.out}; judge it with: python -m models.evaluate --json\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the built-in pair.")
    parser.add_argument("--out", type=Path, default=PAIR, help="where the finished folders go (default: %(default)s)")
    parser.add_argument("--state", type=Path, default=Path("build/train"), help="checkpoints (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="each with one thread (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=float, default=11.0, help="million tokens for the model (default: %(default)s)"
    )
    parser.add_argument(
        "--draft-tokens", type=float, default=6.0, help="million tokens for the draft (default: %(default)s)"
    )
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens of a step (default: %(default)s)")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto")
    return parser.parse_args()


def _fastest() -> str:
    """bf16 if the processor has instructions for it."""
    able = torch.cpu.get_capabilities()
    return "bf16" if able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"


if __name__ == "__main__":
    main()
