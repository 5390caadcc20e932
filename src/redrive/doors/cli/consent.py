"""Answering what held jobs ask: approve, reject; and the grants of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared, who, why
from redrive.doors.cli.jobs import tell_moved
from redrive.doors.cli.text import ago, clean

if TYPE_CHECKING:
    from redrive.core.consent import Grant


@click.command(short_help="Say yes to what a held job asks for.")
@click.argument("id")
@why
@shared
def approve(id: str, why: str | None) -> None:
    """Yes to what a held job asks for: consent to exactly this, or its question. It goes on."""
    tell_moved(ask(lambda rd: rd.jobs.approve(id, who=who(), why=why)), "approved", "redrive status {id}")


@click.command(short_help="Say no to what a held job asks for.")
@click.argument("id")
@why
@shared
def reject(id: str, why: str | None) -> None:
    """Say no to what a held job asks for.

    A job that needed consent is discarded; a task that asked a question goes on with the answer.
    """
    tell_moved(ask(lambda rd: rd.jobs.reject(id, who=who(), why=why)), "rejected", "redrive status {id}")


@click.group()
@shared
def consent() -> None:
    """What the session that asked for work has agreed to."""


@consent.command("list", short_help="Everything a session ever agreed to.")
@click.argument("session")
@shared
def list_(session: str) -> None:
    """Everything a session ever agreed to, also what expired or was revoked."""
    grants = ask(lambda rd: rd.sessions.grants(session))
    if output.as_json():
        import msgspec

        output.say_json([msgspec.to_builtins(grant) for grant in grants])
    elif grants:
        output.table(("id", "scope", "by", "given", "until", "bound to"), map(_row, grants))
    else:
        output.say(f"Session {clean(session)} has agreed to nothing: redrive consent grant {clean(session)} TASK")


def _row(grant: Grant) -> tuple[object, ...]:
    until = "revoked" if grant.revoked_at else ago(grant.expires_at) if grant.expires_at else "revoked by hand"
    bound = ", ".join(filter(None, (grant.agent, grant.subject, "first runs only" if grant.blanket else None)))
    return grant.id[-8:], clean(grant.scope), clean(grant.by), ago(grant.at), until, bound or "any input"


@consent.command()
@click.argument("session")
@click.argument("scope")
@click.option("--agent", metavar="NAME", help="Only for this agent.")
@click.option("--expires", metavar="SECONDS", type=float, help="Counts no more after so many seconds.")
@click.option("--blanket", is_flag=True, help="Everything, but first runs only: no later replay.")
@why
@shared
def grant(session: str, scope: str, agent: str | None, expires: float | None, blanket: bool, why: str | None) -> None:
    """Agree to a task, or to all tasks with this consent label."""
    given = ask(
        lambda rd: rd.sessions.grant(session, scope, by=who(), agent=agent, expires=expires, blanket=blanket, why=why)
    )
    if output.as_json():
        import msgspec

        output.say_json(msgspec.to_builtins(given))
    else:
        output.say(f"granted {clean(scope)} to session {clean(session)}; take it back: redrive consent revoke "
                   f"{clean(session)} {given.id}")  # fmt: skip


@consent.command()
@click.argument("session")
@click.argument("grant")
@shared
def revoke(session: str, grant: str) -> None:
    """It counts no more, from now on."""
    taken = ask(lambda rd: rd.sessions.revoke(session, grant))
    if output.as_json():
        output.say_json({"revoked": taken.id})
    else:
        output.say(f"revoked {clean(taken.scope)} of session {clean(session)}")
