"""Shortens a payload below a number of tokens without making the payload invalid.

The oldest and largest parts are removed first: context entries, tool results, past turns. The system prompt is kept;
the message that states the task and the newest turn are only cut in the middle, where a marker says how much is
missing. Turns are dropped as a whole, so a call always keeps its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from redrive.core.job import Json
from redrive.retries.changes.draft import Draft, DraftText, list_left_out, put_together, take_apart
from redrive.retries.changes.reading import Counter, estimate, tokens
from redrive.retries.changes.shapes import Adapt, locate

OLD_TEXT: Final = (10_000, 2_000)
"""The lengths in characters to which old texts are cut, one after the other, before whole turns are dropped."""
SHORTEST: Final = 80
"""No text is cut to fewer characters than this."""
SUMMARY_SHARE: Final = 10
"""One part in this many of the limit is kept free for a summary while deciding what to leave out."""


class Compressed(msgspec.Struct, frozen=True):
    payload: dict[str, Json]
    left_out: tuple[str, ...]


class TooLong(msgspec.Struct, frozen=True):
    """The length of the parts that must be kept, if these parts alone exceed the limit."""

    tokens: int


def compress(
    payload: Mapping[str, Json],
    max_tokens: int,
    adapt: Adapt | None = None,
    count: Counter = estimate,
    summary: str | None = None,
) -> Compressed | TooLong:
    """Shorten the payload below `max_tokens`; returns TooLong if even the parts that must be kept are longer."""
    draft = take_apart(payload, locate(payload, adapt), max_tokens, count, summary)
    for step in _STEPS:
        if draft.fits:
            break
        step(draft)
    if not draft.fits:
        return TooLong(draft.total)
    _give_back(draft)
    return Compressed(put_together(draft), tuple(list_left_out(draft)))


def find_dropped(
    payload: Mapping[str, Json], max_tokens: int, adapt: Adapt | None = None, count: Counter = estimate
) -> str | None:
    """Return the text that compressing would leave out, so that the text can be summarised; None if there is none.

    Some room stays free while deciding, so that a summary does not push out more text than the summary covers.
    """
    now = tokens(payload, adapt, count)
    if now is None or now < max_tokens:
        return None
    for under in (max_tokens - max_tokens // SUMMARY_SHARE, max_tokens):
        result = compress(payload, under, adapt, count)
        if isinstance(result, Compressed):
            return "\n\n".join(result.left_out) or None
    return None


# ---- the steps, mildest first; each stops as soon as the draft fits


def _cut_giants(draft: Draft) -> None:
    """Cut single texts that take much of the room before anything is dropped: such a text made the input too long."""
    _cut_above(draft, draft.texts(asked=False), most=draft.under // 4, share=draft.under // 4)
    _cut_above(draft, draft.texts(asked=True), most=draft.under, share=draft.under // 2)


def _cut_above(draft: Draft, found: list[DraftText], *, most: int, share: int) -> None:
    for text in found:
        if draft.fits or text.cost <= most:
            return
        draft.cut(text, max(SHORTEST, len(text.whole) * share // text.cost))


def _cut_old(draft: Draft, keep: int) -> None:
    for text in draft.texts(pinned=False, asked=False) + draft.texts(pinned=False, asked=True):
        if draft.fits:
            return
        draft.cut(text, keep)


def _drop_old(draft: Draft) -> None:
    for group in draft.groups:
        if draft.fits:
            return
        if not group.pinned:
            draft.drop(group)


def _level(draft: Draft, *, asked: bool) -> None:
    """Cut all these texts to the greatest common length that fits: the longest lose most, short ones nothing."""
    texts = draft.texts(asked=asked)
    longest = max((text.keep for text in texts), default=0)
    level = _greatest(SHORTEST, longest, lambda keep: sum(-draft.saving(text, keep) for text in texts), draft)
    for text in texts:
        draft.cut(text, level)


def _give_back(draft: Draft) -> None:
    """Restore text that was cut without need, the shortest of the cut texts first."""
    texts = [text for asked in (False, True) for text in draft.texts(asked=asked) if text.is_cut]
    longest = max((len(text.whole) for text in texts), default=0)
    level = _greatest(0, longest, lambda keep: sum(draft.price(text, keep) for text in texts), draft)
    for text in texts:
        draft.grow(text, level)


def _greatest(low: int, high: int, change: Callable[[int], int], draft: Draft) -> int:
    """Find the greatest length, to a few percent, for which the draft fits; the lowest if none does.

    Counting tokens may be slow, so the search does not go to the last character.
    """
    while high - low > low // 32:
        middle = (low + high + 1) // 2
        if draft.total + change(middle) < draft.under:
            low = middle
        else:
            high = middle - 1
    return low


_STEPS: Final[tuple[Callable[[Draft], None], ...]] = (
    _cut_giants,
    *(partial(_cut_old, keep=keep) for keep in OLD_TEXT),
    _drop_old,
    partial(_level, asked=False),
    partial(_level, asked=True),
)
