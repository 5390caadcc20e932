"""`redrive hub` and `redrive fleet`: serve a fleet, make its streams, check it, and resume it after a halt."""

from __future__ import annotations

from collections.abc import Iterator

import click

from redrive.api.redrive import Redrive
from redrive.doors.cli import output
from redrive.doors.cli.invocation import command, command_group, connect, run_with
from redrive.doors.cli.logs import log_to_stderr
from redrive.doors.cli.maintenance import check_lines
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.serve import leave_after, wait_until_stopped
from redrive.doors.cli.text import clean, plural
from redrive.doors.cli.worker import end_status, load_app, split_names
from redrive.engine.interrupts import run_until_signalled
from redrive.fleet.doctor import examine
from redrive.fleet.status import FleetStatus, HubView, ReplicaView
from redrive.jobs.open_store import NATS, read_scheme
from redrive.stores.open_side.streams import Ensured
from redrive.stores.open_side.survey import StreamView


@command()
def hub() -> int:
    """Keep a replica of the fleet's log in this process, and answer the workers and producers that have none.

    For nats:// URLs. A small fleet runs three hubs; `redrive serve` is one, too, with REST and the dashboard. Hubs of a
    file or of PostgreSQL are reached over HTTP: there `redrive serve` is the hub.
    """
    rd = connect(creates=True)
    if read_scheme(rd.settings.url) not in NATS:
        raise Refusal(f"{rd.shown_url} is not a nats:// URL", "use `redrive serve --no-worker`: it is the hub there")
    log_to_stderr()
    rd.become_hub()
    click.echo(f"redrive is a hub of {rd.shown_url}")
    run_until_signalled(_serve_hub(rd))
    return end_status()


async def _serve_hub(rd: Redrive) -> None:
    """Answer until a signal comes or the replica fails."""
    failure: Exception | None = None
    try:
        await rd.open()
        async with rd.serving_hub():
            failure = await wait_until_stopped(rd)
    finally:
        await rd.close()
    await leave_after(failure)


@command_group()
def fleet() -> None:
    """Look after a fleet on NATS or PostgreSQL. These commands keep a replica in this process while they run."""


@fleet.command("init", short_help="Make or update the streams of other programs.")
@click.option("--dlq-limit", metavar="N", type=click.IntRange(min=1), help="Dead letters that each stream keeps.")
@click.option(
    "--agent", "agents", metavar="NAME[=N]", multiple=True, help="Make this agent's stream now, with its own limit."
)
def init(dlq_limit: int | None, agents: tuple[str, ...]) -> None:
    """Make the streams that other programs use (TASKS, DLQ, RETRY), or bring them up to date. Prints what it did."""
    limits = dict(map(_read_limit, agents))
    streams = run_with(connect(creates=True), lambda rd: rd.fleet.init(agents=limits, limit=dlq_limit))
    output.print_answer(streams, [f"{stream.did:<9}  {stream.name}{_describe_size(stream)}" for stream in streams])


def _read_limit(text: str) -> tuple[str, int | None]:
    name, equals, number = text.partition("=")
    if not name or (equals and not (number.isascii() and number.isdigit() and int(number))):
        raise Refusal(f"--agent {text}: this names no agent with a limit", "write --agent writer, or writer=50000")
    return name, int(number) if equals else None


def _describe_size(stream: Ensured) -> str:
    limit = f", at most {stream.limit:,} messages" if stream.limit is not None else ""
    return f" ({stream.replicas} of it{limit})"


@fleet.command("status", short_help="Show hubs, lag, log, snapshot, durability, streams.")
def status() -> None:
    """Show hubs, positions and lag, the log, the last snapshot, durability, streams, and whether it is halted."""
    report = run_with(connect(creates=True), lambda rd: rd.fleet.status())
    output.print_answer(report, (*_status_lines(report), *_member_lines(report)))


def _status_lines(status: FleetStatus) -> Iterator[str]:
    yield f"{clean(status.url)}: {status.durability}, generation {status.generation}"
    if status.advice:
        yield f"  → {clean(status.advice)}"
    if status.halted is not None:
        yield f"HALTED, nothing is claimed: {clean(status.halted)}"
        yield "  → see `redrive fleet doctor`; go on with `redrive fleet resume`"
    limit = f" of {status.log_limit:,}" if status.log_limit is not None else ""
    yield f"log: ends at {status.end:,}, {status.log_bytes:,}{limit} bytes"
    yield f"snapshot: {_describe_snapshot(status)}"
    replicas, clients = plural(status.replicas, "replica"), plural(status.clients, "client")
    yield f"{replicas} and {clients} without a replica wrote within a day"


