"""What a session is told, and saying that it has been seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.text import ago, clean, short

if TYPE_CHECKING:
    from redrive.core.notices import Notice

COLUMNS = ("notice", "when", "kind", "status", "title", "said")


@click.command(short_help="What a SESSION is told, and what waits for an answer.")
@click.argument("session")
@click.option("--ack", metavar="ID", help="It has been seen. Any part of the id that only one notice has will do.")
@click.option("--all", "everything", is_flag=True, help="Also what was seen or dealt with.")
@shared
def inbox(session: str, ack: str | None, everything: bool) -> None:
    """What a SESSION is told: how its work ended, and what waits for an answer."""
    if ack is not None:
        seen = ask(lambda rd: rd.sessions.acknowledge(session, ack))
        output.say_json(seen.public()) if output.as_json() else output.say(f"seen: {clean(seen.title)} ({seen.id})")
        return
    found = ask(lambda rd: rd.sessions.inbox(session, unread=not everything))
    if output.as_json():
        from redrive.core.redact import redact

        output.say_json([notice.public() | {"result": redact(notice.result)} for notice in found])
    elif found:
        output.table(COLUMNS, map(_row, found))
    else:
        output.say(f"Nothing for session {clean(session)}.")


def _row(notice: Notice) -> tuple[object, ...]:
    name = f"{notice.job_id[-8:]}.{notice.kind}.{notice.turn}" if notice.job_id else notice.id
    return name, ago(notice.at), notice.kind, notice.status, notice.title, short(notice.text)
