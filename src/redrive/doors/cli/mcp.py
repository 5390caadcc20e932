"""`redrive mcp [APP]`: what agents may see of the queue, and with --allow-write, what they may do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from redrive.core.checks import optional_name
from redrive.doors.cli.asking import asked, connect, shared
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.serve import listening
from redrive.doors.cli.worker import load
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

ADDRESS: Final = "127.0.0.1:8421"
PARTS: Final = frozenset({"mcp", "mcp_types", "pydantic", "starlette", "uvicorn", "anyio"})


@click.command("mcp")
@click.argument("app", required=False)
@click.option("--allow-write", is_flag=True, help="Tools that call, submit, retry and redrive one, too.")
@click.option(
    "--session",
    metavar="ID",
    help="Whose session it is: calls, consents and the inbox are its own. Over HTTP each client has one.",
)
@click.option(
    "--http",
    "address",
    metavar="HOST:PORT",
    is_flag=False,
    flag_value=ADDRESS,
    help=f"Serve HTTP instead of stdio; alone: {ADDRESS}.",
)
@click.option(
    "--token",
    "tokens",
    metavar="TEXT",
    multiple=True,
    envvar="REDRIVE_MCP_TOKEN",
    help="What HTTP clients must show, better given in REDRIVE_MCP_TOKEN; else one is made and printed. Several, one "
    "for each client, keep their sessions apart.",
)
@click.option(
    "--allow-host",
    "also",
    metavar="HOST:PORT",
    multiple=True,
    help="Another name that HTTP clients may know this server by.",
)
@shared
def mcp(
    app: str | None,
    allow_write: bool,
    session: str | None,
    address: str | None,
    tokens: tuple[str, ...],
    also: tuple[str, ...],
) -> None:
    """Serve MCP, on standard input and output or over HTTP. Without --allow-write its tools only read.

    APP is a `module:attribute` that names a Redrive, e.g. tasks:rd. Without it the tools work on the database alone,
    and no task can be called.
    """
    _need_the_extra()
    optional_name("session", session)
    said: dict[str, Any] = {"tasks": app is not None, "allow_write": allow_write}
    if address is not None:
        host, port = _place(address)
        _check_session(session)
        _check_tokens(tokens, host)
        _serve_http(_the_app(app), host, port, tokens, also, **said)
        return
    with _stdout_to_stderr():
        rd = _the_app(app)
    _serve_stdio(rd, session, **said)


def _need_the_extra() -> None:
    """Before anything else is looked at."""
    try:
        import redrive.doors.mcp  # noqa: F401 - whether it can be
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PARTS:
            raise
        raise Problem(f"the MCP server needs the package {error.name}", 'pip install "redrive[mcp]"') from None


def _the_app(app: str | None) -> Redrive:
    """With its tasks, or on the database alone. The log goes to standard error, where clients keep it."""
    import logging

    from redrive.doors.cli.processes import TextLines

    rd = load(app) if app is not None else connect()
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    rd.load()
    return rd


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Standard output belongs to the protocol: what an app prints while it is imported must not reach it."""
    import os
    import sys

    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _serve_stdio(rd: Redrive, session: str | None, **said: Any) -> None:
    import asyncio

    from redrive.doors.mcp import make_server
    from redrive.doors.mcp.serving import over_stdio
    from redrive.doors.mcp.sessions import new_session

    asyncio.run(over_stdio(rd, make_server(rd, session=session or new_session(), **said)))


def _serve_http(rd: Redrive, host: str, port: int, tokens: tuple[str, ...], also: tuple[str, ...], **said: Any) -> None:
    import asyncio
    import secrets

    from redrive.doors.mcp import make_server
    from redrive.doors.mcp.http import PATH
    from redrive.doors.mcp.serving import over_http
    from redrive.doors.mcp.sessions import asking
    from redrive.doors.web.guard import allowed_hosts, written

    chosen = tokens or (secrets.token_urlsafe(32),)
    server = make_server(rd, session=asking.get, secrets=chosen, **said)
    with listening(host, port, "choose another HOST:PORT") as sock:
        port = sock.getsockname()[1]
        _tell(f"http://{written(host)}:{port}{PATH}", None if tokens else chosen[0])
        asyncio.run(over_http(rd, server, sock, hosts=allowed_hosts(host, port, also), tokens=chosen))


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise Problem(f"{address!r} is not HOST:PORT", f"APP goes first: redrive mcp APP --http {ADDRESS}")
    return host, int(port)


def _check_session(session: str | None) -> None:
    """Refuses one session for all: what a person granted one client would serve every other one."""
    if session is not None:
        raise Problem(
            "--session is for standard input and output: over HTTP each client has its own session",
            "leave it out; give each client a --token or an Mcp-Session-Id of its own",
        )


def _check_tokens(tokens: tuple[str, ...], host: str) -> None:
    from redrive.doors.web.guard import is_loopback
    from redrive.doors.web.tokens import check_token

    if not tokens and not is_loopback(host):
        raise Problem(
            f"{host} can be reached from outside, and there is no token",
            f"set REDRIVE_MCP_TOKEN to a secret of your own, or serve on {ADDRESS}",
        )
    try:
        for token in tokens:
            check_token(token)
    except ConfigError as error:
        raise Problem(str(error), 'make one: python -c "import secrets; print(secrets.token_urlsafe(32))"') from None


def _tell(url: str, token: str | None) -> None:
    """The address; and the token, this once, where we made it."""
    if asked().json:
        from redrive.doors.cli import output

        output.say_json({"url": url} | ({"token": token} if token else {}))
        return
    click.echo(f"MCP at {url}", err=True)
    if token:
        click.echo(f"token (shown once): {token}", err=True)
