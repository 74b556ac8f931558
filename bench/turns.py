"""Sides that take turns, so that a machine which gets faster or slower meanwhile treats all of them alike."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

Side = TypeVar("Side")
Found = TypeVar("Found")


async def rounds(
    sides: Iterable[Side], measure: Callable[[Side], Awaitable[Found]], count: int
) -> AsyncIterator[dict[Side, Found]]:
    """In each round every side is measured once, one after the other: in this order, and backwards in every second
    round. Yields what each round found, in the order of the sides."""
    order = list(sides)
    for number in range(count):
        found = {side: await measure(side) for side in (order if number % 2 == 0 else reversed(order))}
        yield {side: found[side] for side in order}
