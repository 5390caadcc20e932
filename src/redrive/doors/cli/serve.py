"""`redrive serve [APP]` runs a worker, REST and the dashboard in one process; helpers for processes that serve."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from redrive.api.redrive import Redrive
from redrive.api.workers import SWITCH_SECONDS
from redrive.doors.cli import output
from redrive.doors.cli.invocation import command, connect
from redrive.doors.cli.logs import log_to_stderr
from redrive.doors.cli.problems import BROKEN, Refusal
from redrive.doors.cli.worker import end_status, leave_process, load_app, split_names
from redrive.engine.interrupts import run_until_signalled
from redrive.engine.shutdown import ShutdownWatch
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.doors.web.feed import Feed

HOST: Final = "127.0.0.1"
PORT: Final = 8420
PORTS: Final = click.IntRange(0, 65535)


def allow_host_option(text: str) -> Callable[[Any], Any]:
    return click.option("--allow-host", "also", metavar="HOST:PORT", multiple=True, help=text)


@command()
@click.argument("app", required=False)
@click.option("--host", metavar="ADDRESS", default=HOST, show_default=True, help="The address to listen on.")
@click.option("--port", metavar="N", type=PORTS, default=PORT, show_default=True, help="0: any free one.")
@click.option("--concurrency", metavar="N", type=click.IntRange(min=1), help="Jobs at once.")
@click.option("--queues", metavar="A,B", type=split_names, help="Only jobs of these queues.")
@click.option("--grace", metavar="SECONDS", type=click.FloatRange(min=0), help="How long running jobs may finish.")
@click.option("--no-worker", is_flag=True, help="Serve only; other processes run the jobs.")
@click.option("--no-auth", is_flag=True, help="Ask for no token. Only on this machine's own address.")
@allow_host_option("Another name that browsers may know this server by.")
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in a browser.")
def serve(
    app: str | None,
    host: str,
    port: int,
    no_worker: bool,
    no_auth: bool,
    also: tuple[str, ...],
    opens: bool,
    **given: Any,
) -> int:
    """Serve the dashboard and REST, and run the jobs of APP in the same process.

    APP is a `module:attribute` that names a Redrive, e.g. tasks:rd. Without it the built-in HTTP delivery is what runs,
    for callers in any language, and other processes may run the rest. SIGTERM or Ctrl-C ends streams at once and lets
    running jobs finish within the grace period. Ends with exit status 3 when the disk fails to sync: its supervisor
    should start it again.
    """
    _check_extra()
    _check_auth(host, no_auth=no_auth)
    _check_hosts(also)
    rd = load_app(app) if app is not None else connect(creates=True)
    rd.become_hub()
    log_to_stderr()
    rd.load()
    options = {name: value for name, value in given.items() if value is not None}
    with listen_on(host, port, "choose another --port, or end what has it") as sock:
        port = sock.getsockname()[1]
        _run(rd, sock, host, port, also, work=None if no_worker else options, auth=not no_auth, opens=opens)
    return end_status()


def _check_extra() -> None:
    from redrive.doors.web import need_the_extra

    try:
        need_the_extra()
    except ConfigError as error:
        message, _, hint = str(error).partition(": ")
        raise Refusal(message, hint) from None


def _check_auth(host: str, *, no_auth: bool) -> None:
    from redrive.doors.web.guard import is_loopback

    if no_auth and not is_loopback(host):
        problem = f"{host} can be reached from outside: without a token everyone could act"
        raise Refusal(problem, f"leave --no-auth out, or serve on {HOST}")


def _check_hosts(also: tuple[str, ...]) -> None:
    """Refuse URLs as hosts: no Host header holds one, so every request would be refused."""
    for name in also:
        if not name.strip() or "/" in name:
            hint = "write it as browsers send it: queue.example.com, with the port unless that is 80 or 443"
            raise Refusal(f"--allow-host: {name!r} is not a host", hint)


def listen_on(host: str, port: int, hint: str) -> socket.socket:
    from redrive.doors.web.server import listen, raise_descriptors

    raise_descriptors()
    if not host.strip():
        raise Refusal("the address to listen on is empty", f"say {HOST}, or 0.0.0.0 for every address of this machine")
    try:
        return listen(host, port)
    except OSError as error:
        raise Refusal(f"cannot listen on {host}:{port}: {error.strerror or error}", hint) from None


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

    feed = Feed(rd)
    app = make_app(rd, feed, token=None if auth else False, hosts=allowed_hosts(host, port, also))
    token = token_file(rd)() if auth else None
    _print_address(link_to(host, port, token if _has_reader() else None), rd, work=work is not None, auth=auth)
    if opens:
        import webbrowser

        webbrowser.open(link_to(host, port, token))
    run_until_signalled(_serve(rd, feed, app, sock, work))


async def _serve(rd: Redrive, feed: Feed, app: Any, sock: socket.socket, work: dict[str, Any] | None) -> None:
    """Serve until a signal comes or the store fails; then end streams at once, the server, and the worker."""
    from redrive.doors.web.server import make_web_server

    served = make_web_server(app)
    ending = rd.make_ending(work.get("grace")) if work is not None else None

    def stop() -> None:
        feed.close()
        served.should_exit = True

    failure: Exception | None = None
    try:
        await rd.open()
        async with rd.serving_hub(), _working(rd, work):
            failure = await wait_until_stopped(rd, served.serve(sockets=[sock]), stop, ending)
    finally:
        await rd.close()
        if ending is not None:
            ending.over()
    await leave_after(failure)


async def wait_until_stopped(
    rd: Redrive,
    serving: Coroutine[Any, Any, None] | None = None,
    stop: Callable[[], None] | None = None,
    ending: ShutdownWatch | None = None,
) -> Exception | None:
    """Run `serving`, or just wait, until a signal comes or the store fails; return why the store failed."""
    from redrive.doors.web.server import serve_until_signal

    stopped = asyncio.Event()
    failed = rd.database.until_failed()
    await serve_until_signal(serving or _wait(stopped), stop or stopped.set, waits=True, also=failed, ending=ending)
    return await rd.failure()


async def _wait(stopped: asyncio.Event) -> None:
    await stopped.wait()


async def leave_after(failure: Exception | None) -> None:
    """End the process, with the failure of its store if there is one."""
    await leave_process(BROKEN if failure else 0)
    if failure is not None:
        raise failure


@asynccontextmanager
async def _working(rd: Redrive, work: dict[str, Any] | None) -> AsyncIterator[None]:
    if work is None:
        yield
        return
    sys.setswitchinterval(SWITCH_SECONDS)
    async with rd.worker(**work):
        yield


def link_to(host: str, port: int, token: str | None) -> str:
    """Return the URL that a person on this machine opens."""
    from redrive.doors.web.guard import PARAMETER, format_host, is_anywhere

    name = format_host(HOST if is_anywhere(host) else host)
    return f"http://{name}:{port}/" + (f"?{PARAMETER}={token}" if token else "")


def _has_reader() -> bool:
    """Tell whether a person reads the output. Other people read logs, so no token is printed into one."""
    return sys.stdout.isatty()


def _print_address(link: str, rd: Redrive, *, work: bool, auth: bool) -> None:
    if output.wants_json():
        output.print_json({"url": link, "database": rd.shown_url, "worker": work})
        return
    tasks = ", ".join(sorted(rd.registry.handlers))
    click.echo(f"redrive serves {rd.shown_url} ({f'runs {tasks}' if work else 'runs nothing here'}): {link}")
    if auth and not _has_reader():
        click.echo("  the link that lets a browser in: redrive token --link", err=True)
    if not auth:
        click.echo("WARNING: no token is asked for: every program on this machine may do everything here.", err=True)
