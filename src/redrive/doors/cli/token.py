"""`redrive token` shows the owner's token of a server, and adds, lists and revokes named tokens."""

from __future__ import annotations

import sys
from datetime import UTC
from typing import Any, Final

import click

from redrive.core import times
from redrive.core.job import iso
from redrive.core.tokens import ROLES, NewToken, Token
from redrive.doors.cli import output
from redrive.doors.cli.invocation import acting_user, command_group, connect, refuse_missing, use_app
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.serve import HOST, PORT, link_to
from redrive.doors.cli.text import ago

COLUMNS: Final = ("name", "role", "standing", "expires", "last used", "added", "by")


PORTS: Final = click.IntRange(1, 65535)
port_option = click.option("--port", metavar="N", type=PORTS, default=PORT, show_default=True, help="For the link.")


@command_group(invoke_without_command=True)
@click.option("--rotate", is_flag=True, help="Make a new one. The old one stops working at once.")
@click.option("--link", is_flag=True, help="Print a link for browsers instead of the token.")
@port_option
@click.pass_context
def token(ctx: click.Context, rotate: bool, link: bool, port: int) -> None:
    """Show the owner's token of this database's server; make it where there is none yet.

    It may do everything, so give others a token of their own: `redrive token add`.

    Programs send it: curl -H "Authorization: Bearer $(redrive token)" http://127.0.0.1:8420/v1/health
    """
    if ctx.invoked_subcommand is not None:
        if rotate or link:
            raise Refusal("--rotate and --link are for the owner's token", f"redrive token {ctx.invoked_subcommand} -h")
        return
    _show_owner(rotate=rotate, link=link, port=port)


def _show_owner(*, rotate: bool, link: bool, port: int) -> None:
    from redrive.doors.web import token_file

    rd = connect(creates=True)
    kept = token_file(rd)
    if kept.path is None:
        raise Refusal("a database in memory has no token of its own", "name a file with --url or REDRIVE_URL")
    refuse_missing(rd)  # a misspelt name would leave a token for nothing
    secret = kept.rotate() if rotate else kept()
    shown = link_to(HOST, port, secret)
    output.print_answer({"token": secret, "link": shown, "file": str(kept.path)}, shown if link else secret)


@token.command(short_help="Make a token with a name and a role.")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do.")
@click.option("--expires", metavar="WHEN", help="When it ends: 30d, 12h, or a time with its zone. Default: never.")
@click.option("--link", is_flag=True, help="Print a link for browsers instead of the token.")
@port_option
@click.option("--show", is_flag=True, help="Print the token also where standard output is not a terminal.")
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
    until = None if expires is None else times.read("expires", expires, zone=UTC)
    made = use_app(lambda rd: rd.tokens.add(name, role, expires=until, who=acting_user()))
    _print_token(made, link_to(HOST, port, made.secret), link=link)


def _check_place(role: str, *, link: bool, show: bool) -> None:
    """Refuse before anything is made: a token that cannot be shown would be lost."""
    if link and role == "worker":
        raise Refusal("--link: a worker's token opens no dashboard", "leave --link out")
    if not show and not sys.stdout.isatty():
        problem = "standard output is not a terminal: the token would end up in a log or a file"
        raise Refusal(problem, "repeat it with --show if that is meant")


def _print_token(made: NewToken, address: str, *, link: bool) -> None:
    kept = made.token
    if output.wants_json():
        opens = {} if kept.role == "worker" else {"link": address}
        output.print_json({**kept.public(kept.at), "token": made.secret, **opens})
        return
    until = f" until {_day(kept.expires_at)}" if kept.expires_at is not None else ""
    output.print_warning(f"{kept.name} has the role {kept.role}{until}. This is shown once:")
    output.print_line(output.Verbatim(address if link else made.secret))


def _day(at: float) -> str:
    return str(iso(at))


@token.command("list", short_help="List named tokens, their roles and last use.")
def list_() -> None:
    """List the named tokens: role, whether each still works, when it ends and was last used.

    The last use is known to within an hour. The owner's token stands in a file beside the database.
    """
    tokens, now = use_app(_list_tokens)
    empty = "There are no named tokens. `redrive token add NAME --role ROLE` makes one."
    body = [token.public(now) for token in tokens]
    output.print_list(tokens, COLUMNS, lambda token: _row(token, now), empty=empty, body=body)


async def _list_tokens(rd: Any) -> tuple[list[Token], float]:
    return await rd.tokens.list(), rd.tokens.now()


def _row(token: Token, now: float) -> tuple[object, ...]:
    ends = _day(token.expires_at) if token.expires_at is not None else "never"
    used = ago(token.used_at) if token.used_at is not None else "never"
    return token.name, token.role, token.standing(now), ends, used, ago(token.at), token.by


@token.command(short_help="Revoke a named token.")
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke the token NAME from now on. Streams that it has opened end."""
    revoked = use_app(lambda rd: rd.tokens.revoke(name, who=acting_user()))
    at = revoked.revoked_at or 0.0
    output.print_answer(revoked.public(at), f"{revoked.name} is revoked since {_day(at)}.")
