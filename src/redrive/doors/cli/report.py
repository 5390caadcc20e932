"""`redrive report`: weeks, months, failures, activity and agents in numbers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.core.times import read
from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.charts import aligned, bar, short_number, sparkline
from redrive.doors.cli.text import ago, clean, counted, short, span

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.reports.activity import Activity, AgentLoad
    from redrive.reports.morning import Morning
    from redrive.reports.periods import FailureLog, Report, Row

F = TypeVar("F", bound=Callable[..., Any])
SHOWN: Final = 15
"""So many lines of a kind are told one by one."""

tz_option = click.option(
    "--tz", metavar="ZONE", default="UTC", show_default=True, help="Whose calendar, e.g. Europe/Rome."
)
notify_option = click.option("--notify", is_flag=True, help="Tell it through the notify channels, too.")


def routes(command: F) -> F:
    """--queue, --task and --agent: a part of the work only."""
    for name in ("agent", "task", "queue"):
        command = click.option(f"--{name}", metavar="NAME")(command)
    return command


@click.group(short_help="Show reports: weeks, months, failures, activity, agents.")
@shared
def report() -> None:
    """Weeks and months in numbers, the failure log, activity, agents."""


@report.command(short_help="The last weeks in numbers.")
@click.option("--weeks", metavar="N", type=int, default=4, show_default=True, help="How many, with this one.")
@tz_option
@routes
@notify_option
@shared
def weekly(notify: bool, **said: Any) -> None:
    """The last weeks: what was processed, what died and what became of it, why, and what was tried against it."""
    _tell_report(*ask(lambda rd: noticed(rd, rd.reports.weekly(**said), notify)))


@report.command(short_help="The last months in numbers.")
@click.option("--months", metavar="N", type=int, default=12, show_default=True, help="How many, with this one.")
@tz_option
@routes
@notify_option
@shared
def monthly(notify: bool, **said: Any) -> None:
    """The last months: what was processed, what died and what became of it, why, and what was tried against it."""
    _tell_report(*ask(lambda rd: noticed(rd, rd.reports.monthly(**said), notify)))


N = TypeVar("N", "Report", "Morning")


async def noticed(rd: Redrive, found: Coroutine[Any, Any, N], notify: bool) -> tuple[N, int | None]:
    """The report, and how many messages about it were taken; None where nobody was to be told."""
    made = await found
    return made, await rd.reports.notify(made) if notify else None


def tell_noticed(told: int | None) -> None:
    """What became of --notify."""
    if told:
        output.say(f"told: {counted(told, 'message')}")
    elif told == 0:
        output.say("Not sent from here: no channel of this machine took it. It waits for a worker that has one.")


def _tell_report(found: Report, told: int | None) -> None:
    from redrive.reports.periods import advice, headline

    if output.as_json():
        output.say_json(found.public() | ({} if told is None else {"notified": told}))
        return
    output.say(clean(headline(found)))
    if not found.total.empty:
        _tell_rows(found)
        _tell_times(found.total)
        _tell_agents(found)
        _tell_strategies(found)
        _tell_causes(found)
        for line in advice(found):
            output.say(f"→ {clean(line)}")
    tell_noticed(told)


def _tell_rows(found: Report) -> None:
    opens, defers = found.total.open > 0, found.total.deferred > 0
    first = "month" if found.kind == "monthly" else "week"
    names = [first, "processed", "dead letters", "rate", "auto-resolved", "human-required"]
    names += ["deferred"] * defers + ["open"] * opens
    rows = [_cells(row, opens=opens, defers=defers) for row in (*found.rows, found.total)]
    columns, cells = aligned(names, rows)
    output.say()
    output.table(columns, cells)
    if len(found.rows) > 1:
        output.say()
        output.say(f"processed   {sparkline([row.processed for row in found.rows])}")
        output.say(f"dead rate   {sparkline([row.rate or 0.0 for row in found.rows])}")


def _cells(row: Row, *, opens: bool, defers: bool) -> list[str]:
    from redrive.reports.periods import percent

    total = row.name == "total"
    cells = [clean(row.label), f"{row.processed:,}", f"{row.died:,}", percent(row.rate, 2)]
    for number, share in ((row.auto, row.auto_share), (row.human, row.human_share)):
        cells.append(f"{number:,} ({percent(share)})" if total and share is not None else f"{number:,}")
    return cells + [f"{row.deferred:,}"] * defers + [f"{row.open:,}"] * opens


def _tell_times(total: Row) -> None:
    """Mean time to resolution by who resolved it."""
    said = [
        f"{span_of(seconds)} {words} ({number:,})"
        for seconds, words, number in (
            (total.auto_mttr, "by itself", total.auto),
            (total.person_mttr, "by a person", total.person),
        )
        if seconds is not None
    ]
    if said:
        output.say()
        output.say(f"mean time from death to resolution: {', '.join(said)}")


def span_of(seconds: float) -> str:
    """`12 min`, `4.2 h`: one digit more where it matters."""
    for size, unit in ((86400.0, "d"), (3600.0, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return span(seconds)


def _tell_agents(found: Report) -> None:
    from redrive.reports.periods import percent

    if found.agents:
        rows = [
            [clean(row.label), f"{row.processed:,}", f"{row.died:,}", percent(row.rate, 2), f"{row.auto:,}"]
            for row in found.agents[:SHOWN]
        ]
        columns, cells = aligned(("agent", "processed", "dead letters", "rate", "auto-resolved"), rows)
        output.say()
        output.table(columns, cells)


def _tell_strategies(found: Report) -> None:
    from redrive.reports.periods import percent, tried

    if found.strategies:
        rows = [
            [clean(tried(one.strategy)), bar(one.rate), percent(one.rate), f"{one.worked} of {one.tried}"]
            for one in found.strategies[:SHOWN]
        ]
        columns, cells = aligned(("tried", "", "worked", "times"), rows, left=2)
        output.say()
        output.table(columns, cells)


def _tell_causes(found: Report) -> None:
    """Why jobs failed in the latest period."""
    if not found.causes:
        return
    rows = [
        [one.detail, one.category, f"{one.failed:,}", f"{one.buried:,}", f"{one.more:+,}"]
        for one in found.causes[:SHOWN]
    ]
    period = clean(found.rows[-1].name)
    columns, cells = aligned((f"cause in {period}", "kind", "failed tries", "buried", "change"), rows, left=2)
    output.say()
    output.table(columns, cells)


# ---- failures


@report.command(short_help="The failure log, by day, agent and category.")
@click.option("--agent", metavar="NAME", help="Of one agent.")
@click.option("--category", metavar="NAME", help="transient, conditional, permanent, control or unknown.")
@click.option("--date", metavar="DAY", help="One day, e.g. 2031-05-17.")
@click.option("--since", metavar="TIME", help="e.g. 8h, 3d, 2w, or 2031-05-17T07:00:00Z. Default: a week.")
@click.option("--until", metavar="TIME", help="As --since.")
@tz_option
@click.option("--queue", metavar="NAME")
@click.option("--task", metavar="NAME")
@click.option("--detail", metavar="NAME", help="e.g. rate_limited, context_overflow, credentials.")
@click.option("--error-class", metavar="NAME", help="e.g. TimeoutError.")
@click.option("--limit", metavar="N", type=int, default=20, show_default=True, help="So many dead letters are listed.")
@shared
def failures(since: str | None, until: str | None, **said: Any) -> None:
    """The failure log: what failed by day, agent and category; it never expires. Then the dead letters left of it."""
    start = None if since is None else read("since", since)
    end = None if until is None else read("until", until)
    found = ask(lambda rd: rd.reports.failures(since=start, until=end, **said))
    if output.as_json():
        output.say_json(found.public())
    elif found.lines:
        _tell_failures(found)
    else:
        output.say("Nothing failed like that in this time. `redrive report monthly` shows more of it.")


def _tell_failures(found: FailureLog) -> None:
    output.say(f"{found.failed:,} failed tries, {found.buried:,} of them made dead letters")
    days = found.by("day")
    if len(days) > 1:
        output.say(f"by day      {sparkline(list(days.values()))}  {min(days)} to {max(days)}")
    for name in ("category", "agent"):
        sums = found.by(name)
        if set(sums) != {""}:
            said = [f"{clean(key or '(none)')} {number:,}" for key, number in list(sums.items())[:SHOWN]]
            output.say(f"by {name:<9}{', '.join(said)}")
    output.say()
    rows = [
        [line.day, clean(line.agent or ""), line.category, line.detail, clean(line.error_class), clean(line.task),
         f"{line.failed:,}", f"{line.buried:,}"]
        for line in found.lines[: 4 * SHOWN]
    ]  # fmt: skip
    output.table(*aligned(("day", "agent", "category", "detail", "error", "task", "failed", "buried"), rows, left=6))
    left = len(found.lines) - len(rows) + found.more_lines
    if left:
        output.say(f"and {counted(left, 'more line')}: narrow it down, or --json")
    _tell_letters(found)


def _tell_letters(found: FailureLog) -> None:
    if found.letters:
        output.say()
        rows = [(job.short_id, job.task, ago(job.updated_at), short(job.error or "", 70)) for job in found.letters]
        output.table(("id", "task", "died", "last error"), rows)
        more = " (and more)" if found.more_letters else ""
        output.say(f"Look closer{more}: redrive dead show {found.letters[0].short_id}")


# ---- activity and agents


@report.command(short_help="What came in and went out of each queue over time.")
@click.option("--minutes", metavar="N", type=int, help="By the minute, a day at most.")
@click.option("--hours", metavar="N", type=int, help="By the hour. Default: 60 minutes.")
@click.option("--queue", metavar="NAME")
@shared
def activity(**said: Any) -> None:
    """What came in and went out of each queue over time, and how much was left."""
    found = ask(lambda rd: rd.reports.activity(**said))
    if output.as_json():
        output.say_json(found.public())
        return
    _tell_activity(found)


def _tell_activity(found: Activity) -> None:
    unit = "minute" if found.step < 3600 else "hour"
    output.say(
        f"the last {counted(len(found.starts), unit)}, by the {unit}; the backlog is what waits, runs or is held"
    )
    series = [*found.queues, *([found.total] if len(found.queues) > 1 else [])]
    if not series:
        output.say("Nothing happened, and nothing is left to do.")
        return
    flows = ("enqueued", "succeeded", "retried", "buried")
    rows = [
        [clean(one.queue or "all"), *(f"{sum(one.flows[flow]):,}" for flow in flows), f"{one.backlog[-1]:,}",
         sparkline(one.backlog, 24), sparkline(one.flows["succeeded"], 24)]
        for one in series
    ]  # fmt: skip
    columns, cells = aligned(("queue", *flows, "backlog", "backlog before", "succeeded"), rows)
    output.table(columns, cells)


@report.command()
@click.option(
    "--hours", metavar="N", type=int, default=24, show_default=True, help="How far back `done` and the rest go."
)
@shared
def load(hours: int) -> None:
    """What each agent has to do, and how it went lately."""
    found = ask(lambda rd: rd.reports.load(hours=hours))
    if output.as_json():
        output.say_json([one.public() for one in found])
    elif found:
        output.table(*aligned(LOAD, map(_load, found)))
    else:
        output.say("No job was ever accepted here. Try: redrive enqueue TASK '{}' --agent NAME")


LOAD: Final = ("agent", "waiting", "running", "held", "dead", "done", "retried", "buried", "fails", "why")


def _load(one: AgentLoad) -> Sequence[str]:
    from redrive.reports.periods import percent

    numbers = (one.waiting, one.running, one.held, one.dead, one.done, one.retried, one.buried)
    why = ", ".join(f"{category} {short_number(number)}" for category, number in one.mix.items())
    return [clean(one.agent or "(no agent)"), *(f"{number:,}" for number in numbers), percent(one.failure_rate, 1), why]
