"""The training loop of one stage: batches by step number, a cosine schedule, checkpoints from which training resumes.

A checkpoint is one safetensors file (parameters, optimizer, step and settings), written aside and renamed. There is no
other state: batches follow from seed and step."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.group import TrainingGroup
from models.muon import Muon, Rates
from models.network import TrainedNetwork
from models.packing import Packer, TextBatch

CHECKPOINT_SECONDS = 120.0
_WARM_UP_STEPS = 100
_LAST_SHARE = 0.02  # share of the full rates at the last step

LossOf = Callable[[TrainedNetwork, TextBatch], Tensor]


@dataclass(frozen=True, slots=True)
class TrainingStage:
    name: str
    seed: int
    steps: int
    batch_tokens: int  # tokens of a step, in all processes together
    processes: int
    precision: str  # bf16 | fp32
    rates: Rates


def fit(
    stage: TrainingStage, network: TrainedNetwork, packer: Packer, loss_of: LossOf, folder: Path, group: TrainingGroup
) -> list[tuple[float, float]]:
    """Trains in place, from the last checkpoint if there is one; returns the loss curve."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stage.name}.safetensors"
    dtype = torch.bfloat16 if stage.precision == "bf16" else torch.float32
    optimizer = Muon(network, stage.rates, dtype=dtype)
    first, curve = _resume(stage, network, optimizer, path)
    saved = began = time.monotonic()
    for step in range(first, stage.steps):
        batch = packer.batch(step, group.rank)
        with torch.autocast("cpu", torch.bfloat16, enabled=stage.precision == "bf16"):
            loss = loss_of(network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        group.average(network)
        if not math.isfinite(value := loss.item()):
            raise FloatingPointError(f"{stage.name}: the loss is {value} at step {step}; lower the rates")
        optimizer.step(step, share(step, stage.steps))
        curve.append(((step + 1) * stage.batch_tokens / 1e6, value))
        if not group.leads:
            continue
        now = time.monotonic()
        _progress(stage, step + 1, first, curve, now - began)
        if now - saved > CHECKPOINT_SECONDS or step + 1 == stage.steps:
            _save(stage, network, optimizer, step + 1, curve, path)
            saved = now
    return smooth(curve)


def share(step: int, steps: int) -> float:
    """The share of the full rates at this step: a line upwards first, then a cosine downwards."""
    warm_up = min(_WARM_UP_STEPS, steps // 10 + 1)
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return _LAST_SHARE + (1 - _LAST_SHARE) * (1 + math.cos(math.pi * done)) / 2


def smooth(curve: list[tuple[float, float]], points: int = 200) -> list[tuple[float, float]]:
    """At most so many points, each the mean of neighbouring ones."""
    width = max(1, math.ceil(len(curve) / points))
    groups = [curve[first : first + width] for first in range(0, len(curve), width)]
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]


def _save(
    stage: TrainingStage,
    network: TrainedNetwork,
    optimizer: Muon,
    step: int,
    curve: list[tuple[float, float]],
    path: Path,
) -> None:
    tensors = {f"network.{name}": values.detach() for name, values in network.named_parameters()}
    tensors |= {f"optimizer.{name}": values for name, values in optimizer.state.items()}
    about = {"stage": json.dumps(asdict(stage)), "step": str(step), "curve": json.dumps(curve)}
    aside = path.with_suffix(".tmp")
    save_file(tensors, aside, about)
    os.replace(aside, path)


def _resume(
    stage: TrainingStage, network: TrainedNetwork, optimizer: Muon, path: Path
) -> tuple[int, list[tuple[float, float]]]:
    if not path.exists():
        return 0, []
    with safe_open(path, "pt") as file:
        about = file.metadata()
        before, now = json.loads(about["stage"]), asdict(stage)
        if changed := sorted(key for key in now if before.get(key) != now[key]):
            raise ValueError(
                f"{path}: was started with other settings ({', '.join(changed)}); remove it to start again"
            )
        parameters = dict(network.named_parameters())
        with torch.no_grad():
            for name in file.keys():
                room, _, key = name.partition(".")
                (parameters if room == "network" else optimizer.state)[key].copy_(file.get_tensor(name))
    return int(about["step"]), [(x, y) for x, y in json.loads(about["curve"])]


def _progress(stage: TrainingStage, done: int, first: int, curve: list[tuple[float, float]], seconds: float) -> None:
    """Prints a line that rewrites itself on a terminal, or a line every twenty steps elsewhere."""
    terminal = sys.stderr.isatty()
    if not terminal and done % 20 and done != stage.steps:
        return
    recent = [loss for _, loss in curve[-20:]]
    rate = (done - first) * stage.batch_tokens / seconds
    left = (stage.steps - done) * stage.batch_tokens / rate
    bar = "█" * (done * 30 // stage.steps)
    text = (
        f"{stage.name:6} {bar:░<30} {done}/{stage.steps} loss {sum(recent) / len(recent):.4f} "
        f"{rate:,.0f} tokens/s, {left / 60:.1f} min left"
    )
    end = "\n" if done == stage.steps or not terminal else ""
    sys.stderr.write(f"\r{text}\x1b[K{end}" if terminal else f"{text}{end}")
    sys.stderr.flush()
