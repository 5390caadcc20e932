"""Bulk redrives: plan, ask, move with a bar, tell the score; follow, pause, resume or cancel one that goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared, who, why
from redrive.doors.cli.filters import filtered, understood
from redrive.doors.cli.jobs import tell_moved
from redrive.doors.cli.payload import read
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, counted, one_line, short

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.deadletters.bulk.choice import Plan
    from redrive.deadletters.bulk.run import ItemView, RedriveRun
    from redrive.deadletters.triage import PatchPreview

COLUMNS: Final = ("id", "state", "started", "who", "moved", "succeeded", "failed again", "skipped", "open", "what")
SCORES: Final = ("group", "task", "what", "number", "moved", "succeeded", "failed again", "skipped", "open")
STATUSES: Final = ("pending", "skipped", "moved", "succeeded", "failed_again", "discarded")
ROWS: Final = 20
"""Groups that are shown; --json has all of them."""
Show = Callable[["RedriveRun"], None]
F = TypeVar("F", bound=Callable[..., Any])


def careful(command: F) -> F:
    """How carefully and how fast many go, and whether to ask."""
    for option in (
        click.option("--yes", is_flag=True, help="Do it without asking."),
        click.option("--detach", is_flag=True, help="Start it and leave the rest to the workers."),
        click.option("--rate", metavar="N", type=float, default=None, help="At most N a second."),
        click.option("--pass-rate", metavar="SHARE", type=float, default=None, help="How much of a canary must: 0.8."),
        click.option(
            "--canary", metavar="N", type=click.IntRange(min=0), default=0, help="N go first and must succeed."
        ),
    ):
        command = option(command)
    return command


@click.command("redrive", short_help="Back to the queue as it is.")
@click.argument("ids", nargs=-1)
@filtered
@click.option("--all", "all_", is_flag=True, help="All dead letters.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@careful
@why
@shared
def redrive_(ids: tuple[str, ...], filters: dict[str, Any], all_: bool, why: str | None, **how: Any) -> int:
    """Back to the queue: same id, key and history; fresh attempts where they were used up.

    One ID goes at once. Several, or those that the options choose, are planned, asked about, and moved as one redrive
    that goes on if this command is stopped. Exit status 1 when some failed again or it did not get to its end.
    """
    if len(ids) == 1 and not filters and not all_ and not any(how.values()):
        tell_moved(ask(lambda rd: rd.dead.redrive(ids[0], who=who(), why=why)), "redriven", "redrive status {id}")
        return 0
    if not ids and not filters and not all_:
        raise Problem(
            "say what to redrive: ids, --group, --queue, … or --all", "`redrive dead groups` lists the error groups"
        )
    return _bulk({"ids": ids, "all": all_}, filters, why, **how)


def _bulk(
    scope: dict[str, Any],
    filters: Mapping[str, Any],
    why: str | None,
    *,
    dry_run: bool,
    yes: bool,
    detach: bool,
    canary: int,
    **how: Any,
) -> int:
    chosen = ask(lambda rd: understood(rd, filters))
    plan = ask(lambda rd: rd.redrives.plan(**scope, **chosen))
    if not output.as_json():
        _tell_plan(plan)
    elif dry_run or not plan.number:
        output.say_json(plan.public())
    if dry_run or not plan.number:
        return 0
    _agreed(f"redrive {counted(plan.moving, 'dead letter')}", yes=yes)
    options = {name: value for name, value in how.items() if value is not None}
    said = {**scope, **chosen, **options, "canary": canary, "token": plan.token, "who": who(), "why": why}
    run = ask(lambda rd: rd.redrives.start(**said))
    return _started(run) if detach else _followed(run.id)


def _agreed(what: str, *, yes: bool) -> None:
    """Ask first. Where nobody can answer, --yes must have been said."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Problem(f"this would {what}", "repeat it with --yes if that is meant, or look first with --dry-run")
    if not click.confirm(f"{what[0].upper()}{what[1:]}?", err=True):
        raise Problem("nothing was changed", "say y, or give --yes, to go on")


def _started(run: RedriveRun) -> int:
    if output.as_json():
        output.say_json(run.public())
    else:
        output.say(f"redrive {run.short_id} is started; the workers carry it on")
        output.say(f"  follow it: redrive redrives follow {run.short_id}")
    return 0


