"""Sessions of clients: a command is executed once, however often and by whatever way its client sends it.

The outcome of each command is kept until its client says that it will not send it again. A client that said no hello,
or whose session has expired, is refused: its late repeat must not be executed a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import apsw

from redrive.core.commands import Command, Hello, Ticket
from redrive.stores.sqlite.outcomes import again, encode, record
from redrive.stores.sqlite.routes import Routes

EXPIRES: Final = 86_400.0
"""Seconds after which the session of a silent client may be forgotten."""


class SessionExpired(Exception):
    """The store does not know this client: nothing was executed."""


class TooLate(Exception):
    """The client had said that it would not send this command again: nothing was executed."""


def begin(connection: apsw.Connection, hello: Hello) -> int:
    """Begin or renew a session, and forget those that are long over; how many were."""
    connection.execute("DELETE FROM clients WHERE seen_at < ?", (hello.now - EXPIRES,))
    forgotten = connection.changes()
    if forgotten:
        connection.execute("DELETE FROM answers WHERE client NOT IN (SELECT id FROM clients)")
    connection.execute(
        "INSERT INTO clients (id, seen_at, level) VALUES (?1, ?2, ?3)"
        " ON CONFLICT (id) DO UPDATE SET seen_at = max(seen_at, ?2), level = ?3",
        (hello.client, hello.now, hello.level),
    )
    return forgotten


def earlier(connection: apsw.Connection, ticket: Ticket) -> bytes | None:
    """The outcome of this command if it was executed before; None if it was not.

    Raises SessionExpired for a client without a session, TooLate for a command that its client had given up.
    """
    row = connection.execute("SELECT never_below FROM clients WHERE id = ?", (ticket.client,)).fetchone()
    if row is None:
        raise SessionExpired
    if ticket.number < row[0]:
        raise TooLate
    found = connection.execute(
        "SELECT outcome FROM answers WHERE client = ? AND number = ?", (ticket.client, ticket.number)
    ).fetchone()
    return found[0] if found else None


def remember(connection: apsw.Connection, ticket: Ticket, outcome: bytes, now: float) -> None:
    """Keep the outcome of a command, and drop those that its client will not ask for again."""
    connection.execute(
        "INSERT INTO answers (client, number, outcome) VALUES (?, ?, ?)", (ticket.client, ticket.number, outcome)
    )
    connection.execute(
        "UPDATE clients SET never_below = max(never_below, ?), seen_at = max(seen_at, ?) WHERE id = ?",
        (ticket.never_below, now, ticket.client),
    )
    connection.execute("DELETE FROM answers WHERE client = ? AND number < ?", (ticket.client, ticket.never_below))


def once(
    connection: apsw.Connection,
    routes: Routes,
    command: Command,
    ticket: Ticket,
    now: float,
    execute: Callable[[], Any],
) -> Any:
    """Execute a command, unless its ticket says that it was executed before: then its outcome is given again."""
    kept = earlier(connection, ticket)
    if kept is not None:
        return again(connection, routes, command, kept)
    outcome = execute()
    remember(connection, ticket, encode(record(command, outcome)), now)
    return outcome
