"""A small SVG writer: shapes with classes, and one style sheet that is legible on a light and on a dark page.

A picture names colours by role ("s0" is the first series), never by value; the reader's colour scheme picks the
values. Coordinates are rounded to a tenth of a pixel, which keeps the committed pictures small."""

from collections.abc import Iterable
from xml.sax.saxutils import escape

# Role -> colour on a light page, colour on a dark page.
COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "card": ("#f6f8fa", "#161b22"),
    "edge": ("#d7dde4", "#2b333d"),
    "grid": ("#e3e8ed", "#262e38"),
    "text": ("#1f2731", "#e3e9f0"),
    "soft": ("#5b6775", "#93a0ae"),
    "s0": ("#2563d4", "#6ea4ff"),
    "s1": ("#d9730d", "#ffa657"),
    "s2": ("#15895b", "#56d19b"),
    "s3": ("#b83280", "#f587c4"),
    "s4": ("#6f4bd1", "#b29bff"),
    "s5": ("#0b8196", "#55c9de"),
    "s6": ("#8a6a00", "#e2bf4f"),
    "s7": ("#c2362f", "#ff8279"),
    "good": ("#15895b", "#56d19b"),
    "warn": ("#b7791f", "#e9b64a"),
    "bad": ("#c2362f", "#ff8279"),
}
SERIES = 8  # roles s0 to s7

_FONT = "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"


def _style() -> str:
    def sheet(place: int) -> str:
        return ";".join(f"--{role}:{both[place]}" for role, both in COLOURS.items())

    roles = "".join(f".{r}{{stroke:var(--{r});fill:var(--{r})}}" for r in COLOURS if r not in ("page", "card", "edge"))
    return (
        f"svg{{{sheet(0)};font-family:{_FONT};font-size:11px}}"
        f"@media(prefers-color-scheme:dark){{svg{{{sheet(1)}}}}}"
        ".page{fill:var(--page)}.card{fill:var(--card);stroke:var(--edge)}"
        f"{roles}text{{stroke:none!important}}"
        ".line{fill:none!important;stroke-width:1.6;stroke-linejoin:round}.area{stroke:none!important;fill-opacity:.72}"
        ".thin{fill:none!important;stroke-width:1}.dashed{stroke-dasharray:4 4;stroke-opacity:.7}"
        ".flat{stroke:none!important}.head{font-size:13px;font-weight:600}"
        ".title{font-size:22px;font-weight:700}.big{font-weight:600}.end{text-anchor:end}.mid{text-anchor:middle}"
    )


class Picture:
    """Collects shapes in drawing order; `text` and friends take the role of their colour as `role`."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self._label = width, height, label
        self._parts: list[str] = []

    def text(self, x: float, y: float, content: str, role: str = "text", *, size: float = 0) -> None:
        sized = f' font-size="{_n(size)}"' if size else ""
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{role}"{sized}>{escape(content)}</text>')

    def rect(
        self, x: float, y: float, w: float, h: float, role: str, *, round_by: float = 0, opacity: float = 1
    ) -> None:
        corner = f' rx="{_n(round_by)}"' if round_by else ""
        faint = f' opacity="{opacity:.2f}"' if opacity < 1 else ""
        size = f'width="{_n(max(w, 0))}" height="{_n(max(h, 0))}"'
        self._parts.append(f'<rect x="{_n(x)}" y="{_n(y)}" {size} class="{role}"{corner}{faint}/>')

    def line(self, points: Iterable[tuple[float, float]], role: str) -> None:
        path = _path(points)
        if path:
            self._parts.append(f'<path d="{path}" class="{role}"/>')

    def area(self, points: Iterable[tuple[float, float]], role: str) -> None:
        path = _path(points)
        if path:
            self._parts.append(f'<path d="{path}z" class="{role} area"/>')

    def dot(self, x: float, y: float, role: str, radius: float = 2) -> None:
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="{role} flat"/>')

    def svg(self) -> str:
        size = f'width="{_n(self.width)}" height="{_n(self.height)}" viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self._label)}">'
        return f"{head}\n<style>{_style()}</style>\n" + "\n".join(self._parts) + "\n</svg>\n"


def text_width(content: str, size: float = 11) -> float:
    """An estimate: the reader's font is unknown."""
    return len(content) * size * 0.56


def fitted(content: str, width: float, size: float = 11) -> str:
    """The text, cut with an ellipsis where it would be wider than this."""
    most = int(width / (size * 0.56))
    return content if len(content) <= most else content[: max(1, most - 1)].rstrip() + "…"


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if place else 'M'}{_n(x)} {_n(y)}" for place, (x, y) in enumerate(points))


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
