"""The draft model on the CPU: it carries out what `engine/drafting.py` decides, in the runner's thread. Its keys and
values lie in layers of their own in the same pages."""

from collections.abc import Sequence

from engine.drafting import Proposed, Reading, has_open, open_readings, proposed, settled_text
from engine.layer_groups import unreported
from engine.model.forward import Forward
from engine.model.page_memory import PageMemory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import Weights
from engine.plan import OnLayers, Piece, Sampled
from engine.sampling import sampled_rows, sampling_arrays


class Drafter:
    def __init__(self, weights: Weights, pages: PageMemory, limits: RowLimits, *, first_layer: int) -> None:
        """The draft's layers come behind the model's: the first one has index `first_layer`."""
        self._limits, self._layers = limits, (first_layer, weights.config.layers)
        self._forward = Forward(weights, pages)

    def read(self, pieces: Sequence[Piece], on_layers: OnLayers | None) -> None:
        """Reads the text that is settled before the step. All layers are reported at once, here or in `propose`."""
        if rows := settled_text(pieces):
            self._forward.hidden(Rows.of(rows, self._limits), unreported)
        if on_layers is not None and not has_open(pieces):
            on_layers(*self._layers)

    def propose(
        self, pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]], on_layers: OnLayers | None
    ) -> Proposed:
        """Reads what the step made of the other pieces and returns the proposals behind each piece's last token."""
        if not has_open(pieces):
            return ((),) * len(pieces)
        readings = open_readings(pieces, sampled, self._limits)
        rounds = self._rounds(readings) if readings else []
        if on_layers is not None:
            on_layers(*self._layers)
        return proposed(pieces, readings, rounds)

    def _rounds(self, readings: Sequence[Reading]) -> list[list[int]]:
        """The tokens proposed in each round, in the order of `readings`. The last proposal itself is not read."""
        pieces, wanted = [reading.rows for reading in readings], [reading.propose for reading in readings]
        sampling = sampling_arrays(sampled_rows(pieces), self._limits.vocab)
        rounds: list[list[int]] = self._forward.propose(pieces, sampling, wanted, self._limits).tolist()
        return rounds
