"""Prints reports: `redrive morning`, and weeks, months, failures, activity and agents in numbers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.core.times import read
from redrive.doors.cli import output
from redrive.doors.cli.arguments import warn_of_unknown_queue
from redrive.doors.cli.invocation import shared_options, use_app, use_app_or_break
from redrive.doors.cli.text import (
    ago,
    align_numbers,
    bar,
    clean,
    format_number,
    format_span,
    plural,
    shorten,
    sparkline,
)

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.reports.activity import Activity, AgentLoad
    from redrive.reports.morning import Morning
    from redrive.reports.needs import Need
    from redrive.reports.periods import FailureLog, Report, Row

F = TypeVar("F", bound=Callable[..., Any])
SHOWN: Final = 15
"""How many lines of a kind are printed one by one."""

tz_option = click.option(
    "--tz", metavar="ZONE", default="UTC", show_default=True, help="Whose calendar, e.g. Europe/Rome."
)
notify_option = click.option("--notify", is_flag=True, help="Also send it through the notify channels.")


def route_options(command: F) -> F:
    """Add --queue, --task and --agent, which choose a part of the work."""
    for name in ("agent", "task", "queue"):
        command = click.option(f"--{name}", metavar="NAME")(command)
    return command


N = TypeVar("N", "Report", "Morning")


async def send_notice(rd: Redrive, making: Coroutine[Any, Any, N], notify: bool) -> tuple[N, int | None]:
    """Make a report, and send it if `notify`; also return how many messages channels took, None if not sent."""
    made = await making
    return made, await rd.reports.notify(made) if notify else None


def _print_sent(sent: int | None) -> None:
    if sent:
        output.print_line(f"sent: {plural(sent, 'message')}")
    elif sent == 0:
        output.print_line("Not sent from here: no channel of this machine took it. It waits for a worker that has one.")


@click.command(short_help="Show what needs you, since when, and what to do.")
@click.option("--since", metavar="SPAN", default="24h", show_default=True, help="e.g. 8h, 3d, or 2031-05-17T07:00:00Z.")
@click.option("--queue", metavar="NAME", help="One pipeline only.")
@click.option(
    "--spike",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="An error class with N more failures than before, and twice as many, is a structural change.",
)
@click.option("--notify", is_flag=True, help="Also send it through the notify channels, unless the day is quiet.")
@shared_options
def morning(since: str, queue: str | None, spike: int, notify: bool) -> int:
    """Show what needs you: one line and exit status 0 on a quiet day, else what, since when and what to do (1).

    Exit status 3: the store cannot be used.
    """
    start = read("since", since)
    page, sent = use_app_or_break(lambda rd: send_notice(rd, _read_morning(rd, start, queue, spike), notify))
    if output.wants_json():
        output.print_json(page.public() | ({} if sent is None else {"notified": sent}))
    else:
        _print_morning(page)
        _print_sent(None if page.ok else sent)
    return 0 if page.ok else 1


async def _read_morning(rd: Redrive, since: Any, queue: str | None, spike: int) -> Morning:
    await warn_of_unknown_queue(rd, queue)
    return await rd.morning(since, queue=queue, spike=spike)


def _print_morning(page: Morning) -> None:
    from redrive.reports.morning import SHOWN as MOST
    from redrive.reports.morning import headline, in_words

    output.print_line(clean(headline(page)))
    if page.ok:
        return
    for need in page.needs[:MOST]:
        _print_need(need)
    if len(page.needs) > MOST:
        rest = sum(need.count for need in page.needs[MOST:])
        output.print_line(f"and {rest} more: redrive dead list --lane manual")
    if page.changes:
        output.print_line("changed since the time before")
    for delta in page.changes:
        output.print_line(f"  {clean(in_words(delta))}")
        output.print_line(f"    → redrive dead list --error-class {clean(delta.error_class)}")
    if page.steady:
        classes = [f"{clean(delta.error_class)} {delta.now} ({delta.more:+})" for delta in page.steady[:MOST]]
        output.print_line(f"as the time before: {', '.join(classes)}")
    for delta in page.cured_classes:
        output.print_line(f"cured: {clean(in_words(delta))}")
    for cured in page.cured:
        output.print_line(f"cured: {clean(cured.task)}: {shorten(cured.what, 100)}")
    if page.oldest_waiting is not None:
        job = page.oldest_waiting
        output.print_line(f"oldest waiting: {clean(job.task)} {job.short_id}, due {ago(job.run_at, page.until)}")


def _print_need(need: Need) -> None:
    from redrive.reports.needs import course, label, lasting

    if not need.task or not need.what:
        output.print_line(f"{need.count:>4} {label(need)}: {clean(need.sentence)}")
        output.print_line(f"       → {clean(need.action)} {need.command}")
        return
    place = clean(need.task) if need.queue in ("", need.task) else f"{clean(need.task)} ({clean(need.queue)})"
    owner = f"for {clean(need.owner)}" if need.kind == "deferred_overdue" and need.owner else ""
    details = "; ".join(filter(None, (course(need), lasting(need), owner)))
    days = f" [{details}]" if details else ""
    output.print_line(f"{need.count:>4} {label(need):<7} {place}: {shorten(need.what, 100)}{days}")
    output.print_line(f"       → {clean(need.action)} {need.command}")


# ---- weeks and months


@click.group(short_help="Show reports: weeks, months, failures, activity, agents.")
@shared_options
def report() -> None:
    """Show weeks and months in numbers, the failure log, activity, agents."""


@report.command(short_help="Show the last weeks in numbers.")
@click.option("--weeks", metavar="N", type=int, default=4, show_default=True, help="How many, with this one.")
@tz_option
@route_options
@notify_option
@shared_options
def weekly(notify: bool, **given: Any) -> None:
    """Show the last weeks: what was processed, what died and what became of it, why, and what was tried against it."""
    _print_report(*use_app(lambda rd: send_notice(rd, rd.reports.weekly(**given), notify)))


@report.command(short_help="Show the last months in numbers.")
@click.option("--months", metavar="N", type=int, default=12, show_default=True, help="How many, with this one.")
@tz_option
@route_options
@notify_option
@shared_options
def monthly(notify: bool, **given: Any) -> None:
    """Show the last months: what was processed, what died and what became of it, why, and what was tried against it."""
    _print_report(*use_app(lambda rd: send_notice(rd, rd.reports.monthly(**given), notify)))


def _print_report(report: Report, sent: int | None) -> None:
    from redrive.reports.periods import advice, headline

    if output.wants_json():
        output.print_json(report.public() | ({} if sent is None else {"notified": sent}))
        return
    output.print_line(clean(headline(report)))
    if not report.total.empty:
        _print_rows(report)
        _print_times(report.total)
        _print_agents(report)
        _print_strategies(report)
        _print_causes(report)
        for line in advice(report):
            output.print_line(f"→ {clean(line)}")
    _print_sent(sent)


def _print_rows(found: Report) -> None:
    opens, defers = found.total.open > 0, found.total.deferred > 0
    first = "month" if found.kind == "monthly" else "week"
    names = [first, "processed", "dead letters", "rate", "auto-resolved", "human-required"]
    names += ["deferred"] * defers + ["open"] * opens
    rows = [_cells(row, opens=opens, defers=defers) for row in (*found.rows, found.total)]
    columns, cells = align_numbers(names, rows)
    output.print_line()
    output.print_table(columns, cells)
    if len(found.rows) > 1:
        output.print_line()
        output.print_line(f"processed   {sparkline([row.processed for row in found.rows])}")
        output.print_line(f"dead rate   {sparkline([row.rate or 0.0 for row in found.rows])}")


def _cells(row: Row, *, opens: bool, defers: bool) -> list[str]:
    from redrive.reports.periods import percent

    total = row.name == "total"
    cells = [clean(row.label), f"{row.processed:,}", f"{row.died:,}", percent(row.rate, 2)]
    for number, share in ((row.auto, row.auto_share), (row.human, row.human_share)):
        cells.append(f"{number:,} ({percent(share)})" if total and share is not None else f"{number:,}")
    return cells + [f"{row.deferred:,}"] * defers + [f"{row.open:,}"] * opens


def _print_times(total: Row) -> None:
    """Print the mean time to resolution, by who resolved it."""
    times = [
        f"{_format_hours(seconds)} {words} ({number:,})"
        for seconds, words, number in (
            (total.auto_mttr, "by itself", total.auto),
            (total.person_mttr, "by a person", total.person),
        )
        if seconds is not None
    ]
    if times:
        output.print_line()
        output.print_line(f"mean time from death to resolution: {', '.join(times)}")


def _format_hours(seconds: float) -> str:
    """Format a span with one digit after the point from an hour on: `12 min`, `4.2 h`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return format_span(seconds)


