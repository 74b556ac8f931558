"""CUDA graphs, one per shape of a step: a whole decode step becomes one launch.

The first step of a shape runs launch by launch: that compiles its kernels and yields the step's result. Then the same
calls are captured, and from the second step on the graph is replayed. The graphs share one memory pool, since one runs
at a time. On a CPU there is nothing to capture and every step runs launch by launch."""

from collections.abc import Callable

import torch

from engine.cuda.step_shape import StepShape

Launches = Callable[[], None]


class Graphs:
    def __init__(self, device: torch.device, *, enabled: bool = True) -> None:
        self._enabled = enabled and device.type == "cuda"
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if self._enabled else None
        self.replayed = 0  # steps that were one launch

    def run(self, shape: StepShape | None, launches: Launches) -> None:
        """Runs a step on the current stream. `None`: its shape is not worth a graph."""
        if not self._enabled or shape is None:
            launches()
        elif graph := self._graphs.get(shape):
            graph.replay()
            self.replayed += 1
        else:
            launches()
            self._graphs[shape] = self._captured(launches)

    def forget(self) -> None:
        """Drops all graphs, because the blocks that they read and write have moved. The memory pool is dropped too:
        torch captures nothing into a pool whose last graph is gone."""
        self._graphs.clear()
        if self._enabled:
            self._memory = torch.cuda.graph_pool_handle()

    def _captured(self, launches: Launches) -> torch.cuda.CUDAGraph:
        """Captures the calls on the current stream. torch's context manager is not used: it waits for the device and
        gives all cached memory back first, while requests wait for their next token."""
        graph = torch.cuda.CUDAGraph()
        # Other threads copy pages meanwhile; their calls must not spoil this capture.
        graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            launches()
        finally:
            graph.capture_end()
        return graph
