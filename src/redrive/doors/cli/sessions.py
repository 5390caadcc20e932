"""Commands for sessions: answer held jobs (approve, reject), grant consent, read the inbox."""

from __future__ import annotations

from typing import Any, Final

import click

from redrive.core.consent import Grant
from redrive.core.notice import Notice
from redrive.core.redact import redact
from redrive.doors.cli import output
from redrive.doors.cli.arguments import why_option
from redrive.doors.cli.invocation import acting_user, command, command_group, use_app
from redrive.doors.cli.jobs import print_moved
from redrive.doors.cli.text import ago, clean, shorten
from redrive.notices.sessions import InboxView

GRANTS: Final = ("id", "scope", "by", "given", "until", "bound to")
NOTICES: Final = ("notice", "when", "kind", "status", "title", "said")
INBOXES: Final = ("inbox", "messages", "unread", "waiting for you", "latest", "said")


@command()
@click.argument("id")
@why_option
def approve(id: str, why: str | None) -> None:
    """Approve what a held job asks for: consent to exactly this, or its question. The job goes on."""
    job = use_app(lambda rd: rd.jobs.approve(id, who=acting_user(), why=why))
    print_moved(job, "approved", "redrive status {id}")


@command()
@click.argument("id")
@why_option
def reject(id: str, why: str | None) -> None:
    """Reject what a held job asks for.

    A job that needed consent is discarded; a task that asked a question goes on with the answer.
    """
    job = use_app(lambda rd: rd.jobs.reject(id, who=acting_user(), why=why))
    print_moved(job, "rejected", "redrive status {id}")


@command_group()
def consent() -> None:
    """List, grant and revoke the consents of a session."""


@consent.command("list", short_help="List every consent that a session gave.")
@click.argument("session")
def list_(session: str) -> None:
    """List every consent that a session gave, also expired and revoked ones."""
    grants = use_app(lambda rd: rd.sessions.grants(session))
    empty = f"Session {clean(session)} has agreed to nothing: redrive consent grant {clean(session)} TASK"
    output.print_list(grants, GRANTS, _grant_row, empty=empty)


def _grant_row(grant: Grant) -> tuple[object, ...]:
    until = "revoked" if grant.revoked_at else ago(grant.expires_at) if grant.expires_at else "revoked by hand"
    bound = ", ".join(filter(None, (grant.agent, grant.subject, "first runs only" if grant.blanket else None)))
    return grant.id[-8:], clean(grant.scope), clean(grant.by), ago(grant.at), until, bound or "any input"


@consent.command()
@click.argument("session")
@click.argument("scope")
@click.option("--agent", metavar="NAME", help="Only for this agent.")
@click.option("--expires", metavar="SECONDS", type=float, help="Let it expire after so many seconds.")
@click.option("--blanket", is_flag=True, help="Everything, but first runs only: no later replay.")
@why_option
def grant(session: str, scope: str, agent: str | None, expires: float | None, blanket: bool, why: str | None) -> None:
    """Agree to a task, or to all tasks with this consent label."""
    how: dict[str, Any] = {"agent": agent, "expires": expires, "blanket": blanket, "why": why}
    given = use_app(lambda rd: rd.sessions.grant(session, scope, by=acting_user(), **how))
    name = clean(session)
    undo = f"take it back: redrive consent revoke {name} {given.id}"
    output.print_answer(given, f"granted {clean(scope)} to session {name}; {undo}")


@consent.command()
@click.argument("session")
@click.argument("grant")
def revoke(session: str, grant: str) -> None:
    """Revoke a consent, from now on."""
    revoked = use_app(lambda rd: rd.sessions.revoke(session, grant))
    output.print_answer({"revoked": revoked.id}, f"revoked {clean(revoked.scope)} of session {clean(session)}")


@command()
@click.argument("session", required=False)
@click.option("--ack", metavar="ID", help="Mark this notice as seen. A unique part of its id is enough.")
@click.option("--all", "everything", is_flag=True, help="Also list what was seen or dealt with.")
def inbox(session: str | None, ack: str | None, everything: bool) -> None:
    """List the notices of a SESSION: how its work ended, and what waits for an answer.

    SESSION may be an owner of dead letters: `editor` is read as `owner:editor` if no session has that name.
    Without SESSION: every inbox, those that wait for an answer first.
    """
    if session is None:
        inboxes = use_app(lambda rd: rd.sessions.inboxes())
        output.print_list(inboxes, INBOXES, _inbox_row, empty="No session has a notice yet.")
        return
    name = use_app(lambda rd: rd.sessions.named(session))
    if ack is not None:
        seen = use_app(lambda rd: rd.sessions.acknowledge(name, ack))
        output.print_answer(seen, f"seen: {clean(seen.title)} ({seen.id})")
        return
    notices = use_app(lambda rd: rd.sessions.inbox(name, unread=not everything))
    body = [notice.public() | {"result": redact(notice.result)} for notice in notices]
    output.print_list(notices, NOTICES, _notice_row, empty=f"Nothing for session {clean(session)}.", body=body)


def _inbox_row(view: InboxView) -> tuple[object, ...]:
    return view.session, view.messages, view.unread, view.pending, ago(view.latest.at), shorten(view.latest.title)


def _notice_row(notice: Notice) -> tuple[object, ...]:
    name = f"{notice.job_id[-8:]}.{notice.kind}.{notice.turn}" if notice.job_id else notice.id
    return name, ago(notice.at), notice.kind, notice.status, notice.title, shorten(notice.text)
