"""Many moves that write the same columns, as two statements.

The caller of `apply` makes them in its own thread: while the writer's thread did it, every other caller would wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final

import apsw
import msgspec

from redrive.core.job import Attempt, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Applied, Commit
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.rollups import Rollup

_json = msgspec.json.Encoder().encode
_Statement = tuple[str, tuple[object, ...]]
RENAMED: Final = frozenset({"agent", "queue"})
"""A move that writes one of these takes its job to another route."""


class Batch:
    """Moves of one kind: all of them are written, or none."""

    def __init__(self, indexes: Sequence[int], moves: Sequence[Transition], *, plain: bool) -> None:
        self.indexes = indexes
        """The places of their commits in the group."""
        self.outcomes = [Applied((move.job.version + 1,)) for move in moves]
        self.to = moves[0].to
        self.sources: Counter[tuple[str, str, str | None, State]] = Counter(
            map(attrgetter("queue", "task", "agent", "state"), [move.job for move in moves])
        )
        """How many come from which queue, task, agent and state."""
        self.rollup = Rollup()
        if plain:
            at = max(move.at for move in moves)
            self._update, self._insert = _make_succeed(moves, at)
            for (queue, task, agent, _), number in self.sources.items():
                self.rollup.count(at, (queue, task, agent), "succeeded", number)
        else:
            self._update, self._insert = _make_move_many(moves)
            for move in moves:
                self.rollup.add_move(move)

    def write(self, connection: apsw.Connection) -> bool:
        """Write them; False where a fence of one of them does not hold: then the caller rolls back."""
        connection.execute(*self._update)
        if connection.changes() != len(self.outcomes):
            return False
        connection.execute(*self._insert)
        return True


def make_batches(group: Sequence[Commit]) -> list[Batch]:
    """Batch the commits that are single moves of one kind, as most commits are."""
    return [
        Batch(indexes, [group[index].transitions[0] for index in indexes], plain=kind == _PLAIN)
        for kind, indexes in _sort_by_kind(group).items()
        if len(indexes) > 1
    ]


_PLAIN: Final = ("plain success",)
"""The kind of a success of which the job's row says all: no attempt is stored beside it."""
_PLAIN_FIELDS: Final = len(("result", "attempts", "token"))


def _sort_by_kind(group: Sequence[Commit]) -> dict[tuple[str, ...], list[int]]:
    """Sort the commits that are one move each by what they write."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for index, commit in enumerate(group):
        if len(commit.transitions) != 1 or commit.puts or commit.guards:
            continue
        move = commit.transitions[0]
        if move.move == "succeeded" and len(move.set) == _PLAIN_FIELDS and not (move.attempt or move.lesson):
            kinds.setdefault(_PLAIN, []).append(index)
        elif RENAMED.isdisjoint(move.set) and move.to is not State.purged:
            kinds.setdefault((move.move, *move.set), []).append(index)
    return kinds


_SUCCEED: Final = (
    "UPDATE jobs SET state = 'done', token = NULL, result = done.outcome, attempts = attempts + 1, updated_at = ?,"
    " version = version + 1"
    " FROM (SELECT value ->> 0 AS id, value ->> 1 AS fence, value ->> 2 AS lease_token, value ->> 3 AS outcome"
    " FROM jsonb_each(?)) AS done"
    " WHERE jobs.id = done.id AND jobs.version = done.fence AND jobs.token = done.lease_token"
    f" AND {schema.legal_before(State.done)}"
)
_SUCCEEDED: Final = (
    "INSERT INTO moves (job, move, at, run, attempts, state)"
    " SELECT seq, 'succeeded', ?, run, attempts, 'done' FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
)


def _make_succeed(moves: Sequence[Transition], at: float) -> tuple[_Statement, _Statement]:
    rows = [(move.job.id, move.job.version, move.job.token, move.set["result"]) for move in moves]
    ids = [move.job.id for move in moves]
    return (_SUCCEED, (at, _json(rows).decode())), (_SUCCEEDED, (at, _json(ids).decode()))


_INSERT_MOVES: Final = (
    "INSERT INTO moves (job, move, at, run, attempts, state, who, why, attempt, error_kind)"
    " SELECT jobs.seq, ?, value ->> 0, jobs.run, jobs.attempts, ?, value ->> 1, value ->> 2,"
    " nullif(value -> 3, 'null'), value ->> 4 FROM jsonb_each(?) JOIN jobs ON jobs.id = value ->> 5"
)


def _make_move_many(moves: Sequence[Transition]) -> tuple[_Statement, _Statement]:
    """Bind values that all moves share once: where many fail alike, most of them are."""
    name, to = moves[0].move, str(moves[0].to)
    values = dict(zip(moves[0].set, zip(*[move.set.values() for move in moves], strict=True), strict=True))
    shared = {column: many[0] for column, many in values.items() if many.count(many[0]) == len(many)}
    own = {column: many for column, many in values.items() if column not in shared}
    fences = zip(*map(list_fence, moves), strict=True)
    rows = list(zip(*fences, [move.at for move in moves], *own.values(), strict=True))
    update = _make_update_many(tuple(shared), tuple(own), moves[0].to), (to, *shared.values(), _json(rows).decode())
    return update, (_INSERT_MOVES, (name, to, _json([list_move_values(move) for move in moves]).decode()))


@lru_cache(maxsize=256)
def _make_update_many(shared: tuple[str, ...], own: tuple[str, ...], to: State) -> str:
    named = "".join(f", value ->> {place} AS new_{name}" for place, name in enumerate(own, start=4))
    assigned = [f"{name} = ?" for name in ("state", *shared)] + [f"{name} = many.new_{name}" for name in own]
    return (
        f"UPDATE jobs SET {', '.join(assigned)}, updated_at = many.at, version = version + 1"
        " FROM (SELECT value ->> 0 AS job_id, value ->> 1 AS fence, value ->> 2 AS lease_token, value ->> 3 AS at"
        f"{named} FROM jsonb_each(?)) AS many"
        " WHERE jobs.id = many.job_id AND jobs.version = many.fence AND jobs.token IS many.lease_token"
        f" AND {schema.legal_before(to)}"
    )


# -- the values of one move


def list_fence(move: Transition) -> tuple[object, ...]:
    return move.job.id, move.job.version, move.job.token


def list_move_values(move: Transition) -> tuple[float, str | None, str | None, Attempt | None, str | None, str]:
    """List what a row of `moves` says of a move besides its name and its state."""
    attempt = move.attempt
    kind = attempt.failure.error_kind if attempt and attempt.failure else None
    return move.at, move.who, move.why, attempt, kind, move.job.id
