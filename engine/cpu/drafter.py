"""The draft model on the CPU: it carries out what `engine/drafts/drafting.py` decides, in the runner's thread. Its keys
and values lie in layers of their own in the same pages.

Its vocabulary may be padded otherwise than the model's, and its context may be shorter. A token that it has no row for
reads as token 0: what follows is guessed badly and verified as ever."""

from collections.abc import Sequence
from dataclasses import replace

from engine.drafts.drafting import Proposed, Reading, has_open, open_readings, proposed, settled_text
from engine.model.forward import Forward
from engine.model.page_memory import PageMemory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import Weights
from engine.step.layer_groups import unreported
from engine.step.plan import OnLayers, Piece, Sampled
from engine.step.sampling import sampled_rows, sampling_arrays


class Drafter:
    def __init__(self, weights: Weights, pages: PageMemory, limits: RowLimits, *, first_layer: int) -> None:
        """The draft's layers come behind the model's: the first one has index `first_layer`."""
        self._vocab, self._model_vocab = weights.config.vocab, limits.vocab
        self._limits = replace(limits, context=min(limits.context, weights.config.context))
        self._layers = (first_layer, weights.config.layers)
        self._forward = Forward(weights, pages)

    def read(self, pieces: Sequence[Piece], on_layers: OnLayers | None) -> None:
        """Reads the text that is settled before the step. All layers are reported at once, here or in `propose`."""
        if texts := settled_text(pieces, self._limits):
            self._forward.hidden(Rows.of([self._readable(text) for text in texts], self._limits), unreported)
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
        return proposed(pieces, readings, rounds, self._model_vocab)

    def _rounds(self, readings: Sequence[Reading]) -> list[list[int]]:
        """The tokens proposed in each round, in the order of `readings`. The last proposal itself is not read."""
        pieces = [self._readable(reading.rows) for reading in readings]
        wanted = [reading.propose for reading in readings]
        sampling = sampling_arrays(sampled_rows(pieces), self._vocab)
        rounds: list[list[int]] = self._forward.propose(pieces, sampling, wanted, self._limits).tolist()
        return rounds

    def _readable(self, text: Piece) -> Piece:
        if self._vocab >= self._model_vocab or max(text.tokens) < self._vocab:
            return text
        return replace(text, tokens=tuple(token if token < self._vocab else 0 for token in text.tokens))
