"""CUDA graphs, one per form: a whole decode step as one launch.

The first step of a form runs launch by launch, which compiles its kernels and is its result; then the same calls are
captured, and from the second step on the graph is replayed. The graphs share one memory pool, since one runs at a time.
On a CPU there is nothing to capture and every step runs launch by launch."""

from collections.abc import Callable

import torch

from engine.cuda.form import Form

Launches = Callable[[], None]


class Graphs:
    def __init__(self, device: torch.device, *, enabled: bool = True) -> None:
        self._enabled = enabled and device.type == "cuda"
        self._graphs: dict[Form, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if self._enabled else None
        self.replayed = 0  # steps that were one launch

    def run(self, form: Form | None, launches: Launches) -> None:
        """On the current stream. `None`: a step of no form that comes again."""
        if not self._enabled or form is None:
            launches()
        elif graph := self._graphs.get(form):
            graph.replay()
            self.replayed += 1
        else:
            launches()
            self._graphs[form] = self._captured(launches)

    def forget(self) -> None:
        """The blocks that the graphs read and write have moved. Their memory goes with them: torch captures nothing
        into a pool whose last graph is gone."""
        self._graphs.clear()
        if self._enabled:
            self._memory = torch.cuda.graph_pool_handle()

    def _captured(self, launches: Launches) -> torch.cuda.CUDAGraph:
        """Into the current stream's calls, not by torch's context manager: that waits for the device and gives all
        cached memory back first, while requests wait for their next token."""
        graph = torch.cuda.CUDAGraph()
        # Other threads copy pages meanwhile; what they call must not spoil this capture.
        graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            launches()
        finally:
            graph.capture_end()
        return graph
