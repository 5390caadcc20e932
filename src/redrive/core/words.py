"""Numbers, codes and texts as sentences say them."""

from __future__ import annotations


def number(value: float | None) -> str:
    """`12,345`; a dash where the number is not known."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `12,345 jobs`."""
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"


def plain(name: object) -> str:
    """A code as words: `attempts_exhausted` → `attempts exhausted`."""
    return str(name).replace("_", " ")


def clipped(text: object, width: int = 140) -> str:
    """One line's worth of a text."""
    said = " ".join(str(text).split())
    return said if len(said) <= width else said[: width - 1].rstrip() + "…"


_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def span(seconds: float) -> str:
    """`90 s`, `5 min`, `3 h`, `9 d`."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def duration(seconds: float) -> str:
    """`12 ms`, `0.4 s`, `90 s`, `1.5 h`: one number that a person can compare, however short or long."""
    for size, unit in _UNITS:
        if seconds >= 1.5 * size:
            return f"{few(seconds / size)} {unit}"
    if seconds >= 10 or seconds == int(seconds):
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"


def few(value: float) -> str:
    """One decimal where it says something."""
    text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
    return text.removesuffix(".0")
