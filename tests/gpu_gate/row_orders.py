"""Do kernels that must give a row the same bits sum it in the same order? Read from the compiler's layouts.

Two programs agree when their matrix instructions are of one kind and step, and when a row of scores is spread over the
registers of its threads alike: the same tile, or tiles in which every warp holds whole rows."""

import re
from collections.abc import Sequence

from tests.gpu_gate.compiled import Compiled

_LAYOUT = re.compile(r"versionMajor = (\d+).*warpsPerCTA = \[(\d+), (\d+)\], instrShape = \[([\d, ]+)\]")


def unlike_orders(done: Sequence[Compiled]) -> list[str]:
    """One line for each family on an architecture whose members do not agree."""
    families: dict[tuple[int, str], dict[tuple[str, ...], str]] = {}
    for one in done:
        if one.family:
            families.setdefault((one.architecture, one.family), {}).setdefault(_order(one), one.name)
    return [
        f"sm_{architecture} {family}: rows are summed in unlike orders by " + " and ".join(sorted(orders.values()))
        for (architecture, family), orders in families.items()
        if len(orders) > 1
    ]


def _order(one: Compiled) -> tuple[str, ...]:
    """The parts of a kernel's layouts that decide in which order a row is summed."""
    if one.family.startswith("product"):
        return tuple(sorted({_kind(layout) for layout in one.matrix} | {kind for kind in one.kinds if "mma" in kind}))
    layouts = []
    for layout in one.matrix:
        found = _LAYOUT.search(layout)
        assert found is not None, layout
        version, down, across, shape = found.groups()
        layouts.append(f"{version} {'whole rows' if across == '1' else f'{down}x{across}'} {shape}")
    tile = () if one.matrix else (one.tile,)  # accumulators outside the registers have no layout to compare
    return (f"blocks of {one.block}", *tile, *sorted(layouts))


def _kind(layout: str) -> str:
    """Version and depth of a matrix instruction; the tile's other sizes do not change an output's chain."""
    found = _LAYOUT.search(layout)
    assert found is not None, layout
    version, _, _, shape = found.groups()
    sizes = shape.split(", ")
    return f"version {version}, depth {sizes[2] if len(sizes) > 2 else 'of its kind'}"
