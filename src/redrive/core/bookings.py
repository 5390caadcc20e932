"""What a move adds to the books from which reports are made: decided here, written down by every store.

A dead letter's end is booked in the hour in which it died, so that what died in an hour is what was resolved of it and
what is still open. `OutcomeTally` says what each word means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from redrive.core.job import Job, State
from redrive.core.lifecycle import DEFERRED, Transition

Booked = Literal["died", "auto", "person", "deferred", "back", "worked", "failed"]
NOTHING: Final[tuple[Booking, ...]] = ()
NO_FAILURE: Final = ("", "")
LET_GO: Final = frozenset({"discarded", "cancelled"})
"""Moves by which a person discards a dead letter."""


class Booking(msgspec.Struct, frozen=True, gc=False):
    """One line: so many of this, in the hour of `at`."""

    at: float
    what: Booked
    name: str = ""
    number: int = 1
    seconds: float = 0.0
    """How long the dead letters waited for it, in sum."""


def book_move(move: Transition) -> Sequence[Booking]:
    """What a move means for the dead letter that its job is, was or becomes, and for what was tried with it.

    Nothing, for most moves: this is asked for each of them while it is written.
    """
    died = move.job.died_at
    if died is not None:
        booking = _book_end(move, died)
    elif move.set.get("died_at") is not None:
        booking = (Booking(move.at, "died"),)
    else:
        booking = NOTHING
    if move.lesson is None:
        return booking
    _, strategy, worked = move.lesson
    return (*booking, Booking(move.at, "worked" if worked else "failed", strategy))


def _book_end(move: Transition, died: float) -> tuple[Booking, ...]:
    """Books how a dead letter came to its end, if it did."""
    job, name = move.job, move.move
    if move.to is State.done:
        kind: Booked = "auto" if name == "succeeded" and job.revived_by == "auto" else "person"
        return (Booking(died, kind, "", 1, move.at - died), Booking(move.at, "back", kind))
    if name in LET_GO or (name == "purged" and job.state is State.dead):
        return (Booking(died, "person", "", 1, move.at - died),)
    if name == "restored":  # it was discarded, and now it is not
        return (Booking(died, "person", "", -1, died - job.updated_at),)
    if name == DEFERRED and not job.deferrals:
        return (Booking(died, "deferred"),)
    return NOTHING


def book_imported(job: Job) -> Booking:
    """Books an imported failure in the hour in which it died, where that is known."""
    return Booking(job.died_at or job.updated_at, "died")


def class_and_detail(move: Transition) -> tuple[str, str]:
    """The class and detail under which a move is counted: those of the failure that it writes, if any."""
    said = move.set
    if "error_class" not in said:
        return NO_FAILURE
    return str(said["error_class"] or ""), str(said["detail"] or "")


def joins_group(move: Transition) -> bool:
    """Tells whether a move adds its job to an error group: it died, or was discarded before and is restored."""
    if move.move == "buried":
        return bool(move.set.get("fingerprint"))
    return move.move == "restored" and move.job.died_at is None and move.job.fingerprint is not None
