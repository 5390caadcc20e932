"""Runs statements inside a caller's own transaction: SQLAlchemy, psycopg, asyncpg or Django.

None of these libraries is imported here: a connection is known by the names of its classes, and the caller that gives
one has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from redrive.core.inbox_table import Dialect, Statement, Steps, check_dialect
from redrive.errors import InvalidOption

Rows = Sequence[Sequence[Any]]
_NOT_OPEN: Final = "has no open transaction, so that the job could not be rolled back with your data: {how}"


class Sync(NamedTuple):
    """A connection whose calls return when they are done. It belongs to the thread that gave it."""

    dialect: Dialect
    run: Callable[[Statement], Rows]


class Async(NamedTuple):
    """A connection whose calls must be awaited, in the event loop that it belongs to."""

    dialect: Dialect
    run: Callable[[Statement], Awaitable[Rows]]


def caller_of(within: Any) -> Sync | Async:
    """Finds how to run statements on what a caller gave as `within=`. Refuses what cannot be written into."""
    for kind in type(within).__mro__:
        adapt = _KNOWN.get((kind.__module__.partition(".")[0], kind.__name__))
        if adapt is not None:
            return adapt(within)
    named = f"{type(within).__module__}.{type(within).__qualname__}"
    raise InvalidOption(
        field="within",
        problem=f"{named} is not known; give a session or connection of SQLAlchemy, a connection of psycopg 3 or"
        " asyncpg, or django.db.connection",
    )


def run_now(caller: Sync | Async, steps: Callable[[Dialect], Steps]) -> None:
    """Runs statements on a connection that needs no await, in this thread."""
    if isinstance(caller, Async):
        raise InvalidOption(field="within", problem="this connection must be awaited: use `await task.enqueue(…)`")
    under_way, answer = steps(caller.dialect), None
    while (statement := _next(under_way, answer)) is not None:
        answer = caller.run(statement)


async def run(caller: Sync | Async, steps: Callable[[Dialect], Steps]) -> None:
    """Runs statements on any connection."""
    if isinstance(caller, Sync):
        run_now(caller, steps)
        return
    under_way, answer = steps(caller.dialect), None
    while (statement := _next(under_way, answer)) is not None:
        answer = await caller.run(statement)


def _next(steps: Steps, answer: Rows | None) -> Statement | None:
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration:
        return None


def _fill(statement: Statement, placeholder: str) -> str:
    return statement.sql.format(**{name: placeholder.format(name) for name in statement.values})


def _check_open(is_open: bool, how: str) -> None:
    if not is_open:
        raise InvalidOption(field="within", problem=_NOT_OPEN.format(how=how))


# -- SQLAlchemy


def _session(session: Any) -> Sync:
    return Sync(_dialect_of(session), lambda statement: _rows(session.execute(*_text(statement))))


def _async_session(session: Any) -> Async:
    async def execute(statement: Statement) -> Rows:
        return _rows(await session.execute(*_text(statement)))

    return Async(_dialect_of(session), execute)


def _dialect_of(session: Any) -> Dialect:
    """Returns the dialect of a session or connection of SQLAlchemy, sync or async."""
    if hasattr(session, "dialect"):
        return check_dialect(session.dialect.name)
    try:
        bind = session.get_bind()
    except sys.modules["sqlalchemy"].exc.UnboundExecutionError:
        raise InvalidOption(
            field="within", problem="the session has several databases or none; give session.connection(…) of the one"
        ) from None
    return check_dialect(bind.dialect.name)


def _text(statement: Statement) -> tuple[Any, dict[str, Any]]:
    return sys.modules["sqlalchemy"].text(_fill(statement, ":{}")), dict(statement.values)


def _rows(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


# -- psycopg


def _psycopg(connection: Any) -> Sync:
    _refuse_autocommit(connection)

    def execute(statement: Statement) -> Rows:
        cursor = connection.execute(_fill(statement, "%({})s"), dict(statement.values) or None)
        return _tuples(cursor.fetchall(), cursor) if cursor.description else []

    return Sync("postgresql", execute)


def _async_psycopg(connection: Any) -> Async:
    _refuse_autocommit(connection)

    async def execute(statement: Statement) -> Rows:
        cursor = await connection.execute(_fill(statement, "%({})s"), dict(statement.values) or None)
        return _tuples(await cursor.fetchall(), cursor) if cursor.description else []

    return Async("postgresql", execute)


def _tuples(rows: Sequence[Any], cursor: Any) -> Rows:
    """Makes tuples of rows, also where the connection's row_factory makes dicts of them."""
    names = [column.name for column in cursor.description]
    return [tuple(row[name] for name in names) if isinstance(row, dict) else tuple(row) for row in rows]


def _refuse_autocommit(connection: Any) -> None:
    idle = connection.info.transaction_status == 0
    _check_open(not (connection.autocommit and idle), "use `with connection.transaction():`")


# -- asyncpg


def _asyncpg(connection: Any) -> Async:
    _check_open(connection.is_in_transaction(), "use `async with connection.transaction():`")

    async def execute(statement: Statement) -> Rows:
        numbers = {name: f"${number}" for number, name in enumerate(statement.values, start=1)}
        rows = await connection.fetch(statement.sql.format(**numbers), *statement.values.values())
        return [tuple(row) for row in rows]

    return Async("postgresql", execute)


# -- Django


def _django(connection: Any) -> Sync:
    dialect = check_dialect(connection.vendor)
    _check_open(connection.in_atomic_block or not connection.get_autocommit(), "use `with transaction.atomic():`")

    def execute(statement: Statement) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(_fill(statement, "%({})s"), dict(statement.values) or None)
            return list(cursor.fetchall()) if cursor.description else []

    return Sync(dialect, execute)


_KNOWN: Final[dict[tuple[str, str], Callable[[Any], Sync | Async]]] = {
    ("sqlalchemy", "Session"): _session,
    ("sqlalchemy", "scoped_session"): _session,
    ("sqlalchemy", "Connection"): _session,
    ("sqlalchemy", "AsyncSession"): _async_session,
    ("sqlalchemy", "async_scoped_session"): _async_session,
    ("sqlalchemy", "AsyncConnection"): _async_session,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _async_psycopg,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("django", "ConnectionProxy"): _django,
    ("django", "BaseDatabaseWrapper"): _django,
}
