"""The loss curve as a picture: an SVG with one line per stage of training over tokens, loss on a logarithmic scale."""

from collections.abc import Mapping, Sequence
from math import log10

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 360, 60, 20, 30, 45
_COLOURS = ("#1f6feb", "#d1570a")

Points = Sequence[tuple[float, float]]  # (million tokens, loss)


def draw_curve(lines: Mapping[str, Points]) -> str:
    drawn = {name: points for name, points in lines.items() if points}
    if not drawn:
        raise ValueError("lines: no stage has a point yet; train first")
    most = max(x for points in drawn.values() for x, _ in points) or 1.0
    losses = [max(y, 1e-4) for points in drawn.values() for _, y in points]
    low, high = log10(min(losses)), log10(max(losses))
    high = max(high, low + 0.1)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (log10(max(y, 1e-4)) - low) / (high - low)
        return LEFT + x / most * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_frame()]
    for rank in range(5):
        value = 10 ** (low + (high - low) * rank / 4)
        _, y = place(0, value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        x, _ = place(most * rank / 4, value)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 25}" text-anchor="middle">{most * rank / 4:.1f}</text>')
    for rank, (name, points) in enumerate(drawn.items()):
        colour = _COLOURS[rank % len(_COLOURS)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT - 10}" y="{TOP + 16 * rank + 4}" text-anchor="end" fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _frame() -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        f'<text x="{LEFT}" y="18">loss per token (logarithmic)</text>\n'
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">million tokens</text>'
    )