# ---- the same patch for many


def edit_many(
    ids: tuple[str, ...],
    filters: Mapping[str, Any],
    patch: str,
    why: str | None,
    *,
    all_: bool,
    dry_run: bool,
    yes: bool,
    detach: bool,
    **how: Any,
) -> int:
    """Preview, ask, then one run that goes on if this command is stopped."""
    if not ids and not filters and not all_:
        raise Problem("say what to edit: ids, --group, --queue, … or --all", "`redrive dead groups` shows the groups")
    chosen = ask(lambda rd: understood(rd, filters))
    scope: dict[str, Any] = {"ids": ids, "all": all_, "where": chosen}
    given = ask(lambda rd: _patch(rd, patch))
    preview = ask(lambda rd: rd.dead.preview_edit_many(given, **scope))
    if not output.as_json():
        _tell_patch(preview)
    elif dry_run or not preview.changing:
        output.say_json(preview.public())
    if dry_run or not preview.changing:
        return 0 if preview.changing else 1
    number = preview.changing if preview.looked_at is None else preview.number
    _agreed(f"edit and redrive {counted(number, 'dead letter')}", yes=yes)
    options = {name: value for name, value in how.items() if value is not None}
    said = {**scope, **options, "token": preview.token, "who": who(), "why": why}
    run = ask(lambda rd: rd.dead.edit_many(given, **said))
    return _started(run) if detach else _followed(run.id)


async def _patch(rd: Redrive, text: str) -> dict[str, Any]:
    return read(text, rd.settings.payload_limit)


def _tell_patch(preview: PatchPreview) -> None:
    output.say(f"{clean(preview.text)} ({clean(preview.chosen)}): {clean(', '.join(preview.fields))}")
    for error in preview.errors:
        output.say(f"  refused: {error.number} × {clean(error.field)} {one_line(error.problem)}")
    for reason, number in preview.refused.items():
        output.say(f"  refused: {number} × {one_line(reason)}")
    for sample in preview.samples:
        output.say(f"{sample.job_id[-8:]} ({clean(sample.task)})")
        for line in (*sample.difference, *(f"no longer counts: {void}" for void in sample.voided)):
            output.say(f"  {clean(line)}")
    for other in preview.running:
        output.say(f"note: redrive {other} still moves one of these groups; only when it is over can another start")


# ---- the plan


def _tell_plan(plan: Plan) -> None:
    if not plan.number:
        output.say(f"No dead letters match ({clean(plan.chosen)}): there is nothing to redrive.")
        return
    rest = f", {plan.number - plan.moving} would be skipped" if plan.skipped else ""
    output.say(f"{counted(plan.number, 'dead letter')} ({clean(plan.chosen)}): {plan.moving} would move{rest}")
    groups = [(*_group(group.fingerprint, group.task, group.error or group.error_class), group.number)
              for group in plan.groups[:ROWS]]  # fmt: skip
    output.table(("group", "task", "what", "number"), groups)
    _tell_rest(len(plan.groups))
    output.say(f"queues: {', '.join(f'{clean(name)} {number}' for name, number in plan.queues.items())}")
    for reason, number in plan.skipped.items():
        output.say(f"skipped: {number} × {one_line(reason)}")
    output.say(f"cost: {_cost(plan)}")
    for warning in plan.warnings:
        output.say(f"note: {clean(warning)}")
    for other in plan.running:
        output.say(f"note: redrive {other} still moves one of these groups; only when it is over can another start")


def _group(fingerprint: str | None, task: str, what: str | None) -> tuple[str, str, str]:
    return (fingerprint or "")[:8], task, short(what or "", 60)


def _tell_rest(number: int) -> None:
    if number > ROWS:
        output.say(f"and {number - ROWS} more: --json shows them")


def _cost(plan: Plan) -> str:
    found = plan.estimate
    if found is None:
        return "unknown: no earlier attempt reported what it used"
    money = f", {found.cost:,.2f}" if found.cost is not None else ""
    told = f"{found.reported} of {found.sampled} sampled ones told"
    return f"about {found.tokens:,} tokens{money} for one attempt each; {told}"


# ---- on its way


