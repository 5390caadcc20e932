"""Which redrives are under way, and the groups that each of them keeps from the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from redrive.core.documents import Kind
from redrive.deadletters.bulk.run import HOLDS_GROUPS, RedriveRun


class Flight(msgspec.Struct, frozen=True, omit_defaults=True):
    """A redrive that is not over, and the groups that nobody else may take meanwhile."""

    at: float
    groups: tuple[str, ...] = ()
    frozen: bool = False
    """Whether its items are all written; until then it is being started, or its starter has died."""


Flights = dict[str, Flight]
REDRIVE_FLIGHTS: Final = Kind[Flights]("redrive_flights", Flights)


def in_the_way(flights: Flights, groups: Iterable[str]) -> dict[str, str]:
    """Which of these groups are being moved, and by which redrive."""
    wanted = set(groups)
    return {group: id for id, flight in flights.items() for group in flight.groups if group in wanted}


def flight_of(run: RedriveRun, flight: Flight | None) -> Flight | None:
    """What the run still needs of its flight: nothing when it is over, no groups when all of them have moved."""
    if run.over or flight is None:
        return None
    return flight if run.state in HOLDS_GROUPS else msgspec.structs.replace(flight, groups=())
