"""What people may write into a field: names, texts and numbers. One rule for each, for every verb and every door.

Each refusal names the field and the limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Final, TypeGuard, TypeVar

from redrive.errors import InvalidInput, InvalidOption

T = TypeVar("T")
NAME_LIMIT: Final = 200
KEY_LIMIT: Final = 500
TEXT_LIMIT: Final = 1000
MOST_LISTED: Final = 10_000
MOST: Final = 2**53
"""What anything is counted to: beyond, not everybody who reads JSON counts exactly."""
SHOWN: Final = 80
"""Characters of what was refused: it may be a whole book."""
MOST_NAMED: Final = 10
"""Names that a refusal lists."""
LEAST_PART: Final = 3
"""Characters of an id by which a thing is found: fewer would find anything."""
ID_LENGTH: Final = 32
HALF: Final = "is not UTF-8: it has half a character in it"


def check_name(field: str, value: object, limit: int = NAME_LIMIT) -> str:
    """A name stands in lists, logs and addresses: short, and nothing in it that does not print."""
    if not isinstance(value, str) or not 1 <= len(value) <= limit or not value.isprintable():
        raise InvalidOption(field=field, problem=f"{value!r:.{SHOWN}} must be 1 to {limit} printable characters")
    return value


def optional_name(field: str, value: object, limit: int = NAME_LIMIT) -> str | None:
    return None if value is None else check_name(field, value, limit)


def check_names(field: str, names: object) -> tuple[str, ...]:
    """Several names. A text would be taken for its letters, and found to name nothing."""
    if isinstance(names, str):
        raise InvalidOption(field=field, problem=f"is a list of names: {field}=[{names!r:.{SHOWN}}]")
    if not isinstance(names, Iterable):
        raise InvalidOption(field=field, problem=f"{names!r:.{SHOWN}} is not a list of names")
    return tuple([check_name(field, name) for name in names])


def is_text(value: object) -> TypeGuard[str]:
    """Half a character, as a wrong decoding leaves it, is not text: it can be neither stored nor sent."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_texts(**said: object) -> None:
    """Texts that are kept, by field; None is not said."""
    for field, text in said.items():
        if text is None:
            continue
        if isinstance(text, str) and not is_text(text):
            raise InvalidOption(field=field, problem=HALF)
        if not isinstance(text, str) or not 0 < len(text) <= TEXT_LIMIT:
            raise InvalidOption(field=field, problem=f"must be a text of 1 to {TEXT_LIMIT} characters")


def check_words(who: object, why: object) -> None:
    """Who does something and why, as it is kept. An empty reason is none."""
    check_name("who", who)
    if why != "":
        check_texts(why=why)


def check_range(field: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        problem = f"{value!r:.{SHOWN}} is not a whole number from {least} to {most}"
        raise InvalidOption(field=field, problem=problem)
    return value


def check_number(
    field: str, value: object, least: float = 0, most: float = MOST, *, above: bool = False, endless: bool = False
) -> float:
    """`above` leaves out the least itself; `endless` takes infinity. What is no number is in no range; nor is NaN."""
    if endless and value == inf:
        return inf
    if not is_number(value) or not least <= value <= most or (above and value == least):
        span = f"above {least}, up to {most}" if above else f"from {least} to {most}"
        problem = f"{value!r:.{SHOWN}} is not a number {span}"
        raise InvalidOption(field=field, problem=problem)
    return value


def check_choice(field: str, value: object, choices: Collection[str]) -> str:
    """One of a few fixed words."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidOption(field=field, problem=f"{value!r:.{SHOWN}} is not one of {', '.join(choices)}")
    return value


def check_known(field: str, value: str, known: Collection[str], owner: str) -> str:
    """A name that its owner has; one that is not known is answered with those that may be meant."""
    if value in known:
        return value
    listed, more = sorted(known)[:MOST_NAMED], len(known) - MOST_NAMED
    others = f"it has {', '.join(listed)}{f' and {more} more' if more > 0 else ''}" if known else "it has none"
    meant = suggestion(value, known) or others
    raise InvalidInput(field=field, problem=f"{value!r:.{SHOWN}} is no {field} of {owner}; {meant}")


def suggestion(value: str, known: Collection[str]) -> str | None:
    """Asks whether one of the known names that look like this one is meant; None where none does."""
    from difflib import get_close_matches

    near = get_close_matches(value, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else None


def check_limit(limit: object) -> int:
    """How many a listing gives at most."""
    return check_range("limit", limit, 1, MOST_LISTED)


def is_number(value: object) -> TypeGuard[int | float]:
    """Tells whether a value is a number. True and False are none, although they are to Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_id(field: str, value: object) -> str:
    """What something is asked for by. Any text may be: whether there is such a thing, its store says."""
    if not isinstance(value, str):
        raise InvalidInput(field=field, problem=f"{value!r:.{SHOWN}} is not an id: ids are texts")
    if not is_text(value):
        raise InvalidInput(field=field, problem=HALF)
    return value


def is_part_of_id(text: str) -> bool:
    """Whether a job may be found by it."""
    return LEAST_PART <= len(text) <= ID_LENGTH and text.isalnum()


def the_only(found: Sequence[T], part: str, field: str) -> T | None:
    """What a part of its id has found: None where nothing has it or it is too short, a refusal where several have."""
    if len(part) < LEAST_PART:
        return None
    if len(found) > 1:
        raise InvalidInput(field=field, problem=f"{part!r:.{SHOWN}} is part of several ids; give more of it")
    return found[0] if found else None
