"""Checks names, texts and numbers from users. Every verb and every door uses the same rules.

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
"""The largest accepted number: some readers of JSON do not represent larger ones exactly."""
SHOWN: Final = 80
"""Characters of a refused value that a message shows, because the value may be very long."""
MOST_NAMED: Final = 10
"""Most names that a refusal lists."""
LEAST_PART: Final = 3
"""Fewest characters of an id that are searched for: fewer would match almost any id."""
ID_LENGTH: Final = 32
HALF: Final = "is not UTF-8: it has half a character in it"


def check_name(field: str, value: object, limit: int = NAME_LIMIT) -> str:
    """Check a name: short and printable, because names appear in lists, logs and addresses."""
    if not isinstance(value, str) or not 1 <= len(value) <= limit or not value.isprintable():
        raise InvalidOption(field=field, problem=f"{value!r:.{SHOWN}} must be 1 to {limit} printable characters")
    return value


def optional_name(field: str, value: object, limit: int = NAME_LIMIT) -> str | None:
    return None if value is None else check_name(field, value, limit)


def check_names(field: str, names: object) -> tuple[str, ...]:
    """Check several names. A single text is refused, because it would be read as a list of its letters."""
    if isinstance(names, str):
        raise InvalidOption(field=field, problem=f"is a list of names: {field}=[{names!r:.{SHOWN}}]")
    if not isinstance(names, Iterable):
        raise InvalidOption(field=field, problem=f"{names!r:.{SHOWN}} is not a list of names")
    return tuple([check_name(field, name) for name in names])


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text. Half a character (a wrong decoding) is not: it cannot be stored or sent."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_texts(**texts: object) -> None:
    """Check texts that are stored, by field; None means that the field is not given."""
    for field, text in texts.items():
        if text is None:
            continue
        if isinstance(text, str) and not is_text(text):
            raise InvalidOption(field=field, problem=HALF)
        if not isinstance(text, str) or not 0 < len(text) <= TEXT_LIMIT:
            raise InvalidOption(field=field, problem=f"must be a text of 1 to {TEXT_LIMIT} characters")


def check_words(who: object, why: object) -> None:
    """Check the actor and the reason of an action, which are stored. An empty text means no reason."""
    check_name("who", who)
    if why is not None and why != "":
        check_texts(why=why)


def check_range(field: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        problem = f"{value!r:.{SHOWN}} is not a whole number from {least} to {most}"
        raise InvalidOption(field=field, problem=problem)
    return value


def check_number(
    field: str, value: object, least: float = 0, most: float = MOST, *, above: bool = False, endless: bool = False
) -> float:
    """Check a number. `above` excludes `least` itself; `endless` accepts infinity; NaN is refused."""
    if endless and value == inf:
        return inf
    if not is_number(value) or not least <= value <= most or (above and value == least):
        span = f"above {least}, up to {most}" if above else f"from {least} to {most}"
        problem = f"{value!r:.{SHOWN}} is not a number {span}"
        raise InvalidOption(field=field, problem=problem)
    return value


def check_choice(field: str, value: object, choices: Collection[str]) -> str:
    """Check that a value is one of a few fixed words."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidOption(field=field, problem=f"{value!r:.{SHOWN}} is not one of {', '.join(choices)}")
    return value


def check_known(field: str, value: str, known: Collection[str], owner: str) -> str:
    """Check that the owner has this name; the refusal of an unknown name suggests similar ones."""
    if value in known:
        return value
    listed, more = sorted(known)[:MOST_NAMED], len(known) - MOST_NAMED
    others = f"it has {', '.join(listed)}{f' and {more} more' if more > 0 else ''}" if known else "it has none"
    meant = suggestion(value, known) or others
    raise InvalidInput(field=field, problem=f"{value!r:.{SHOWN}} is no {field} of {owner}; {meant}")


def suggestion(value: str, known: Collection[str]) -> str | None:
    """Return a question that suggests similar known names; None if no known name is similar."""
    from difflib import get_close_matches

    near = get_close_matches(value, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else None


def check_limit(limit: object) -> int:
    """Check the most entries that a listing may return."""
    return check_range("limit", limit, 1, MOST_LISTED)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number. True and False are not, although Python counts them as int."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_id(field: str, value: object) -> str:
    """Check an id. Any text is accepted: the store decides whether the id exists."""
    if not isinstance(value, str):
        raise InvalidInput(field=field, problem=f"{value!r:.{SHOWN}} is not an id: ids are texts")
    if not value.isascii() and not is_text(value):
        raise InvalidInput(field=field, problem=HALF)
    return value


def is_part_of_id(text: str) -> bool:
    """Return whether a text is long enough to find a job by a part of its id."""
    return LEAST_PART <= len(text) <= ID_LENGTH and text.isalnum()


def the_only(matches: Sequence[T], part: str, field: str) -> T | None:
    """Return the only match for a part of an id: None if no id has the part or it is too short. Refuses several."""
    if len(part) < LEAST_PART:
        return None
    if len(matches) > 1:
        raise InvalidInput(field=field, problem=f"{part!r:.{SHOWN}} is part of several ids; give more of it")
    return matches[0] if matches else None
