"""`redrive fleet`: make the open streams, look at the fleet as a whole, and let it go on after a halt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import connect, perform, shared
from redrive.doors.cli.problems import BROKEN, Problem
from redrive.doors.cli.text import clean, counted
from redrive.doors.cli.worker import leave, load, log_to_stderr, names, status_of_the_end

if TYPE_CHECKING:
    import asyncio

    from redrive.api.redrive import Redrive
    from redrive.fleet.doctor import Check
    from redrive.fleet.status import FleetStatus, HubView, OpenStream, ReplicaView, WorkerView
    from redrive.stores.open_side.streams import Ensured


@click.group(short_help="Several machines: streams, hubs, lag, durability.")
def fleet() -> None:
    """A fleet on NATS or PostgreSQL as a whole. These commands keep a replica in this process while they run."""


@fleet.command("init", short_help="Make or update the streams of other programs.")
@click.option("--dlq-limit", metavar="N", type=click.IntRange(min=1), help="Dead letters that each stream keeps.")
@click.option(
    "--agent", "agents", metavar="NAME[=N]", multiple=True, help="Make this agent's stream now, with its own limit."
)
@shared
def init(dlq_limit: int | None, agents: tuple[str, ...]) -> None:
    """Make the streams that other programs use (TASKS, DLQ, RETRY), or bring them up to date. Says what it did."""
    own = dict(map(_own_limit, agents))
    done = perform(connect(creates=True), lambda rd: rd.fleet.init(agents=own, limit=dlq_limit))
    if output.as_json():
        import msgspec

        output.say_json(msgspec.to_builtins(done))
        return
    for stream in done:
        output.say(f"{stream.did:<9}  {stream.name}{_kept(stream)}")


def _own_limit(said: str) -> tuple[str, int | None]:
    name, equals, number = said.partition("=")
    if not name or (equals and not (number.isascii() and number.isdigit() and int(number))):
        raise Problem(f"--agent {said}: this names no agent with a limit", "write --agent writer, or writer=50000")
    return name, int(number) if equals else None


def _kept(stream: Ensured) -> str:
    limit = f", at most {stream.limit:,} messages" if stream.limit is not None else ""
    return f" ({stream.replicas} of it{limit})"


@fleet.command("status", short_help="Hubs, lag, log, snapshot, durability, streams.")
@shared
def status() -> None:
    """Show hubs, positions and lag, the log, the last snapshot, durability, streams, and whether it is halted."""
    found = perform(connect(creates=True), lambda rd: rd.fleet.status())
    if output.as_json():
        import msgspec

        output.say_json(msgspec.to_builtins(found))
        return
    _tell(found)


def _tell(found: FleetStatus) -> None:
    output.say(f"{clean(found.url)}: {found.durability}, generation {found.generation}")
    if found.advice:
        output.say(f"  → {clean(found.advice)}")
    if found.halted is not None:
        output.say(f"HALTED, nothing is claimed: {clean(found.halted)}")
        output.say("  → see `redrive fleet doctor`; go on with `redrive fleet resume`")
    limit = f" of {found.log_limit:,}" if found.log_limit is not None else ""
    output.say(f"log: ends at {found.end:,}, {found.log_bytes:,}{limit} bytes")
    output.say(f"snapshot: {_snapshot(found)}")
    replicas, clients = counted(found.replicas, "replica"), counted(found.clients, "client")
    output.say(f"{replicas} and {clients} without a replica wrote within a day")
    if found.hubs:
        rows = ((hub.host, hub.pid, hub.position, hub.lag, _clock(hub), hub.trouble) for hub in found.hubs)
        output.table(("hub", "pid", "position", "lag", "clock", "problem"), rows)
    else:
        output.say("no hub answers")
    if found.files:
        output.table(("replica", "pid", "position", "lag", "", "problem"), map(_file, found.files))
    if found.workers:
        output.table(("host", "worker", "running"), map(_worker, found.workers))
    for holder in found.waits_for:
        output.say(f"erased words can still be read in {clean(holder)}")
    if found.streams:
        output.table(("stream", "holds", "messages", "limit", ""), map(_row, found.streams))


def _file(file: ReplicaView) -> tuple[object, ...]:
    state = f"{file.state}, a hub" if file.hub else file.state
    return file.name, file.pid, file.position, file.lag, state, file.trouble


def _worker(worker: WorkerView) -> tuple[object, ...]:
    return worker.host, worker.id, f"{worker.running} of {worker.concurrency}"


def _clock(hub: HubView) -> str:
    return f"{hub.clock_off:+.1f} s"


def _snapshot(found: FleetStatus) -> str:
    snapshot = found.snapshot
    if snapshot is None:
        return "none yet"
    return f"at {snapshot.position:,}, {snapshot.behind:,} messages and {snapshot.age / 60:.0f} min ago"


def _row(stream: OpenStream) -> tuple[object, ...]:
    full = "FULL: what died since is only in the store" if stream.full else ""
    return stream.name, stream.holds, stream.messages, stream.limit, full


@fleet.command("doctor", short_help="Check servers, log, replicas and streams.")
@shared
def doctor() -> int:
    """Check servers, log, replicas, clocks and streams. Changes nothing.

    WRONG is what is broken, and makes the exit status 1. WARN is what works as configured and could be safer.
    """
    from redrive.fleet.doctor import examine

    checks = perform(connect(creates=True), lambda rd: examine(rd.fleet))
    ok = all(check.ok for check in checks)
    if output.as_json():
        import msgspec

        output.say_json({"ok": ok, "checks": msgspec.to_builtins(checks)})
        return 0 if ok else 1
    for check in checks:
        output.say(f"{_verdict(check)}  {check.name:<12} {clean(check.said)}")
        if check.hint:
            output.say(f"       {'':<12} → {clean(check.hint)}")
    return 0 if ok else 1


def _verdict(check: Check) -> str:
    if not check.ok:
        return "WRONG"
    return "WARN " if check.warning else "ok   "


@fleet.command("resume", short_help="Let a halted fleet claim jobs again.")
@shared
def resume() -> None:
    """Let a halted fleet claim jobs again, once the replica that differed is set aside."""
    why = perform(connect(creates=True), lambda rd: rd.fleet.resume())
    if output.as_json():
        output.say_json({"resumed": why is not None, "was": why})
    elif why is None:
        output.say("the fleet was not halted")
    else:
        output.say(f"the fleet claims jobs again; it was halted because: {clean(why)}")


@fleet.command("forget", short_help="Wait no longer for a replica whose file is deleted.")
@click.argument("name")
@shared
def forget(name: str) -> None:
    """Wait no longer for the replica NAME, whose file is deleted: `redrive erase` counts on it no more."""
    if not perform(connect(creates=True), lambda rd: rd.fleet.forget(name)):
        raise Problem(f"no replica is called {name}", "`redrive fleet status` lists them")
    output.say(f"the replica {name} is forgotten")


@fleet.command("run", short_help="Do the duties of a fleet, and run no jobs.")
@click.argument("app")
@click.option(
    "--roles", metavar="A,B", type=names, default="monitor,triage,retry,upkeep", show_default=True, help="Which duties."
)
@shared
def run(app: str, roles: list[str]) -> int:
    """Do the duties of a fleet in this process, and run no jobs. One process at a time has each role.

    monitor tells people and streams of dead letters, triage brings back or buries what its rules say, retry advances
    redrives, upkeep prunes. Workers of APP do them as well where no such process runs. APP is a `module:attribute`
    that names a Redrive, because its policies decide.
    """
    from redrive.engine.interrupts import run_until_told

    rd = load(app)
    log_to_stderr()
    click.echo(f"redrive has the roles {', '.join(roles)} of {rd.shown_url}, while no other process has them")
    run_until_told(_with_roles(rd, roles))
    return status_of_the_end()


async def _with_roles(rd: Redrive, roles: list[str]) -> None:
    import asyncio

    from redrive.doors.web.serving import until_told

    stopped = asyncio.Event()
    async with rd.fleet.roles(*roles):
        await until_told(_waiting(stopped), stopped.set, waits=True, also=rd.store.until_failed())
        rd.store.hurry()
        failure = await rd.failure()
    await leave(BROKEN if failure else 0)
    if failure is not None:
        raise failure


async def _waiting(stopped: asyncio.Event) -> None:
    await stopped.wait()