def _member_lines(status: FleetStatus) -> output.Lines:
    if status.hubs:
        yield output.Table(("hub", "pid", "position", "lag", "clock", "problem"), map(_hub_row, status.hubs))
    else:
        yield "no hub answers"
    if status.files:
        yield output.Table(("replica", "pid", "position", "lag", "", "problem"), map(_replica_row, status.files))
    if status.workers:
        running = ((worker.host, worker.id, f"{worker.running} of {worker.concurrency}") for worker in status.workers)
        yield output.Table(("host", "worker", "running"), running)
    for holder in status.waits_for:
        yield f"erased words can still be read in {clean(holder)}"
    if status.streams:
        yield output.Table(("stream", "holds", "messages", "limit", ""), map(_stream_row, status.streams))


def _hub_row(hub: HubView) -> tuple[object, ...]:
    return hub.host, hub.pid, hub.position, hub.lag, f"{hub.clock_off:+.1f} s", hub.trouble


def _replica_row(file: ReplicaView) -> tuple[object, ...]:
    state = f"{file.state}, a hub" if file.hub else file.state
    return file.name, file.pid, file.position, file.lag, state, file.trouble


def _describe_snapshot(status: FleetStatus) -> str:
    snapshot = status.snapshot
    if snapshot is None:
        return "none yet"
    return f"at {snapshot.position:,}, {snapshot.behind:,} messages and {snapshot.age / 60:.0f} min ago"


def _stream_row(stream: StreamView) -> tuple[object, ...]:
    full = "FULL: newer dead letters are only in the store" if stream.full else ""
    return stream.name, stream.holds, stream.messages, stream.limit, full


@fleet.command("doctor", short_help="Check servers, log, replicas and streams.")
def doctor() -> int:
    """Check servers, log, replicas, clocks and streams. Changes nothing.

    WRONG is what is broken, and makes the exit status 1. WARN is what works as configured and could be safer.
    """
    checks = run_with(connect(creates=True), lambda rd: examine(rd.fleet))
    ok = all(check.ok for check in checks)
    output.print_answer({"ok": ok, "checks": checks}, check_lines(checks, 12))
    return 0 if ok else 1


@fleet.command("resume", short_help="Let a halted fleet claim jobs again.")
def resume() -> None:
    """Let a halted fleet claim jobs again, once the replica that differed is set aside."""
    why = run_with(connect(creates=True), lambda rd: rd.fleet.resume())
    text = f"the fleet claims jobs again; it was halted because: {clean(why)}"
    body = {"resumed": why is not None, "was": why}
    output.print_answer(body, "the fleet was not halted" if why is None else text)


@fleet.command("forget", short_help="Forget a replica whose file is deleted.")
@click.argument("name")
def forget(name: str) -> None:
    """Forget the replica NAME, whose file is deleted, so that `redrive erase` does not wait for it."""
    if not run_with(connect(creates=True), lambda rd: rd.fleet.forget(name)):
        raise Refusal(f"no replica is called {name}", "`redrive fleet status` lists them")
    output.print_line(f"the replica {name} is forgotten")


@fleet.command("run", short_help="Do the duties of a fleet, and run no jobs.")
@click.argument("app")
@click.option(
    "--roles",
    metavar="A,B",
    type=split_names,
    default="monitor,triage,retry,upkeep",
    show_default=True,
    help="Which duties.",
)
def run(app: str, roles: list[str]) -> int:
    """Do the duties of a fleet in this process, and run no jobs. One process at a time has each role.

    monitor sends notices and streams of dead letters, triage brings back or buries what its rules say, retry advances
    redrives, upkeep prunes. Workers of APP do them as well if no such process runs. APP is a `module:attribute`
    that names a Redrive, because its policies decide.
    """
    rd = load_app(app)
    log_to_stderr()
    click.echo(f"redrive has the roles {', '.join(roles)} of {rd.shown_url}, while no other process has them")
    run_until_signalled(_run_roles(rd, roles))
    return end_status()


async def _run_roles(rd: Redrive, roles: list[str]) -> None:
    async with rd.fleet.roles(*roles):
        failure = await wait_until_stopped(rd)
        rd.database.hurry()
    await leave_after(failure)
