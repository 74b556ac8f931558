"""Groups of layers: how many a runner reports at once, and how each report reaches the event loop.

Step 4 of a request's life: a prefill worker sends the pages of a group of layers as soon as the runner reports it,
while later layers are still computed. Both runners, the CPU's and the GPU's, report by these rules."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.step.plan import OnLayers

# A group with fewer bytes than this is not worth a push of its own: one push keeps the event loops of both workers busy
# for some milliseconds, and where they share cores with the threads that compute, the step takes as much longer.
SMALL_BYTES = 256 * 1024

LayerWritten = Callable[[int], None]  # called with the index of a layer whose keys and values are written


@dataclass(frozen=True, slots=True)
class LayerGroups:
    layers: int  # layers of the model
    row_bytes: int  # bytes of one token's keys and values in one layer
    fixed: int | None = None  # the setting `layer_group`; None: the number of rows decides

    def size(self, rows: int) -> int:
        """Layers that a step of so many rows reports at once: a quarter of all, or as many as are worth a message. It
        is never more than half, because the last group may still be on its way when the first token is sampled."""
        worth = -(-SMALL_BYTES // (rows * self.row_bytes))
        return self.fixed or max(1, round(self.layers / 4), min(self.layers // 2, worth))

    def reporting(self, rows: int, report: OnLayers) -> LayerWritten:
        """Turns "this layer is written" into "this group of layers is written", for a step of so many rows."""
        size = self.size(rows)

        def written(layer: int) -> None:
            if (layer + 1) % size == 0 or layer + 1 == self.layers:
                first = layer // size * size
                report(first, layer + 1 - first)

        return written


def unreported(layer: int) -> None:
    """Does nothing, for steps whose layers need no report."""


def on_this_loop(on_layers: OnLayers | None) -> OnLayers | None:
    """The same report, callable from any thread: the event loop that runs now calls `on_layers`."""
    if on_layers is None:
        return None
    loop, wanted = asyncio.get_running_loop(), on_layers

    def report(first: int, count: int) -> None:
        loop.call_soon_threadsafe(wanted, first, count)

    return report
