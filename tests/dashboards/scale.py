"""Numbers on the axes of a drawn panel: round tick values, and values written with the units that Grafana knows.

The unit names are Grafana's own ("s", "percentunit", "bytes", "suffix: tokens/s"), as the dashboard files hold them."""

import math

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_RATES = {"reqps": "requests/s", "ops": "per second"}
_BYTE_UNITS = ("bytes", "Bps")


def ticks(high: float, wanted: int = 4) -> list[float]:
    """Round values from 0 to at least `high`, in about `wanted` steps."""
    if not high > 0 or not math.isfinite(high):
        return [0.0, 1.0]
    rough = high / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    return [step * number for number in range(math.ceil(high / step * 0.999) + 1)]


def marks(high: float, unit: str, wanted: int = 4) -> list[float]:
    """Tick values that are round in the unit: bytes are counted in powers of 1024."""
    if unit not in _BYTE_UNITS:
        return ticks(high, wanted)
    size = next((size for size, _ in _BYTES if high >= size), 1)
    return [tick * size for tick in ticks(high / size, wanted)]


def axis_label(value: float, unit: str) -> str:
    """Like `shown`, without a long unit: the heading of the panel has it."""
    return shown(value, "short" if long_unit(unit) else unit)


def long_unit(unit: str) -> str:
    """The unit's name, where it is too long to stand at every tick."""
    return unit.removeprefix("suffix:").strip() if unit.startswith("suffix:") else _RATES.get(unit, "")


def shown(value: float, unit: str) -> str:
    """The value as a reader expects it beside an axis: at most four characters of number, then its unit."""
    if not math.isfinite(value):
        return "–"
    if unit == "percentunit":
        return f"{_number(value * 100)}%"
    if unit == "percent":
        return f"{_number(value)}%"
    if unit in ("s", "ms"):
        return _seconds(value if unit == "s" else value / 1000)
    if unit in _BYTE_UNITS:
        return _scaled(value, _BYTES, " B") + ("/s" if unit != "bytes" else "")
    if unit == "bool_yes_no":
        return "yes" if value else "no"
    return f"{_scaled(value, _COUNTS, '')} {long_unit(unit)}".rstrip()


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if value >= 120:
        return f"{_number(value / 60)} min"
    size, name = next(((size, name) for size, name in _SECONDS if abs(value) >= size), _SECONDS[-1])
    return f"{_number(value / size)} {name}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...], plain: str) -> str:
    for size, name in steps:
        if abs(value) >= size:
            return f"{_number(value / size)} {name}"
    return _number(value) + plain


def _number(value: float) -> str:
    """Three digits that mean something, without a tail of zeros."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