def _followed(id: str) -> int:
    """Carried on with a bar; when it is stopped here, it goes on elsewhere."""
    try:
        run = ask(lambda rd: _watched(rd, id))
    except KeyboardInterrupt:
        click.echo(f"redrive {id[-8:]} goes on where a worker runs", err=True)
        click.echo(f"  follow it: redrive redrives follow {id[-8:]}", err=True)
        click.echo(f"  stop it: redrive redrives cancel {id[-8:]}", err=True)
        raise click.Abort from None
    if output.as_json():
        output.say_json(run.public())
    else:
        _tell_run(run)
        if not run.over and run.state != "paused":
            output.say(
                "No worker that knows these tasks runs now: `redrive worker APP` runs the jobs and carries it on."
            )
    return 1 if run.failed_again or run.state in ("paused", "cancelled") else 0


async def _watched(rd: Redrive, id: str) -> RedriveRun:
    latest = await rd.redrives.get(id)
    with _bar(latest) as show:
        async for run in rd.redrives.follow(id):
            show(run)
            latest = run
    return latest


@contextmanager
def _bar(run: RedriveRun) -> Iterator[Show]:
    """Two bars on a terminal: what was moved, and what has ended."""
    if output.as_json() or not sys.stderr.isatty():
        yield lambda run: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.fields[said]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        moved = bar.add_task("moved", total=run.total, said="")
        ended = bar.add_task("ended", total=run.total, said="")

        def show(run: RedriveRun) -> None:
            skipped = f"{run.skipped} skipped" if run.skipped else ""
            score = f"{run.succeeded} succeeded, {run.failed_again} failed again"
            bar.update(moved, completed=run.moved + run.skipped, said=f"{run.state} {skipped}")
            bar.update(ended, completed=run.moved - run.open, total=run.total - run.skipped, said=score)

        yield show


# ---- one that exists


@click.group("redrives")
@shared
def redrives() -> None:
    """Bulk redrives: how far they are, and their score."""


@redrives.command("list")
@click.option("--limit", metavar="N", type=int, default=20, show_default=True)
@shared
def list_(limit: int) -> None:
    """List bulk redrives, the latest first."""
    found = ask(lambda rd: rd.redrives.list(limit=limit))
    if output.as_json():
        output.say_json([run.public() for run in found])
    elif found:
        output.table(COLUMNS, map(_row, found))
        output.say(f"Look closer: redrive redrives show {found[0].short_id}")
    else:
        output.say("No bulk redrive so far. `redrive dead redrive --group ID --dry-run` plans one.")


def _row(run: RedriveRun) -> tuple[object, ...]:
    moved = f"{run.moved} of {run.total}"
    numbers = (moved, run.succeeded, run.failed_again, run.skipped, run.open)
    return run.short_id, run.state, ago(run.at), run.who, *numbers, short(run.chosen, 40)


