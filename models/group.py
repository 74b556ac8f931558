"""A few processes that train one network together, each on its own share of every step, with one thread each.

Threads inside torch wait for each other at every operation, processes only once a step, so a machine that is busy with
other things slows them down far less. The first process is the caller and the only one that writes."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True, slots=True)
class Group:
    rank: int = 0
    size: int = 1
    children: list[int] = field(default_factory=list)

    @staticmethod
    def start(size: int, folder: Path) -> "Group":
        """Returns once in every process; call it before torch computes anything."""
        torch.set_num_threads(1)
        if size == 1:
            return Group()
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
        return Group(rank, size, children)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()

    def average(self, network: nn.Module) -> None:
        """Makes every process's gradients the mean of all."""
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
        """The others end here."""
        if self.size == 1:
            return
        self.wait()
        dist.destroy_process_group()
        if not self.leads:
            sys.stderr.flush()
            os._exit(0)
        for child in self.children:
            os.waitpid(child, 0)
