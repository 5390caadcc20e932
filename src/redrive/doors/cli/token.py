"""`redrive token`: what programs and browsers must show to be let in, and the named tokens of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, connect, refuse_missing, shared, who
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.serve import HOST, PORT, link_to

if TYPE_CHECKING:
    from redrive.core.tokens import NewToken, Token

COLUMNS: Final = ("name", "role", "standing", "expires", "last used", "added", "by")
ROLES: Final = ("look", "act", "purge", "worker")
"""As in core/tokens.py, which is not imported before it is needed."""


def _port(command: Any) -> Any:
    numbers = click.IntRange(1, 65535)
    return click.option("--port", metavar="N", type=numbers, default=PORT, show_default=True, help="For the link.")(
        command
    )


@click.group(invoke_without_command=True, short_help="Show the owner's token; add, list and revoke named ones.")
@click.option("--rotate", is_flag=True, help="Make a new one. The old one opens nothing any more, from this moment on.")
@click.option("--link", is_flag=True, help="The link that lets a browser in, instead of the token.")
@_port
@shared
@click.pass_context
def token(ctx: click.Context, rotate: bool, link: bool, port: int) -> None:
    """Show the owner's token of this database's server; make it where there is none yet.

    It may do everything, so give others a token of their own: `redrive token add`.

    Programs send it: curl -H "Authorization: Bearer $(redrive token)" http://127.0.0.1:8420/v1/health
    """
    if ctx.invoked_subcommand is not None:
        if rotate or link:
            raise Problem("--rotate and --link are for the owner's token", f"redrive token {ctx.invoked_subcommand} -h")
        return
    _show_owner(rotate=rotate, link=link, port=port)


def _show_owner(*, rotate: bool, link: bool, port: int) -> None:
    from redrive.doors.web import token_file

    rd = connect(creates=True)
    kept = token_file(rd)
    if kept.path is None:
        raise Problem("a database in memory has no token of its own", "name a file with --url or REDRIVE_URL")
    refuse_missing(rd)  # a slip in the name would leave a token for nothing
    found = kept.rotate() if rotate else kept()
    shown = link_to(HOST, port, found)
    if output.as_json():
        output.say_json({"token": found, "link": shown, "file": str(kept.path)})
    else:
        output.say(shown if link else found)


@token.command(short_help="Make a token with a name and a role.")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do.")
@click.option("--expires", metavar="WHEN", help="When it ends: 30d, 12h, or a time with its zone. Else it does not.")
@click.option("--link", is_flag=True, help="The link that lets a browser in, instead of the token.")
@_port
@click.option("--show", is_flag=True, help="Print the token also where standard output is not a terminal.")
@shared
def add(name: str, role: Any, expires: str | None, link: bool, port: int, show: bool) -> None:
    """Make a token called NAME and print it, this once: only its hash is kept.

    look reads everything but secrets; act also acts; purge also purges and erases; worker is for machines that run
    jobs through a hub over HTTPS, and opens nothing else. What is done with a token is recorded under its name. Every
    server and hub on the same store knows it at once.

    \b
    Examples:
      redrive token add ann --role act --expires 30d
      redrive token add wall --role look --link
      redrive token add runner-7 --role worker --show > runner-7.token
    """
    _check_place(role, link=link, show=show)
    said = _expiry(expires)
    made = ask(lambda rd: rd.tokens.add(name, role, expires=said, who=who()))
    _tell(made, link_to(HOST, port, made.secret), link=link)


def _check_place(role: str, *, link: bool, show: bool) -> None:
    """Before anything is made: a token that cannot be shown would be lost."""
    import sys

    if link and role == "worker":
        raise Problem("--link: a worker's token opens no dashboard", "leave --link out")
    if not show and not sys.stdout.isatty():
        raise Problem(
            "standard output is no terminal: the token would stand in a log or a file",
            "repeat it with --show if that is meant",
        )


def _expiry(expires: str | None) -> Any:
    from datetime import UTC

    from redrive.core import times

    return None if expires is None else times.read("expires", expires, zone=UTC)


def _tell(made: NewToken, address: str, *, link: bool) -> None:
    kept = made.token
    if output.as_json():
        opens = {} if kept.role == "worker" else {"link": address}
        output.say_json({**kept.public(kept.at), "token": made.secret, **opens})
        return
    until = f" until {_day(kept.expires_at)}" if kept.expires_at is not None else ""
    output.warn(f"{kept.name} has the role {kept.role}{until}. This is shown once:")
    output.say(address if link else made.secret, verbatim=True)


def _day(at: float) -> str:
    from redrive.core.job import iso

    return str(iso(at))


@token.command("list", short_help="Named tokens, their roles and last use.")
@shared
def list_() -> None:
    """Show the named tokens: role, whether each still opens anything, when it ends and was last used.

    The last use is known to within an hour. The owner's token stands in a file beside the database.
    """
    found, now = ask(_listed)
    if output.as_json():
        output.say_json([one.public(now) for one in found])
    elif found:
        output.table(COLUMNS, [_row(one, now) for one in found])
    else:
        output.say("There are no named tokens. `redrive token add NAME --role ROLE` makes one.")


async def _listed(rd: Any) -> tuple[list[Token], float]:
    return await rd.tokens.list(), rd.tokens.now()


def _row(one: Token, now: float) -> tuple[object, ...]:
    from redrive.doors.cli.text import ago

    ends = _day(one.expires_at) if one.expires_at is not None else "never"
    used = ago(one.used_at) if one.used_at is not None else "never"
    return one.name, one.role, one.standing(now), ends, used, ago(one.at), one.by


@token.command(short_help="Have a token open nothing any more.")
@click.argument("name")
@shared
def revoke(name: str) -> None:
    """Have the token NAME open nothing from now on. Streams that it has opened end."""
    revoked = ask(lambda rd: rd.tokens.revoke(name, who=who()))
    if output.as_json():
        output.say_json(revoked.public(revoked.revoked_at or 0.0))
    else:
        output.say(f"{revoked.name} opens nothing any more, since {_day(revoked.revoked_at or 0.0)}.")
