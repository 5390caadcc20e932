"""Numbers that a form says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from redrive.deadletters.bulk.run import PASS_RATE
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from redrive.doors.dashboard.rendering import Form

SHOWN: Final = 50
"""Characters of a number that is none, in its refusal."""


def number_of(form: Form, name: str) -> float | None:
    text = form.text(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(field=name, problem=f"{text[:SHOWN]!r} is not a number")
    return number


def whole_of(form: Form, name: str) -> int | None:
    number = number_of(form, name)
    if number is not None and not number.is_integer():
        raise InvalidInput(field=name, problem=f"{(form.text(name) or '')[:SHOWN]!r} is not a whole number")
    return None if number is None else int(number)


def pass_rate_of(form: Form) -> float:
    """Written in percent."""
    percent = number_of(form, "pass_rate")
    if percent is not None and not 0 < percent <= 100:
        raise InvalidInput(field="pass_rate", problem=f"{percent:g} % is not above 0 and at most 100 %")
    return PASS_RATE if percent is None else percent / 100