@redrives.command(short_help="One redrive: its score, its story, and what to do next.")
@click.argument("id")
@click.option("--items", is_flag=True, help="What became of each dead letter.")
@click.option("--status", metavar="NAME", type=click.Choice(STATUSES), help="Only the items that are so.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="So many items.")
@shared
def show(id: str, items: bool, status: str | None, limit: int) -> None:
    """One redrive: its score by group, its canary, its story, and what to do next."""
    wanted = limit if items or status else 0
    run, listed = ask(lambda rd: _with_items(rd, id, status, wanted))
    if output.as_json():
        body = run.public()
        if wanted:
            import msgspec

            body["items"] = msgspec.to_builtins(listed)
        output.say_json(body)
        return
    _tell_run(run)
    if listed:
        rows = [(item.id[-8:], item.task, item.status, short(item.why or "", 80)) for item in listed]
        output.table(("id", "task", "became", "why"), rows)
    elif wanted:
        output.say("No items match.")


async def _with_items(rd: Redrive, id: str, status: str | None, wanted: int) -> tuple[RedriveRun, list[ItemView]]:
    run = await rd.redrives.get(id)
    found: list[ItemView] = []
    cursor = None
    while len(found) < wanted:
        page = await rd.redrives.items(run.id, cursor)
        found += [item for item in page.items if status in (None, item.status)]
        cursor = page.cursor
        if cursor is None:
            break
    return run, found[:wanted]


@redrives.command()
@click.argument("id")
@shared
def follow(id: str) -> int:
    """Carry it on and watch it, until it is over or paused. Exit status 1 when some failed again."""
    return _followed(ask(lambda rd: rd.redrives.get(id)).id)


@redrives.command()
@click.argument("id")
@why
@shared
def pause(id: str, why: str | None) -> None:
    """Move nothing more until it is resumed; what was moved goes on."""
    _tell_steered(ask(lambda rd: rd.redrives.pause(id, who=who(), why=why)), "redrive redrives resume {id}")


@redrives.command(short_help="Go on where it stopped.")
@click.argument("id")
@click.option("--canary", metavar="N", type=click.IntRange(min=0), help="N go first again; 0 for none.")
@why
@shared
def resume(id: str, canary: int | None, why: str | None) -> None:
    """Go on where it stopped; after a canary that failed, with another one."""
    _tell_steered(
        ask(lambda rd: rd.redrives.resume(id, canary=canary, who=who(), why=why)), "redrive redrives follow {id}"
    )


@redrives.command()
@click.argument("id")
@why
@shared
def cancel(id: str, why: str | None) -> None:
    """End it: what was moved stays moved, the rest stays dead."""
    _tell_steered(ask(lambda rd: rd.redrives.cancel(id, who=who(), why=why)), "redrive redrives show {id}")


def _tell_steered(run: RedriveRun, following: str) -> None:
    if output.as_json():
        output.say_json(run.public())
        return
    output.say(f"redrive {run.short_id} is {one_line(run.text)}")
    output.say(f"  next: {following.format(id=run.short_id)}")


# ---- its score


def _tell_run(run: RedriveRun) -> None:
    for line in (*_head(run), *_skips(run)):
        output.say(line)
    rows = [_scores(group) for group in run.by_group[:ROWS]]
    output.table(SCORES, rows)
    _tell_rest(len(run.by_group))
    for line in (*_story(run), *_next(run)):
        output.say(line)


def _head(run: RedriveRun) -> Iterator[str]:
    because = f": {run.why}" if run.why else ""
    facts = {
        "state": run.state + (f" ({run.reason})" if run.reason else ""),
        "what": run.chosen,
        "by": f"{run.who}, {ago(run.at)}{because}",
        "rate": f"at most {run.rate:g} a second" if run.rate is not None else None,
        "canary": run.canary.text if run.canary is not None else None,
        "moved": f"{run.moved} of {run.total}, {run.skipped} skipped, {run.left} left",
        "became": _became(run),
    }
    yield f"redrive {run.id}"
    for name, value in facts.items():
        if value:
            yield f"  {name:<9} {one_line(value)}"


def _became(run: RedriveRun) -> str:
    parts = (("succeeded", run.succeeded), ("failed again", run.failed_again), ("discarded", run.discarded))
    told = [f"{number} {name}" for name, number in parts if number or name != "discarded"]
    return ", ".join([*told, f"{run.open} open"])


def _skips(run: RedriveRun) -> Iterator[str]:
    for reason, number in run.skipped_because.items():
        yield f"  skipped   {number} × {one_line(reason)}"


def _scores(group: Any) -> Sequence[object]:
    numbers = (group.number, group.moved, group.succeeded, group.failed_again, group.skipped, group.open)
    return (*_group(group.fingerprint, group.task, group.error or group.error_class), *numbers)


def _story(run: RedriveRun) -> Iterator[str]:
    from redrive.core.job import iso

    yield "story"
    for said in run.story:
        reason = f": {one_line(said.why)}" if said.why else ""
        yield f"  {iso(said.at)} {clean(said.what)} by {clean(said.who)}{reason}"


def _next(run: RedriveRun) -> Iterator[str]:
    id = run.short_id
    ways = {
        "paused": (f"Go on: redrive redrives resume {id}", f"End it: redrive redrives cancel {id}"),
        "canary": (f"Follow it: redrive redrives follow {id}", f"Stop it: redrive redrives pause {id}"),
        "moving": (f"Follow it: redrive redrives follow {id}", f"Stop it: redrive redrives pause {id}"),
        "settling": (f"{run.open} wait for a worker or still run: redrive redrives follow {id}",),
    }.get(run.state, ())
    failed = (f"What failed again: redrive redrives show {id} --status failed_again",) if run.failed_again else ()
    if ways or failed:
        yield "what next"
    for line in (*ways, *failed):
        yield f"  {line}"
