"""Processes of one thread each that train one network together, each on its own share of every step.

Threads inside torch wait for each other at every operation, processes only once a step: so other work on the machine
slows processes down far less. The first process is the caller and the only one that writes files."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    rank: int = 0
    size: int = 1
    children: list[int] = field(default_factory=list)

    @staticmethod
    def start(size: int, folder: Path) -> "TrainingGroup":
        """Starts the processes and returns once in each of them. Call it before torch computes anything."""
        torch.set_num_threads(1)
        if size == 1:
            return TrainingGroup()
        meeting = folder / "meeting"
        meeting.unlink(missing_ok=True)
        rank = 0
        children: list[int] = []
        for number in range(1, size):
            child = os.fork()
            if child == 0:
                rank, children = number, []
                break
            children.append(child)
        dist.init_process_group("gloo", init_method=f"file://{meeting.resolve()}", rank=rank, world_size=size)
        return TrainingGroup(rank, size, children)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Returns when every process has called this."""
        if self.size > 1:
            dist.barrier()

    def average(self, network: nn.Module) -> None:
        """Replaces the gradients of every process by their mean."""
        if self.size == 1:
            return
        gradients = [values.grad for values in network.parameters() if values.grad is not None]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        together /= self.size
        place = 0
        for gradient in gradients:
            gradient.copy_(together[place : place + gradient.numel()].view_as(gradient))
            place += gradient.numel()

    def finish(self) -> None:
        """Ends all processes but the first one, which waits for them."""
        if self.size == 1:
            return
        self.wait()
        dist.destroy_process_group()
        if not self.leads:
            sys.stderr.flush()
            os._exit(0)
        for child in self.children:
            os.waitpid(child, 0)
