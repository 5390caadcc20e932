"""What a move adds to the books: nothing for most, and for a dead letter its end in the hour in which it died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from redrive.core.bookings import Booking, book_imported, book_move, class_and_detail, joins_group
from redrive.core.job import State
from redrive.core.lifecycle import MOVES, Transition, restored, succeeded
from tests.core.test_lifecycle import ARROWS, job_in
from tests.stores.jobs import T0

DIED = T0 - 7200.0
AT = T0 + 1
"""When every arrow of ARROWS happens."""
WAITED = AT - DIED


def moved(arrow: str, **fields: Any) -> Transition:
    """The arrow, from the first state that has it."""
    source = MOVES[arrow].sources[0]
    assert source is not None
    return ARROWS[arrow](job_in(source, **fields))


@pytest.mark.parametrize("arrow", sorted(ARROWS.keys() - {"buried", "restored"}))
def test_a_job_that_never_died_is_not_in_the_books(arrow: str) -> None:
    assert list(book_move(moved(arrow))) == []


@pytest.mark.parametrize("arrow", ["buried", "restored"])
def test_what_dies_is_booked_when_it_dies_and_only_once(arrow: str) -> None:
    assert list(book_move(moved(arrow))) == [Booking(AT, "died")]
    again = [booking.what for booking in book_move(moved(arrow, died_at=DIED))]
    assert "died" not in again


PERSON = [Booking(DIED, "person", seconds=WAITED)]
BACK = [*PERSON, Booking(AT, "back", "person")]


@pytest.mark.parametrize(
    ("arrow", "fields", "expected"),
    [
        ("succeeded", {"revived_by": "person"}, BACK),
        ("succeeded", {"revived_by": "auto"}, [Booking(DIED, "auto", seconds=WAITED), Booking(AT, "back", "auto")]),
        ("succeeded", {}, BACK),
        ("resolved", {"revived_by": "auto"}, BACK),
        ("discarded", {}, PERSON),
        ("cancelled", {}, PERSON),
        ("purged", {}, PERSON),
        ("restored", {"updated_at": T0}, [Booking(DIED, "person", number=-1, seconds=DIED - T0)]),
        ("deferred", {}, [Booking(DIED, "deferred")]),
        ("deferred", {"deferrals": 1}, []),
        ("redriven", {}, []),
        ("buried", {}, []),
        ("recalled", {"deferrals": 1}, []),
    ],
)
def test_a_dead_letters_end_is_booked_in_the_hour_in_which_it_died(
    arrow: str, fields: dict[str, Any], expected: Sequence[Booking]
) -> None:
    assert list(book_move(moved(arrow, died_at=DIED, **fields))) == expected


def test_purging_what_was_discarded_does_not_book_its_end_twice() -> None:
    assert list(book_move(ARROWS["purged"](job_in(State.discarded, died_at=DIED)))) == []


@pytest.mark.parametrize(("worked", "what"), [(True, "worked"), (False, "failed")])
def test_what_was_tried_is_booked_when_it_was_tried_beside_the_end(worked: bool, what: Any) -> None:
    tried = msgspec.structs.replace(moved("succeeded", died_at=DIED), lesson=("f" * 16, "set_model", worked))
    assert list(book_move(tried)) == [*BACK, Booking(AT, what, "set_model")]


def test_what_was_dead_when_it_came_died_when_somebody_says() -> None:
    assert book_imported(job_in(State.dead, died_at=DIED)) == Booking(DIED, "died")
    assert book_imported(job_in(State.dead, updated_at=T0)) == Booking(T0, "died")


def test_a_move_is_counted_under_the_failure_that_it_writes() -> None:
    assert class_and_detail(moved("buried")) == ("OutOfStock", "network")
    assert class_and_detail(moved("snoozed")) == ("", "")
    mended = succeeded(job_in(State.running, error_class="E", detail="network"), AT, None)
    assert class_and_detail(mended) == ("", ""), "a success drops the marks of the failure before it"


def test_a_burial_with_a_fingerprint_is_one_more_of_its_trouble() -> None:
    burial = moved("buried")
    assert joins_group(burial)
    assert not joins_group(msgspec.structs.replace(burial, set={**burial.set, "fingerprint": None}))
    assert not joins_group(moved("retried"))


def test_what_was_let_go_before_it_could_die_is_one_more_of_its_trouble_when_it_is_brought_back() -> None:
    failed = job_in(State.discarded, because="cancelled", fingerprint="f" * 16, error_class="E", error="E: no")
    assert joins_group(restored(failed, AT, who="ada", why=None))
    buried_before = msgspec.structs.replace(failed, died_at=DIED)
    assert not joins_group(restored(buried_before, AT, who="ada", why=None))
