"""`redrive serve [APP]`: worker, REST and dashboard in one process, on one address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from redrive.doors.cli.asking import asked, connect, shared
from redrive.doors.cli.problems import BROKEN, Problem
from redrive.doors.cli.worker import load, log_to_stderr, names, status_of_the_end

if TYPE_CHECKING:
    import socket

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

HOST: Final = "127.0.0.1"
PORT: Final = 8420


@click.command(short_help="Serve the dashboard and REST, and run the jobs of APP.")
@click.argument("app", required=False)
@click.option("--host", metavar="ADDRESS", default=HOST, show_default=True, help="Where to listen.")
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free one."
)
@click.option("--concurrency", metavar="N", type=click.IntRange(min=1), help="Jobs at once.")
@click.option("--queues", metavar="A,B", type=names, help="Only jobs of these queues.")
@click.option("--grace", metavar="SECONDS", type=click.FloatRange(min=0), help="How long running jobs may finish.")
@click.option("--no-worker", is_flag=True, help="Serve only; other processes run the jobs.")
@click.option("--no-auth", is_flag=True, help="Ask for no token. Only on this machine's own address.")
@click.option(
    "--allow-host",
    "also",
    metavar="HOST:PORT",
    multiple=True,
    help="Another name that browsers may know this server by.",
)
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in a browser.")
@shared
def serve(
    app: str | None,
    host: str,
    port: int,
    no_worker: bool,
    no_auth: bool,
    also: tuple[str, ...],
    opens: bool,
    **said: Any,
) -> int:
    """Serve the dashboard and REST, and run the jobs of APP in the same process.

    APP is a `module:attribute` that names a Redrive, e.g. tasks:rd. Without it the built-in HTTP delivery is what runs,
    for callers in any language, and other processes may run the rest. SIGTERM or Ctrl-C ends streams at once and lets
    running jobs finish within the grace period. Ends with exit status 3 when the disk fails to sync: whoever started it
    should start it again.
    """
    need_the_extra()
    _check_open_door(host, no_auth=no_auth)
    _check_names(also)
    rd = load(app) if app is not None else connect(creates=True)
    rd.become_hub()
    log_to_stderr()
    rd.load()
    with listening(host, port, "choose another --port, or end what has it") as sock:
        port = sock.getsockname()[1]
        _run(rd, sock, host, port, also, work=None if no_worker else _options(said), auth=not no_auth, opens=opens)
    return status_of_the_end()


def _options(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def need_the_extra() -> None:
    from redrive.doors.web import need_the_extra
    from redrive.errors import ConfigError

    try:
        need_the_extra()
    except ConfigError as error:
        what, _, line = str(error).partition(": ")
        raise Problem(what, line) from None


def _check_open_door(host: str, *, no_auth: bool) -> None:
    from redrive.doors.web.guard import is_loopback

    if no_auth and not is_loopback(host):
        raise Problem(
            f"{host} can be reached from outside: --no-auth would let everybody in",
            f"leave --no-auth out, or serve on {HOST}",
        )


def _check_names(also: tuple[str, ...]) -> None:
    """An address would never be found in a Host header, and every request would be refused for that."""
    for name in also:
        if not name.strip() or "/" in name:
            hint = "write it as browsers send it: queue.example.com, with the port unless that is 80 or 443"
            raise Problem(f"--allow-host: {name!r} is not a host", hint)


def listening(host: str, port: int, hint: str) -> socket.socket:
    from redrive.doors.web.connections import raise_descriptors
    from redrive.doors.web.serving import listen

    raise_descriptors()
    if not host.strip():
        raise Problem("the address to listen on is empty", f"say {HOST}, or 0.0.0.0 for every address of this machine")
    try:
        return listen(host, port)
    except OSError as error:
        raise Problem(f"cannot listen on {host}:{port}: {error.strerror or error}", hint) from None


def _run(
    rd: Redrive,
    sock: socket.socket,
    host: str,
    port: int,
    also: tuple[str, ...],
    *,
    work: dict[str, Any] | None,
    auth: bool,
    opens: bool,
) -> None:
    from redrive.doors.web import make_app, token_file
    from redrive.doors.web.feed import Feed
    from redrive.doors.web.guard import allowed_hosts
    from redrive.engine.interrupts import run_until_told

    feed = Feed(rd)
    app = make_app(rd, feed, token=None if auth else False, hosts=allowed_hosts(host, port, also))
    token = token_file(rd)() if auth else None
    _tell(link_to(host, port, token if _is_watched() else None), rd, work=work is not None, auth=auth)
    if opens:
        import webbrowser

        webbrowser.open(link_to(host, port, token))
    run_until_told(_until_told(rd, feed, app, sock, work))


async def _until_told(rd: Redrive, feed: Feed, app: Any, sock: socket.socket, work: dict[str, Any] | None) -> None:
    """Streams end at once, then the server, then the worker within its grace. A store that stopped itself ends all."""
    from redrive.doors.cli.worker import leave
    from redrive.doors.web.serving import make_served, until_told

    served = make_served(app)
    ending = rd.make_ending(work.get("grace")) if work is not None else None

    def stop() -> None:
        feed.close()
        served.should_exit = True

    failure: Exception | None = None
    try:
        await rd.open()
        async with rd.serving_hub(), _working(rd, work):
            also = rd.store.until_failed()
            await until_told(served.serve(sockets=[sock]), stop, waits=True, also=also, ending=ending)
            failure = await rd.failure()
    finally:
        await rd.close()
        if ending is not None:
            ending.over()
    await leave(BROKEN if failure else 0)
    if failure is not None:
        raise failure


@asynccontextmanager
async def _working(rd: Redrive, work: dict[str, Any] | None) -> AsyncIterator[None]:
    if work is None:
        yield
        return
    import sys

    from redrive.api.workers import SWITCH_SECONDS

    sys.setswitchinterval(SWITCH_SECONDS)
    async with rd.worker(**work):
        yield


def link_to(host: str, port: int, token: str | None) -> str:
    """What a person opens: from this machine, whatever address is listened on."""
    from redrive.doors.web.guard import PARAMETER, is_anywhere, written

    name = written(HOST if is_anywhere(host) else host)
    return f"http://{name}:{port}/" + (f"?{PARAMETER}={token}" if token else "")


def _is_watched() -> bool:
    """Whether a person reads what is printed. A log keeps it, and others read logs: no token goes there."""
    import sys

    return sys.stdout.isatty()


def _tell(link: str, rd: Redrive, *, work: bool, auth: bool) -> None:
    if asked().json:
        from redrive.doors.cli import output

        output.say_json({"url": link, "database": rd.shown_url, "worker": work})
        return
    tasks = ", ".join(sorted(rd.registry.handlers))
    click.echo(f"redrive serves {rd.shown_url} ({f'runs {tasks}' if work else 'runs nothing here'}): {link}")
    if auth and not _is_watched():
        click.echo("  the link that lets a browser in: redrive token --link", err=True)
    if not auth:
        click.echo("WARNING: no token is asked for: every program on this machine may do everything here.", err=True)
