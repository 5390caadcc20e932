"""`redrive morning`: what needs eyes, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.core.times import read
from redrive.doors.cli import output
from redrive.doors.cli.asking import judge, shared
from redrive.doors.cli.filters import doubt
from redrive.doors.cli.report import noticed, tell_noticed
from redrive.doors.cli.text import ago, clean, short

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.reports.morning import Morning
    from redrive.reports.needs import Need


@click.command(short_help="Show what needs you, since when, and what to do.")
@click.option("--since", metavar="SPAN", default="24h", show_default=True, help="e.g. 8h, 3d, or 2031-05-17T07:00:00Z.")
@click.option("--queue", metavar="NAME", help="One pipeline only.")
@click.option(
    "--spike", metavar="N", type=click.IntRange(min=1), default=3, show_default=True,
    help="So many more of one error class than the time before, and twice as many, are a structural change.",
)  # fmt: skip
@click.option("--notify", is_flag=True, help="Tell it through the notify channels, too, unless the day is quiet.")
@shared
def morning(since: str, queue: str | None, spike: int, notify: bool) -> int:
    """What needs you: one line and exit status 0 on a quiet day, else what, since when and what to do (1).

    Exit status 3: the store cannot be used.
    """
    start = read("since", since)
    page, told = judge(lambda rd: noticed(rd, _looked(rd, start, queue, spike), notify))
    if output.as_json():
        output.say_json(page.public() | ({} if told is None else {"notified": told}))
    else:
        _tell(page)
        tell_noticed(None if page.ok else told)
    return 0 if page.ok else 1


async def _looked(rd: Redrive, since: Any, queue: str | None, spike: int) -> Morning:
    await doubt(rd, queue)
    return await rd.morning(since, queue=queue, spike=spike)


def _tell(page: Morning) -> None:
    from redrive.reports.morning import SHOWN, headline, in_words

    output.say(clean(headline(page)))
    if page.ok:
        return
    for need in page.needs[:SHOWN]:
        _tell_need(need)
    if len(page.needs) > SHOWN:
        rest = sum(need.count for need in page.needs[SHOWN:])
        output.say(f"and {rest} more: redrive dead list --lane manual")
    if page.changes:
        output.say("changed since the time before")
    for delta in page.changes:
        output.say(f"  {clean(in_words(delta))}")
        output.say(f"    → redrive dead list --error-class {clean(delta.error_class)}")
    if page.steady:
        said = [f"{clean(delta.error_class)} {delta.now} ({delta.more:+})" for delta in page.steady[:SHOWN]]
        output.say(f"as the time before: {', '.join(said)}")
    for delta in page.cured_classes:
        output.say(f"cured: {clean(in_words(delta))}")
    for cured in page.cured:
        output.say(f"cured: {clean(cured.task)}: {short(cured.what, 100)}")
    if page.oldest_waiting is not None:
        job = page.oldest_waiting
        output.say(f"oldest waiting: {clean(job.task)} {job.short_id}, due {ago(job.run_at, page.until)}")


def _tell_need(need: Need) -> None:
    from redrive.reports.needs import course, label, lasting

    if not need.task or not need.what:
        output.say(f"{need.count:>4} {label(need)}: {clean(need.sentence)}")
        output.say(f"       → {clean(need.action)} {need.command}")
        return
    place = clean(need.task) if need.queue in ("", need.task) else f"{clean(need.task)} ({clean(need.queue)})"
    owner = f"for {clean(need.owner)}" if need.kind == "deferred_overdue" and need.owner else ""
    said = "; ".join(filter(None, (course(need), lasting(need), owner)))
    days = f" [{said}]" if said else ""
    output.say(f"{need.count:>4} {label(need):<7} {place}: {short(need.what, 100)}{days}")
    output.say(f"       → {clean(need.action)} {need.command}")
