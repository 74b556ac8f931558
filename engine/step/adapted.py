"""An adapter that is ready to compute with, as a piece of a plan names it."""

from dataclasses import dataclass, field

from baton_kernels.deltas import PRODUCTS, AdapterTable, PackedDelta, delta_table


@dataclass(frozen=True, slots=True, eq=False)
class AdapterWeights:
    """The deltas that one adapter adds to the products of a model. This object keeps the arrays of `table` alive."""

    digest: str  # hash of its content: equal for adapters that add the same numbers
    deltas: tuple[PackedDelta | None, ...]  # for each layer PRODUCTS of them; None: nothing is added
    rank: int  # largest of any module
    table: AdapterTable = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.deltas) % len(PRODUCTS) == 0, "every layer has all products"
        object.__setattr__(self, "table", delta_table(self.deltas))

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.deltas if each is not None)
