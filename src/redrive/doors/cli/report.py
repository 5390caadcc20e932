"""Prints reports: `redrive morning`, and weeks, months, failures, activity and agents in numbers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

import click

from redrive.api.redrive import Redrive
from redrive.core.times import read
from redrive.core.words import duration
from redrive.doors.cli import output
from redrive.doors.cli.arguments import warn_of_unknown_queue
from redrive.doors.cli.invocation import command, command_group, use_app, use_app_or_break
from redrive.doors.cli.text import ago, align_numbers, bar, clean, format_number, plural, shorten, sparkline
from redrive.reports.activity import Activity, AgentLoad
from redrive.reports.morning import SHOWN as MOST
from redrive.reports.morning import Morning, in_words
from redrive.reports.morning import headline as morning_headline
from redrive.reports.needs import Need, course, label, lasting
from redrive.reports.periods import FailureLog, Report, Row, advice, headline, name_strategy, percent

FAILURES: Final = ("day", "agent", "category", "detail", "error", "task", "failed", "buried")
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


def _report_json(report: Report | Morning, sent: int | None) -> dict[str, Any]:
    return report.public() | ({} if sent is None else {"notified": sent})


def _describe_sent(sent: int | None) -> Iterator[str]:
    if sent:
        yield f"sent: {plural(sent, 'message')}"
    elif sent == 0:
        yield "Not sent from here: no channel of this machine took it. It waits for a worker that has one."


@command()
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
def morning(since: str, queue: str | None, spike: int, notify: bool) -> int:
    """Show what needs you: one line and exit status 0 on a quiet day, else what, since when and what to do (1).

    Exit status 3: the store cannot be used.
    """
    start = read("since", since)
    page, sent = use_app_or_break(lambda rd: send_notice(rd, _read_morning(rd, start, queue, spike), notify))
    lines = (*_morning_lines(page), *(() if page.ok else _describe_sent(sent)))
    output.print_answer(lambda: _report_json(page, sent), lines)
    return 0 if page.ok else 1


async def _read_morning(rd: Redrive, since: Any, queue: str | None, spike: int) -> Morning:
    await warn_of_unknown_queue(rd, queue)
    return await rd.morning(since, queue=queue, spike=spike)


def _morning_lines(page: Morning) -> Iterator[str]:
    yield clean(morning_headline(page))
    if page.ok:
        return
    for need in page.needs[:MOST]:
        yield from _need_lines(need)
    if len(page.needs) > MOST:
        yield f"and {sum(need.count for need in page.needs[MOST:])} more: redrive dead list --lane manual"
    if page.changes:
        yield "changed since the time before"
    for delta in page.changes:
        yield f"  {clean(in_words(delta))}"
        yield f"    → redrive dead list --error-class {clean(delta.error_class)}"
    if page.steady:
        classes = [f"{clean(delta.error_class)} {delta.now} ({delta.more:+})" for delta in page.steady[:MOST]]
        yield f"as the time before: {', '.join(classes)}"
    for delta in page.cured_classes:
        yield f"cured: {clean(in_words(delta))}"
    for cured in page.cured:
        yield f"cured: {clean(cured.task)}: {shorten(cured.what, 100)}"
    if (job := page.oldest_waiting) is not None:
        yield f"oldest waiting: {clean(job.task)} {job.short_id}, due {ago(job.run_at, page.until)}"


def _need_lines(need: Need) -> Iterator[str]:
    if need.task and need.what:
        place = clean(need.task) if need.queue in ("", need.task) else f"{clean(need.task)} ({clean(need.queue)})"
        owner = f"for {clean(need.owner)}" if need.kind == "deferred_overdue" and need.owner else ""
        details = "; ".join(filter(None, (course(need), lasting(need), owner)))
        days = f" [{details}]" if details else ""
        yield f"{need.count:>4} {label(need):<7} {place}: {shorten(need.what, 100)}{days}"
    else:
        yield f"{need.count:>4} {label(need)}: {clean(need.sentence)}"
    yield f"       → {clean(need.action)} {need.command}"


# ---- weeks and months


@command_group()
def report() -> None:
    """Show weeks and months in numbers, the failure log, activity, agents."""


@report.command(short_help="Show the last weeks in numbers.")
@click.option("--weeks", metavar="N", type=int, default=4, show_default=True, help="How many, with this one.")
@tz_option
@route_options
@notify_option
def weekly(notify: bool, **given: Any) -> None:
    """Show the last weeks: what was processed, what died and what became of it, why, and what was tried against it."""
    _print_report(*use_app(lambda rd: send_notice(rd, rd.reports.weekly(**given), notify)))


@report.command(short_help="Show the last months in numbers.")
@click.option("--months", metavar="N", type=int, default=12, show_default=True, help="How many, with this one.")
@tz_option
@route_options
@notify_option
def monthly(notify: bool, **given: Any) -> None:
    """Show the last months: what was processed, what died and what became of it, why, and what was tried against it."""
    _print_report(*use_app(lambda rd: send_notice(rd, rd.reports.monthly(**given), notify)))


def _print_report(report: Report, sent: int | None) -> None:
    output.print_answer(lambda: _report_json(report, sent), (*_report_lines(report), *_describe_sent(sent)))


def _report_lines(report: Report) -> output.Lines:
    yield clean(headline(report))
    if report.total.empty:
        return
    yield from _period_lines(report)
    yield from _time_lines(report.total)
    if report.agents:
        yield ""
        yield _agent_table(report)
    if report.strategies:
        yield ""
        yield _strategy_table(report)
    if report.causes:
        yield ""
        yield _cause_table(report)
    for line in advice(report):
        yield f"→ {clean(line)}"


def _period_lines(report: Report) -> output.Lines:
    opens, defers = report.total.open > 0, report.total.deferred > 0
    first = "month" if report.kind == "monthly" else "week"
    names = [first, "processed", "dead letters", "rate", "auto-resolved", "human-required"]
    names += ["deferred"] * defers + ["open"] * opens
    rows = [_cells(row, opens=opens, defers=defers) for row in (*report.rows, report.total)]
    yield ""
    yield output.Table(*align_numbers(names, rows))
    if len(report.rows) > 1:
        yield ""
        yield f"processed   {sparkline([row.processed for row in report.rows])}"
        yield f"dead rate   {sparkline([row.rate or 0.0 for row in report.rows])}"


def _cells(row: Row, *, opens: bool, defers: bool) -> list[str]:
    total = row.name == "total"
    cells = [clean(row.label), f"{row.processed:,}", f"{row.died:,}", percent(row.rate, 2)]
    for number, share in ((row.auto, row.auto_share), (row.human, row.human_share)):
        cells.append(f"{number:,} ({percent(share)})" if total and share is not None else f"{number:,}")
    return cells + [f"{row.deferred:,}"] * defers + [f"{row.open:,}"] * opens


def _time_lines(total: Row) -> Iterator[str]:
    """Format the mean time to resolution, by who resolved it."""
    means = ((total.auto_mttr, "by itself", total.auto), (total.person_mttr, "by a person", total.person))
    times = [f"{duration(mean)} {words} ({number:,})" for mean, words, number in means if mean is not None]
    if times:
        yield ""
        yield f"mean time from death to resolution: {', '.join(times)}"


def _agent_table(report: Report) -> output.Table:
    rows = [
        [clean(row.label), f"{row.processed:,}", f"{row.died:,}", percent(row.rate, 2), f"{row.auto:,}"]
        for row in report.agents[:SHOWN]
    ]
    return output.Table(*align_numbers(("agent", "processed", "dead letters", "rate", "auto-resolved"), rows))


def _strategy_table(report: Report) -> output.Table:
    rows = [
        [clean(name_strategy(row.strategy)), bar(row.rate), percent(row.rate), f"{row.worked} of {row.tried}"]
        for row in report.strategies[:SHOWN]
    ]
    return output.Table(*align_numbers(("tried", "", "worked", "times"), rows, left=2))


def _cause_table(report: Report) -> output.Table:
    """Make the table of why jobs failed in the latest period."""
    rows = [
        [row.detail, row.category, f"{row.failed:,}", f"{row.buried:,}", f"{row.more:+,}"]
        for row in report.causes[:SHOWN]
    ]
    columns = (f"cause in {clean(report.rows[-1].name)}", "kind", "failed tries", "buried", "change")
    return output.Table(*align_numbers(columns, rows, left=2))


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
def failures(since: str | None, until: str | None, **given: Any) -> None:
    """Show the failure log by day, agent and category, which never expires, and the dead letters left of it."""
    start = None if since is None else read("since", since)
    end = None if until is None else read("until", until)
    log = use_app(lambda rd: rd.reports.failures(since=start, until=end, **given))
    empty = "Nothing failed like that in this time. `redrive report monthly` shows more of it."
    output.print_answer(log, _failure_lines(log) if log.lines else empty)


def _failure_lines(log: FailureLog) -> output.Lines:
    yield f"{log.failed:,} failed tries, {log.buried:,} of them made dead letters"
    days = log.by("day")
    if len(days) > 1:
        yield f"by day      {sparkline(list(days.values()))}  {min(days)} to {max(days)}"
    for name in ("category", "agent"):
        sums = log.by(name)
        if set(sums) != {""}:
            parts = [f"{clean(key or '(none)')} {number:,}" for key, number in list(sums.items())[:SHOWN]]
            yield f"by {name:<9}{', '.join(parts)}"
    yield ""
    rows = [_failure_row(line) for line in log.lines[: 4 * SHOWN]]
    yield output.Table(*align_numbers(FAILURES, rows, left=6))
    left = len(log.lines) - len(rows) + log.more_lines
    if left:
        yield f"and {plural(left, 'more line')}: narrow it down, or --json"
    if log.letters:
        yield ""
        jobs = [(job.short_id, job.task, ago(job.updated_at), shorten(job.error or "", 70)) for job in log.letters]
        yield output.Table(("id", "task", "died", "last error"), jobs)
        yield f"Look closer{' (and more)' if log.more_letters else ''}: redrive dead show {log.letters[0].short_id}"


def _failure_row(line: Any) -> list[str]:
    names = (line.agent or "", line.category, line.detail, line.error_class, line.task)
    return [line.day, *map(clean, names), f"{line.failed:,}", f"{line.buried:,}"]


# ---- activity and agents


@report.command(short_help="Show what came in and went out of each queue over time.")
@click.option("--minutes", metavar="N", type=int, help="By the minute, a day at most.")
@click.option("--hours", metavar="N", type=int, help="By the hour. Default: 60 minutes.")
@click.option("--queue", metavar="NAME")
def activity(**given: Any) -> None:
    """Show what came in and went out of each queue over time, and how much was left."""
    report = use_app(lambda rd: rd.reports.activity(**given))
    output.print_answer(report, _activity_lines(report))


def _activity_lines(report: Activity) -> output.Lines:
    unit = "minute" if report.step < 3600 else "hour"
    count = plural(len(report.starts), unit)
    yield f"the last {count}, by the {unit}; the backlog is what waits, runs or is held"
    series = [*report.queues, *([report.total] if len(report.queues) > 1 else [])]
    if not series:
        yield "Nothing happened, and nothing is left to do."
        return
    flows = ("enqueued", "succeeded", "retried", "buried")
    rows = []
    for queue in series:
        numbers = (f"{number:,}" for number in (*(sum(queue.flows[flow]) for flow in flows), queue.backlog[-1]))
        charts = (sparkline(queue.backlog, 24), sparkline(queue.flows["succeeded"], 24))
        rows.append([clean(queue.queue or "all"), *numbers, *charts])
    yield output.Table(*align_numbers(("queue", *flows, "backlog", "backlog before", "succeeded"), rows))


@report.command(short_help="Show what each agent has to do, and how it went.")
@click.option(
    "--hours", metavar="N", type=int, default=24, show_default=True, help="How far back `done` and the rest go."
)
def load(hours: int) -> None:
    """Show what each agent has to do, and how it went in the last hours."""
    loads = use_app(lambda rd: rd.reports.load(hours=hours))
    columns, rows = align_numbers(LOAD, map(_load_row, loads))
    empty = "No job was ever accepted here. Try: redrive enqueue TASK '{}' --agent NAME"
    output.print_list(rows, columns, list, empty=empty, body=loads)


LOAD: Final = ("agent", "waiting", "running", "held", "dead", "done", "retried", "buried", "fails", "why")


def _load_row(view: AgentLoad) -> Sequence[str]:
    numbers = (view.waiting, view.running, view.held, view.dead, view.done, view.retried, view.buried)
    why = ", ".join(f"{category} {format_number(number)}" for category, number in view.mix.items())
    rate = percent(view.failure_rate, 1)
    return [clean(view.agent or "(no agent)"), *(f"{number:,}" for number in numbers), rate, why]
