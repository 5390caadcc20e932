"""Numbers, codes and texts as sentences say them."""

from __future__ import annotations


def number(value: float | None) -> str:
    """`12,345`; a dash where nobody counted."""
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
