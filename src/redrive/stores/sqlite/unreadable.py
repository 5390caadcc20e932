"""Due jobs whose records cannot be read as they are. None of them may keep the others from running."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import apsw

from redrive.stores.sqlite.claims import DUE, Open, look_at
from redrive.stores.sqlite.reads import UNREADABLE
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import select, select_leniently

log = logging.getLogger("redrive.store")
AGAIN: Final = 60.0
"""Seconds until such a job is looked at again."""
_DUE: Final = f"SELECT seq {DUE} ORDER BY run_at, seq LIMIT ?"
_LATER: Final = "UPDATE jobs SET run_at = ?, version = version + 1 WHERE seq = ? AND state = 'waiting'"
_OPEN: Final = (
    "SELECT seq FROM jobs WHERE state IN ('waiting', 'running', 'held', 'dead') AND seq > ? ORDER BY seq LIMIT ?"
)
_PAGE: Final = 500


def put_off(connection: apsw.Connection, routes: Routes, due: Iterable[Open], slots: int, now: float) -> int:
    """How many of the due jobs a claim cannot read: they wait for another minute, and are told of each time."""
    seqs = [
        seq
        for route in due
        for priority in route.due
        for (seq,) in select(connection, _DUE, (route.id, priority, now, slots))
    ]
    found = {seq: problem for seq in seqs if (problem := problem_of(connection, routes, seq)) is not None}
    for seq, problem in found.items():
        connection.execute(_LATER, (now + AGAIN, seq))
        log.critical(
            "job %s is due and cannot be read (%s): it is tried again in %d s. `redrive doctor --full` tells of all"
            " such jobs; cancel it, or restore a backup", name_of(connection, seq), problem, AGAIN,
        )  # fmt: skip
    return len(found)


def problem_of(connection: apsw.Connection, routes: Routes, seq: int) -> Exception | None:
    """What keeps a claim from reading this job, if anything."""
    try:
        look_at(connection, routes, [seq])
    except UNREADABLE as error:
        return error
    return None


def unreadable(connection: apsw.Connection, routes: Routes) -> dict[str, Exception]:
    """Of all jobs that have not ended, those that no claim could read, by id."""
    found: dict[str, Exception] = {}
    after = -1
    while seqs := [seq for (seq,) in select(connection, _OPEN, (after, _PAGE))]:
        after = seqs[-1]
        try:
            look_at(connection, routes, seqs)
        except UNREADABLE:
            problems = {seq: problem_of(connection, routes, seq) for seq in seqs}
            found |= {name_of(connection, seq): problem for seq, problem in problems.items() if problem is not None}
    return found


def name_of(connection: apsw.Connection, seq: int) -> str:
    ((id,),) = select_leniently(connection, "id", "FROM jobs WHERE seq = ?", (seq,))
    return str(id)
