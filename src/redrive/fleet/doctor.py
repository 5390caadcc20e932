"""Examines a fleet: its servers, its log, its replicas and its streams. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from redrive.errors import RedriveError
from redrive.fleet.status import FleetStatus, HubView

if TYPE_CHECKING:
    from redrive.fleet.service import FleetService
    from redrive.stores.open_side.survey import StreamView, Survey

LAG: Final = 1_000
"""Messages by which a replica may be behind."""
CLOCK_SECONDS: Final = 2.0
"""Replay uses no clock that is further ahead of the log's."""
FILL: Final = 0.8
SNAPSHOTS_MISSED: Final = 2
DAY: Final = 86_400.0


class FleetCheck(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    ok: bool
    """False where something is broken."""
    said: str
    hint: str = ""
    warning: bool = False
    """Whether the check passed and could be better: the hint says how."""


class Examined(NamedTuple):
    """What the checks judge."""

    status: FleetStatus
    survey: Survey | None


async def examine(fleet: FleetService) -> list[FleetCheck]:
    """Make every check. Where the fleet cannot be joined, the reason is the one result."""
    try:
        facts = Examined(await fleet.status(), await fleet.survey())
    except RedriveError as error:
        return [FleetCheck("fleet", False, str(error), "solve that, then run `redrive fleet doctor` again")]
    return [check for make in CHECKS for check in make(facts)]


def check_server(facts: Examined) -> Iterator[FleetCheck]:
    from redrive.stores.replica.nats_streams import ADVISED, read_version

    if facts.survey is not None:
        old = read_version(facts.survey.version) < ADVISED
        hint = "it can damage compressed or encrypted streams: upgrade it to 2.15" if old else ""
        yield FleetCheck("server", True, f"nats-server {facts.survey.version}", hint, warning=old)


def check_durability(facts: Examined) -> Iterator[FleetCheck]:
    status = facts.status
    unsynced = status.durability == "unsynced"
    yield FleetCheck("durability", True, status.durability, status.advice, warning=unsynced)


def check_halted(facts: Examined) -> Iterator[FleetCheck]:
    why = facts.status.halted
    hint = "set aside the replica that differs (move its file away), then run `redrive fleet resume`" if why else ""
    yield FleetCheck("halted", why is None, f"nothing is claimed: {why}" if why else "no", hint)


def check_hubs(facts: Examined) -> Iterator[FleetCheck]:
    """Check the answers of hubs, which are asked over NATS alone."""
    if facts.survey is None:
        return
    if not facts.status.hubs:
        yield FleetCheck("hubs", False, "none answers", "start `redrive hub` or `redrive serve` on this URL")
        return
    wrong = any(hub.trouble is not None or hub.lag > LAG for hub in facts.status.hubs)
    hint = "see the log of that process; restart it where it does not catch up" if wrong else ""
    yield FleetCheck("hubs", not wrong, ", ".join(map(_describe_hub, facts.status.hubs)), hint)


def _describe_hub(hub: HubView) -> str:
    text = f"{hub.host}/{hub.pid} at {hub.position} ({hub.lag} behind)"
    return f"{text}: {hub.trouble}" if hub.trouble else text


def check_generation(facts: Examined) -> Iterator[FleetCheck]:
    others = {hub.generation for hub in facts.status.hubs} - {facts.status.generation}
    text = f"{facts.status.generation}" + (f", and hubs with {', '.join(others)}" if others else "")
    hint = "those hubs follow a log that was made anew: move their files away and restart them" if others else ""
    yield FleetCheck("generation", not others, text, hint)


def check_snapshot(facts: Examined) -> Iterator[FleetCheck]:
    from redrive.stores.replica.chores import SNAPSHOT_MESSAGES

    newest = facts.status.snapshot
    behind = newest.behind if newest is not None else facts.status.end
    late = behind >= SNAPSHOTS_MISSED * SNAPSHOT_MESSAGES
    hint = "hubs make one every 20,000 messages: see their logs for why they could not" if late else ""
    if newest is None:
        yield FleetCheck("snapshot", not late, f"none yet, {behind:,} messages in the log", hint)
        return
    yield FleetCheck(
        "snapshot", not late, f"{_span(newest.age)} old, {behind:,} messages ago, {newest.size:,} bytes", hint
    )


def check_clocks(facts: Examined) -> Iterator[FleetCheck]:
    off = {f"{hub.host}/{hub.pid}": hub.clock_off for hub in facts.status.hubs}
    if facts.survey is not None:
        off["the server, from here"] = facts.survey.clock_off
    wrong = [f"{who} by {by:+.1f} s" for who, by in off.items() if abs(by) > CLOCK_SECONDS]
    text = ", ".join(wrong) if wrong else f"agree within {CLOCK_SECONDS:.0f} s"
    yield FleetCheck("clocks", not wrong, text, "set these clocks by NTP" if wrong else "")


def check_servers_behind(facts: Examined) -> Iterator[FleetCheck]:
    if facts.survey is None:
        return
    behind = [f"{stream.name} on {', '.join(stream.behind)}" for stream in facts.survey.streams if stream.behind]
    least = min((stream.replicas for stream in facts.survey.streams), default=1)
    text = f"{', '.join(behind)} not current" if behind else f"{least} of each stream"
    yield FleetCheck("replicas", not behind, text, "see that those servers run and reach the others" if behind else "")


def check_consumers(facts: Examined) -> Iterator[FleetCheck]:
    """Check that the log has one consumer per replica; unused ones end by themselves."""
    log = _stream(facts, "log")
    if log is None:
        return
    most = max(facts.status.replicas, len(facts.status.hubs)) + 1
    leaked = log.consumers > most
    hint = "another program reads the log: `nats consumer ls` names it; remove what is not redrive's" if leaked else ""
    yield FleetCheck("consumers", not leaked, f"{log.consumers} of {log.name}, {most} replicas at most", hint)


def _stream(facts: Examined, holds: str) -> StreamView | None:
    return next((stream for stream in (facts.survey.streams if facts.survey else ()) if stream.holds == holds), None)


def check_limits(facts: Examined) -> Iterator[FleetCheck]:
    status = facts.status
    share = status.log_bytes / status.log_limit if status.log_limit else 0.0
    text = f"the log has {status.log_bytes:,} of {status.log_limit or 'unlimited'} bytes ({share:.0%})"
    hint = "no new jobs are taken: raise max_bytes in the URL" if share >= FILL else ""
    yield FleetCheck("log bytes", share < FILL, text, hint)
    full = [stream.name for stream in status.streams if stream.full]
    if full:
        hint = "later dead letters are only in the store: deal with them, or run `redrive fleet init --dlq-limit N`"
        yield FleetCheck("dead letters", False, f"{', '.join(full)} full", hint)


def check_open_side(facts: Examined) -> Iterator[FleetCheck]:
    if facts.survey is None:
        return
    made = _stream(facts, "tasks") is not None
    text = "streams are made" if made else "no streams: other programs can neither publish tasks nor read dead letters"
    yield FleetCheck("open side", True, text, "" if made else "run `redrive fleet init` if you want them")
    if facts.survey.taken_by:
        hint = "remove these sources or mirrors: a server can destroy a work queue that has one"
        yield FleetCheck("sources", False, f"{', '.join(facts.survey.taken_by)} take from our streams", hint)


CHECKS: Final[tuple[Callable[[Examined], Iterator[FleetCheck]], ...]] = (
    check_server,
    check_durability,
    check_servers_behind,
    check_halted,
    check_hubs,
    check_generation,
    check_snapshot,
    check_clocks,
    check_consumers,
    check_limits,
    check_open_side,
)


def _span(seconds: float) -> str:
    return f"{seconds / DAY:.1f} days" if seconds >= DAY else f"{seconds / 60:.0f} min"
