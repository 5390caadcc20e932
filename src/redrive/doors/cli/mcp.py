"""`redrive mcp [APP]` serves tools for agents, which only read unless --allow-write is given."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from redrive.api.redrive import Redrive
from redrive.core.checks import optional_name
from redrive.doors.cli import output
from redrive.doors.cli.invocation import command, connect
from redrive.doors.cli.logs import TextLines
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.serve import allow_host_option, listen_on
from redrive.doors.cli.worker import load_app
from redrive.errors import ConfigError

ADDRESS: Final = "127.0.0.1:8421"
PARTS: Final = frozenset({"mcp", "mcp_types", "pydantic", "starlette", "uvicorn", "anyio"})


@command("mcp")
@click.argument("app", required=False)
@click.option("--allow-write", is_flag=True, help="Also offer tools that call, submit, retry and redrive.")
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
@allow_host_option("Another name that HTTP clients may know this server by.")
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
    _check_extra()
    optional_name("session", session)
    options: dict[str, Any] = {"tasks": app is not None, "allow_write": allow_write}
    if address is None:
        with _stdout_to_stderr():
            rd = _load(app)
        _serve_stdio(rd, session, **options)
    else:
        host, port = _read_address(address)
        if session is not None:  # a consent given to one client would count for every other one
            problem = "--session is for standard input and output: over HTTP each client has its own session"
            raise Refusal(problem, "leave it out; give each client a --token or an Mcp-Session-Id of its own")
        _check_tokens(tokens, host)
        _serve_http(_load(app), host, port, tokens, also, **options)


def _check_extra() -> None:
    try:
        import redrive.doors.mcp  # noqa: F401 - only whether it can be imported
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PARTS:
            raise
        raise Refusal(f"the MCP server needs the package {error.name}", 'pip install "redrive[mcp]"') from None


def _load(app: str | None) -> Redrive:
    """Load the app with its tasks, or open the database alone. The log goes to stderr, where clients keep it."""
    rd = load_app(app) if app is not None else connect()
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    rd.load()
    return rd


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect what an app prints while it is imported, because standard output belongs to the protocol."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _serve_stdio(rd: Redrive, session: str | None, **options: Any) -> None:
    from redrive.doors.mcp import make_server
    from redrive.doors.mcp.serving import over_stdio
    from redrive.doors.mcp.sessions import new_session

    asyncio.run(over_stdio(rd, make_server(rd, session=session or new_session(), **options)))


def _serve_http(
    rd: Redrive, host: str, port: int, tokens: tuple[str, ...], also: tuple[str, ...], **options: Any
) -> None:
    from redrive.doors.mcp import make_server
    from redrive.doors.mcp.serving import PATH, over_http
    from redrive.doors.mcp.sessions import current_session
    from redrive.doors.web.guard import allowed_hosts, format_host

    chosen = tokens or (secrets.token_urlsafe(32),)
    server = make_server(rd, session=current_session.get, secrets=chosen, **options)
    with listen_on(host, port, "choose another HOST:PORT") as sock:
        port = sock.getsockname()[1]
        _print_address(f"http://{format_host(host)}:{port}{PATH}", None if tokens else chosen[0])
        asyncio.run(over_http(rd, server, sock, hosts=allowed_hosts(host, port, also), tokens=chosen))


def _read_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise Refusal(f"{address!r} is not HOST:PORT", f"APP goes first: redrive mcp APP --http {ADDRESS}")
    return host, int(port)


def _check_tokens(tokens: tuple[str, ...], host: str) -> None:
    from redrive.doors.web.guard import is_loopback
    from redrive.doors.web.tokens import check_token

    if not tokens and not is_loopback(host):
        problem = f"{host} can be reached from outside, and there is no token"
        raise Refusal(problem, f"set REDRIVE_MCP_TOKEN to a secret of your own, or serve on {ADDRESS}")
    try:
        for token in tokens:
            check_token(token)
    except ConfigError as error:
        raise Refusal(str(error), 'make one: python -c "import secrets; print(secrets.token_urlsafe(32))"') from None


def _print_address(url: str, token: str | None) -> None:
    """Print the address, and once the token that was made for it."""
    if output.wants_json():
        output.print_json({"url": url} | ({"token": token} if token else {}))
        return
    click.echo(f"MCP at {url}", err=True)
    if token:
        click.echo(f"token (shown once): {token}", err=True)