def _print_agents(found: Report) -> None:
    from redrive.reports.periods import percent

    if found.agents:
        rows = [
            [clean(row.label), f"{row.processed:,}", f"{row.died:,}", percent(row.rate, 2), f"{row.auto:,}"]
            for row in found.agents[:SHOWN]
        ]
        columns, cells = align_numbers(("agent", "processed", "dead letters", "rate", "auto-resolved"), rows)
        output.print_line()
        output.print_table(columns, cells)


def _print_strategies(found: Report) -> None:
    from redrive.reports.periods import percent, tried

    if found.strategies:
        rows = [
            [clean(tried(one.strategy)), bar(one.rate), percent(one.rate), f"{one.worked} of {one.tried}"]
            for one in found.strategies[:SHOWN]
        ]
        columns, cells = align_numbers(("tried", "", "worked", "times"), rows, left=2)
        output.print_line()
        output.print_table(columns, cells)


def _print_causes(found: Report) -> None:
    """Print why jobs failed in the latest period."""
    if not found.causes:
        return
    rows = [
        [one.detail, one.category, f"{one.failed:,}", f"{one.buried:,}", f"{one.more:+,}"]
        for one in found.causes[:SHOWN]
    ]
    period = clean(found.rows[-1].name)
    columns, cells = align_numbers((f"cause in {period}", "kind", "failed tries", "buried", "change"), rows, left=2)
    output.print_line()
    output.print_table(columns, cells)


