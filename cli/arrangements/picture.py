"""Draws arrangements by throughput and by the gaps between tokens (p99): for a terminal, and as SVG."""

from collections.abc import Mapping, Sequence
from html import escape

from cli.arrangements.measure import DEFAULT, Turns
from cli.load.svg_panel import STYLE, Scale, SvgPanel, text

COLUMNS, ROWS = 58, 11  # characters and lines of the plot in a terminal
WIDTH, HEIGHT, HEAD, MARGIN = 980, 430, 62, 16
LETTERS = "ABCDEFGH"
Point = tuple[str, float, float]  # letter, gaps' p99 in ms, tokens per second


def letters(found: Mapping[str, Turns]) -> dict[str, str]:
    return dict(zip(found, LETTERS, strict=False))


def points_of(found: Mapping[str, Turns], clients: int) -> list[Point]:
    turns = ((letter, found[name][clients]) for name, letter in letters(found).items())
    return [(letter, turn.itl_p99_ms, turn.tokens_per_second) for letter, turn in turns]


def table(found: Mapping[str, Turns], words: Mapping[str, str]) -> list[str]:
    lines = [f"{'':<16}  clients  tokens/s  TTFT p50  gaps p99"]
    for name, letter in letters(found).items():
        for clients, turn in found[name].items():
            figures = f"{turn.tokens_per_second:8.1f}  {turn.ttft_p50:6.2f} s  {turn.itl_p99_ms:5.0f} ms"
            first = clients == min(found[name])
            about = f"  {words[name]}" if first and name in words else ""
            lines.append(f"{letter if first else ' '} {name if first else '':<14}  {clients:7}  {figures}{about}")
    return lines


def plot(points: Sequence[Point], title: str) -> list[str]:
    """Up is more throughput, right is longer gaps; letters at one place share it as *."""
    most_x, most_y = max(x for _, x, _ in points) * 1.1 or 1.0, max(y for _, _, y in points) * 1.1 or 1.0
    grid = [[" "] * COLUMNS for _ in range(ROWS)]
    for letter, x, y in points:
        column, row = int(x / most_x * (COLUMNS - 1)), ROWS - 1 - int(y / most_y * (ROWS - 1))
        grid[row][column] = letter if grid[row][column] == " " else "*"
    lines = [f"  {title}: tokens/s over the gaps' p99 in ms"]
    for number, cells in enumerate(grid):
        label = f"{most_y * (ROWS - 1 - number) / (ROWS - 1):7.0f}" if number % 5 == 0 else " " * 7
        lines.append(f"{label} |{''.join(cells).rstrip()}")
    lines.append(" " * 8 + "+" + "-" * COLUMNS)
    lines.append(" " * 8 + f"0{most_x:>{COLUMNS}.0f}")
    return lines


def draw(found: Mapping[str, Turns], *, title: str, subtitle: str) -> str:
    """One panel for each number of clients."""
    counts = list(next(iter(found.values())))
    width = (WIDTH - MARGIN * (len(counts) + 1)) / len(counts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>',
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        text(MARGIN, 30, title, "head"),
        text(MARGIN, 50, subtitle, "muted"),
    ]
    names = {letter: name for name, letter in letters(found).items()}
    for number, clients in enumerate(counts):
        points = points_of(found, clients)
        x = Scale(0.0, max(each[1] for each in points) * 1.25 + 1)
        y = Scale(0.0, max(each[2] for each in points) * 1.15 + 1)
        panel = SvgPanel(MARGIN + number * (width + MARGIN), HEAD, width, HEIGHT - HEAD - MARGIN, x, y)
        who = "1 client" if clients == 1 else f"{clients} clients"
        parts += panel.frame(f"{who}: tokens/s over gaps p99", lambda ms: f"{ms:g} ms", lambda rate: f"{rate:g}")
        for letter, gap, rate in points:
            style = "a" if names[letter] == DEFAULT else "b"
            parts += panel.dots([(gap, rate)], style)
            left, top = panel.at(gap, rate)
            parts.append(text(left + 6, top - 6, names[letter], style))
    return "\n".join([*parts, "</svg>"]) + "\n"
