"""What a session is told, and saying that it has been seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.text import ago, clean, short

if TYPE_CHECKING:
    from redrive.core.notice import Notice
    from redrive.notices.inboxes import InboxView

COLUMNS = ("notice", "when", "kind", "status", "title", "said")


@click.command(short_help="What a SESSION or an owner is told; without one, who was told something.")
@click.argument("session", required=False)
@click.option("--ack", metavar="ID", help="It has been seen. Any part of the id that only one notice has will do.")
@click.option("--all", "everything", is_flag=True, help="Also what was seen or dealt with.")
@shared
def inbox(session: str | None, ack: str | None, everything: bool) -> None:
    """What a SESSION is told: how its work ended, and what waits for an answer.

    SESSION may be an owner of dead letters: `editor` is read as `owner:editor` where no session has that name.
    Without SESSION: every inbox, those that wait for an answer first.
    """
    if session is None:
        _tell_inboxes()
        return
    named = ask(lambda rd: rd.sessions.named(session))
    if ack is not None:
        seen = ask(lambda rd: rd.sessions.acknowledge(named, ack))
        output.say_json(seen.public()) if output.as_json() else output.say(f"seen: {clean(seen.title)} ({seen.id})")
        return
    found = ask(lambda rd: rd.sessions.inbox(named, unread=not everything))
    if output.as_json():
        from redrive.core.redact import redact

        output.say_json([notice.public() | {"result": redact(notice.result)} for notice in found])
    elif found:
        output.table(COLUMNS, map(_row, found))
    else:
        output.say(f"Nothing for session {clean(session)}.")


INBOXES: Final = ("inbox", "messages", "unread", "waiting for you", "latest", "said")


def _tell_inboxes() -> None:
    found = ask(lambda rd: rd.sessions.inboxes())
    if output.as_json():
        output.say_json([view.public() for view in found])
    elif found:
        output.table(INBOXES, map(_inbox_row, found))
    else:
        output.say("No session was told anything so far.")


def _inbox_row(view: InboxView) -> tuple[object, ...]:
    return view.session, view.messages, view.unread, view.pending, ago(view.latest.at), short(view.latest.title)


def _row(notice: Notice) -> tuple[object, ...]:
    name = f"{notice.job_id[-8:]}.{notice.kind}.{notice.turn}" if notice.job_id else notice.id
    return name, ago(notice.at), notice.kind, notice.status, notice.title, short(notice.text)