# ---- failures


@report.command(short_help="Show the failure log, by day, agent and category.")
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
@click.option("--limit", metavar="N", type=int, default=20, show_default=True, help="How many dead letters to list.")
@shared_options
def failures(since: str | None, until: str | None, **given: Any) -> None:
    """Show the failure log by day, agent and category, which never expires, and the dead letters left of it."""
    start = None if since is None else read("since", since)
    end = None if until is None else read("until", until)
    found = use_app(lambda rd: rd.reports.failures(since=start, until=end, **given))
    if output.wants_json():
        output.print_json(found.public())
    elif found.lines:
        _print_failures(found)
    else:
        output.print_line("Nothing failed like that in this time. `redrive report monthly` shows more of it.")


def _print_failures(found: FailureLog) -> None:
    output.print_line(f"{found.failed:,} failed tries, {found.buried:,} of them made dead letters")
    days = found.by("day")
    if len(days) > 1:
        output.print_line(f"by day      {sparkline(list(days.values()))}  {min(days)} to {max(days)}")
    for name in ("category", "agent"):
        sums = found.by(name)
        if set(sums) != {""}:
            parts = [f"{clean(key or '(none)')} {number:,}" for key, number in list(sums.items())[:SHOWN]]
            output.print_line(f"by {name:<9}{', '.join(parts)}")
    output.print_line()
    rows = [_failure_row(line) for line in found.lines[: 4 * SHOWN]]
    output.print_table(
        *align_numbers(("day", "agent", "category", "detail", "error", "task", "failed", "buried"), rows, left=6)
    )
    left = len(found.lines) - len(rows) + found.more_lines
    if left:
        output.print_line(f"and {plural(left, 'more line')}: narrow it down, or --json")
    _print_dead_letters(found)


def _failure_row(line: Any) -> list[str]:
    names = (line.agent or "", line.category, line.detail, line.error_class, line.task)
    return [line.day, *map(clean, names), f"{line.failed:,}", f"{line.buried:,}"]


def _print_dead_letters(found: FailureLog) -> None:
    if found.letters:
        output.print_line()
        rows = [(job.short_id, job.task, ago(job.updated_at), shorten(job.error or "", 70)) for job in found.letters]
        output.print_table(("id", "task", "died", "last error"), rows)
        more = " (and more)" if found.more_letters else ""
        output.print_line(f"Look closer{more}: redrive dead show {found.letters[0].short_id}")


# ---- activity and agents


@report.command(short_help="Show what came in and went out of each queue over time.")
@click.option("--minutes", metavar="N", type=int, help="By the minute, a day at most.")
@click.option("--hours", metavar="N", type=int, help="By the hour. Default: 60 minutes.")
@click.option("--queue", metavar="NAME")
@shared_options
def activity(**given: Any) -> None:
    """Show what came in and went out of each queue over time, and how much was left."""
    found = use_app(lambda rd: rd.reports.activity(**given))
    if output.wants_json():
        output.print_json(found.public())
        return
    _print_activity(found)


def _print_activity(found: Activity) -> None:
    unit = "minute" if found.step < 3600 else "hour"
    output.print_line(
        f"the last {plural(len(found.starts), unit)}, by the {unit}; the backlog is what waits, runs or is held"
    )
    series = [*found.queues, *([found.total] if len(found.queues) > 1 else [])]
    if not series:
        output.print_line("Nothing happened, and nothing is left to do.")
        return
    flows = ("enqueued", "succeeded", "retried", "buried")
    rows = []
    for one in series:
        numbers = (f"{number:,}" for number in (*(sum(one.flows[flow]) for flow in flows), one.backlog[-1]))
        charts = (sparkline(one.backlog, 24), sparkline(one.flows["succeeded"], 24))
        rows.append([clean(one.queue or "all"), *numbers, *charts])
    columns, cells = align_numbers(("queue", *flows, "backlog", "backlog before", "succeeded"), rows)
    output.print_table(columns, cells)


@report.command(short_help="Show what each agent has to do, and how it went.")
@click.option(
    "--hours", metavar="N", type=int, default=24, show_default=True, help="How far back `done` and the rest go."
)
@shared_options
def load(hours: int) -> None:
    """Show what each agent has to do, and how it went in the last hours."""
    loads = use_app(lambda rd: rd.reports.load(hours=hours))
    columns, rows = align_numbers(LOAD, map(_load_row, loads))
    empty = "No job was ever accepted here. Try: redrive enqueue TASK '{}' --agent NAME"
    output.print_list(rows, columns, list, empty=empty, body=loads)


LOAD: Final = ("agent", "waiting", "running", "held", "dead", "done", "retried", "buried", "fails", "why")


def _load_row(one: AgentLoad) -> Sequence[str]:
    from redrive.reports.periods import percent

    numbers = (one.waiting, one.running, one.held, one.dead, one.done, one.retried, one.buried)
    why = ", ".join(f"{category} {format_number(number)}" for category, number in one.mix.items())
    return [clean(one.agent or "(no agent)"), *(f"{number:,}" for number in numbers), percent(one.failure_rate, 1), why]
