"""Commands on bulk redrives: plan and start one, follow, pause, resume or cancel it, and show its score."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.doors.cli import output
from redrive.doors.cli.arguments import filter_options, read_payload, resolve_filters
from redrive.doors.cli.invocation import (
    acting_user,
    all_option,
    confirm_undoable,
    shared_options,
    use_app,
    why_option,
    yes_option,
)
from redrive.doors.cli.jobs import print_moved
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import ago, clean, one_line, plural, shorten

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.deadletters.bulk_run import ItemView, Plan, RedriveRun
    from redrive.deadletters.input_edits import PatchPreview

COLUMNS: Final = ("id", "state", "started", "who", "moved", "succeeded", "failed again", "skipped", "open", "what")
SCORES: Final = ("group", "task", "what", "number", "moved", "succeeded", "failed again", "skipped", "open")
STATUSES: Final = ("pending", "skipped", "moved", "succeeded", "failed_again", "discarded")
ROWS: Final = 20
"""How many groups are shown; --json has all of them."""
LOOK_FIRST: Final = "repeat it with --yes if that is meant, or look first with --dry-run"
Show = Callable[["RedriveRun"], None]
F = TypeVar("F", bound=Callable[..., Any])


def bulk_options(command: F) -> F:
    """Add the options of a bulk redrive: canary, rate, and whether to ask."""
    for option in (
        yes_option,
        click.option("--detach", is_flag=True, help="Start it and leave the rest to the workers."),
        click.option("--rate", metavar="N", type=float, default=None, help="At most N a second."),
        click.option(
            "--pass-rate",
            metavar="SHARE",
            type=float,
            default=None,
            help="The share of a canary that must succeed: 0.8.",
        ),
        click.option(
            "--canary", metavar="N", type=click.IntRange(min=0), default=0, help="N go first and must succeed."
        ),
    ):
        command = option(command)
    return command


@click.command("redrive", short_help="Send dead letters back to the queue unchanged.")
@click.argument("ids", nargs=-1)
@filter_options
@all_option
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@bulk_options
@why_option
@shared_options
def redrive_(ids: tuple[str, ...], filters: dict[str, Any], all_: bool, why: str | None, **how: Any) -> int:
    """Send dead letters back to the queue: same id, key and history; fresh attempts if they were used up.

    One ID goes at once. Several, or those that the options choose, are planned, asked about, and moved as one redrive
    that goes on if this command is stopped. Exit status 1 when some failed again or it did not get to its end.
    """
    if len(ids) == 1 and not filters and not all_ and not any(how.values()):
        print_moved(
            use_app(lambda rd: rd.dead.redrive(ids[0], who=acting_user(), why=why)), "redriven", "redrive status {id}"
        )
        return 0
    if not ids and not filters and not all_:
        raise Refusal(
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
    chosen = use_app(lambda rd: resolve_filters(rd, filters))
    plan = use_app(lambda rd: rd.redrives.plan(**scope, **chosen))
    if not output.wants_json():
        _print_plan(plan)
    elif dry_run or not plan.number:
        output.print_json(plan.public())
    if dry_run or not plan.number:
        return 0
    confirm_undoable(f"redrive {plural(plan.moving, 'dead letter')}", yes=yes, hint=LOOK_FIRST)
    options = {name: value for name, value in how.items() if value is not None}
    request = {**scope, **chosen, **options, "canary": canary, "token": plan.token, "who": acting_user(), "why": why}
    run = use_app(lambda rd: rd.redrives.start(**request))
    return _print_started(run) if detach else _follow(run.id)


def _print_started(run: RedriveRun) -> int:
    id = run.short_id
    lines = (f"redrive {id} is started; the workers carry it on", f"  follow it: redrive redrives follow {id}")
    output.print_answer(run, lines)
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
    """Preview the same patch for many, ask, then start one run that goes on if this command is stopped."""
    if not ids and not filters and not all_:
        raise Refusal("say what to edit: ids, --group, --queue, … or --all", "`redrive dead groups` shows the groups")
    chosen = use_app(lambda rd: resolve_filters(rd, filters))
    scope: dict[str, Any] = {"ids": ids, "all": all_, "where": chosen}
    given = use_app(lambda rd: _patch(rd, patch))
    preview = use_app(lambda rd: rd.dead.preview_edit_many(given, **scope))
    if not output.wants_json():
        _print_patch(preview)
    elif dry_run or not preview.changing:
        output.print_json(preview.public())
    if dry_run or not preview.changing:
        return 0 if preview.changing else 1
    number = preview.changing if preview.looked_at is None else preview.number
    confirm_undoable(f"edit and redrive {plural(number, 'dead letter')}", yes=yes, hint=LOOK_FIRST)
    options = {name: value for name, value in how.items() if value is not None}
    request = {**scope, **options, "token": preview.token, "who": acting_user(), "why": why}
    run = use_app(lambda rd: rd.dead.edit_many(given, **request))
    return _print_started(run) if detach else _follow(run.id)


async def _patch(rd: Redrive, text: str) -> dict[str, Any]:
    return read_payload(text, rd.settings.payload_limit)


def _print_patch(preview: PatchPreview) -> None:
    output.print_line(f"{clean(preview.text)} ({clean(preview.chosen)}): {clean(', '.join(preview.fields))}")
    for error in preview.errors:
        output.print_line(f"  refused: {error.number} × {clean(error.field)} {one_line(error.problem)}")
    for reason, number in preview.refused.items():
        output.print_line(f"  refused: {number} × {one_line(reason)}")
    for sample in preview.samples:
        output.print_line(f"{sample.job_id[-8:]} ({clean(sample.task)})")
        for line in (*sample.difference, *(f"no longer counts: {void}" for void in sample.voided)):
            output.print_line(f"  {clean(line)}")
    for other in preview.running:
        output.print_line(
            f"note: redrive {other} still moves one of these groups; only when it is over can another start"
        )


# ---- the plan


def _print_plan(plan: Plan) -> None:
    if not plan.number:
        output.print_line(f"No dead letters match ({clean(plan.chosen)}): there is nothing to redrive.")
        return
    rest = f", {plan.number - plan.moving} would be skipped" if plan.skipped else ""
    output.print_line(f"{plural(plan.number, 'dead letter')} ({clean(plan.chosen)}): {plan.moving} would move{rest}")
    groups = [(*_group_cells(group), group.number) for group in plan.groups[:ROWS]]
    output.print_table(("group", "task", "what", "number"), groups)
    _print_rest(len(plan.groups))
    output.print_line(f"queues: {', '.join(f'{clean(name)} {number}' for name, number in plan.queues.items())}")
    for reason, number in plan.skipped.items():
        output.print_line(f"skipped: {number} × {one_line(reason)}")
    output.print_line(f"cost: {_describe_cost(plan)}")
    for warning in plan.warnings:
        output.print_line(f"note: {clean(warning)}")
    for other in plan.running:
        output.print_line(
            f"note: redrive {other} still moves one of these groups; only when it is over can another start"
        )


def _group_cells(group: Any) -> tuple[str, str, str]:
    return (group.fingerprint or "")[:8], group.task, shorten(group.error or group.error_class or "", 60)


def _print_rest(number: int) -> None:
    if number > ROWS:
        output.print_line(f"and {number - ROWS} more: --json shows them")


def _describe_cost(plan: Plan) -> str:
    estimate = plan.estimate
    if estimate is None:
        return "unknown: no earlier attempt reported what it used"
    money = f", {estimate.cost:,.2f}" if estimate.cost is not None else ""
    basis = f"{estimate.reported} of {estimate.sampled} sampled ones reported it"
    return f"about {estimate.tokens:,} tokens{money} for one attempt each; {basis}"


# ---- on its way


def _follow(id: str) -> int:
    """Advance a redrive and show its progress; a worker continues it if this command is stopped."""
    try:
        run = use_app(lambda rd: _watch(rd, id))
    except KeyboardInterrupt:
        click.echo(f"redrive {id[-8:]} goes on where a worker runs", err=True)
        click.echo(f"  follow it: redrive redrives follow {id[-8:]}", err=True)
        click.echo(f"  stop it: redrive redrives cancel {id[-8:]}", err=True)
        raise click.Abort from None
    if output.wants_json():
        output.print_json(run.public())
    else:
        _print_run(run)
        if not run.over and run.state != "paused":
            output.print_line(
                "No worker that knows these tasks runs now: `redrive worker APP` runs the jobs and carries it on."
            )
    return 1 if run.failed_again or run.state in ("paused", "cancelled") else 0


async def _watch(rd: Redrive, id: str) -> RedriveRun:
    latest = await rd.redrives.get(id)
    with _show_progress(latest) as show:
        async for run in rd.redrives.follow(id):
            show(run)
            latest = run
    return latest


@contextmanager
def _show_progress(run: RedriveRun) -> Iterator[Show]:
    """Show two bars on a terminal: what was moved, and what has ended."""
    if output.wants_json() or not sys.stderr.isatty():
        yield lambda run: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.fields[text]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        moved = bar.add_task("moved", total=run.total, text="")
        ended = bar.add_task("ended", total=run.total, text="")

        def show(run: RedriveRun) -> None:
            skipped = f"{run.skipped} skipped" if run.skipped else ""
            score = f"{run.succeeded} succeeded, {run.failed_again} failed again"
            bar.update(moved, completed=run.moved + run.skipped, text=f"{run.state} {skipped}")
            bar.update(ended, completed=run.moved - run.open, total=run.total - run.skipped, text=score)

        yield show


# ---- one that exists


@click.group("redrives")
@shared_options
def redrives() -> None:
    """Look after bulk redrives: how far they are, and their score."""


@redrives.command("list")
@click.option("--limit", metavar="N", type=int, default=20, show_default=True)
@shared_options
def list_(limit: int) -> None:
    """List bulk redrives, the latest first."""
    runs = use_app(lambda rd: rd.redrives.list(limit=limit))
    empty = "No bulk redrive so far. `redrive dead redrive --group ID --dry-run` plans one."
    more = "".join(f"Look closer: redrive redrives show {run.short_id}" for run in runs[:1])
    output.print_list(runs, COLUMNS, _row, empty=empty, more=more)


def _row(run: RedriveRun) -> tuple[object, ...]:
    moved = f"{run.moved} of {run.total}"
    numbers = (moved, run.succeeded, run.failed_again, run.skipped, run.open)
    return run.short_id, run.state, ago(run.at), run.who, *numbers, shorten(run.chosen, 40)


@redrives.command(short_help="Show a redrive: its score, its timeline, and what to do next.")
@click.argument("id")
@click.option("--items", is_flag=True, help="Also list what became of each dead letter.")
@click.option("--status", metavar="NAME", type=click.Choice(STATUSES), help="Only items with this status.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="How many items."
)
@shared_options
def show(id: str, items: bool, status: str | None, limit: int) -> None:
    """Show a redrive: its score by group, its canary, its timeline, and what to do next."""
    wanted = limit if items or status else 0
    run, items_listed = use_app(lambda rd: _with_items(rd, id, status, wanted))
    if output.wants_json():
        output.print_json(run.public() | ({"items": items_listed} if wanted else {}))
        return
    _print_run(run)
    if items_listed:
        rows = [(item.id[-8:], item.task, item.status, shorten(item.why or "", 80)) for item in items_listed]
        output.print_table(("id", "task", "became", "why"), rows)
    elif wanted:
        output.print_line("No items match.")


async def _with_items(rd: Redrive, id: str, status: str | None, wanted: int) -> tuple[RedriveRun, list[ItemView]]:
    run = await rd.redrives.get(id)
    items: list[ItemView] = []
    cursor = None
    while len(items) < wanted:
        page = await rd.redrives.items(run.id, cursor)
        items += [item for item in page.items if status in (None, item.status)]
        cursor = page.cursor
        if cursor is None:
            break
    return run, items[:wanted]


@redrives.command()
@click.argument("id")
@shared_options
def follow(id: str) -> int:
    """Advance a redrive and watch it until it is over or paused. Exit status 1 when some failed again."""
    return _follow(use_app(lambda rd: rd.redrives.get(id)).id)


@redrives.command(short_help="Pause a redrive until it is resumed.")
@click.argument("id")
@why_option
@shared_options
def pause(id: str, why: str | None) -> None:
    """Pause a redrive: nothing more is moved until it is resumed; what was moved goes on."""
    _print_steered(
        use_app(lambda rd: rd.redrives.pause(id, who=acting_user(), why=why)), "redrive redrives resume {id}"
    )


@redrives.command(short_help="Resume a redrive where it stopped.")
@click.argument("id")
@click.option("--canary", metavar="N", type=click.IntRange(min=0), help="N go first again; 0 for none.")
@why_option
@shared_options
def resume(id: str, canary: int | None, why: str | None) -> None:
    """Resume a redrive where it stopped; after a canary that failed, with another one."""
    _print_steered(
        use_app(lambda rd: rd.redrives.resume(id, canary=canary, who=acting_user(), why=why)),
        "redrive redrives follow {id}",
    )


@redrives.command(short_help="Cancel a redrive; what was moved stays moved.")
@click.argument("id")
@why_option
@shared_options
def cancel(id: str, why: str | None) -> None:
    """Cancel a redrive: what was moved stays moved, the rest stays dead."""
    _print_steered(use_app(lambda rd: rd.redrives.cancel(id, who=acting_user(), why=why)), "redrive redrives show {id}")


def _print_steered(run: RedriveRun, following: str) -> None:
    id = run.short_id
    output.print_answer(run, (f"redrive {id} is {one_line(run.text)}", f"  next: {following.format(id=id)}"))


# ---- its score


def _print_run(run: RedriveRun) -> None:
    for line in (*_head(run), *_skipped_lines(run)):
        output.print_line(line)
    rows = [_score_row(group) for group in run.by_group[:ROWS]]
    output.print_table(SCORES, rows)
    _print_rest(len(run.by_group))
    for line in (*_timeline_lines(run), *_next_steps(run)):
        output.print_line(line)


def _head(run: RedriveRun) -> Iterator[str]:
    because = f": {run.why}" if run.why else ""
    facts = {
        "state": run.state + (f" ({run.reason})" if run.reason else ""),
        "what": run.chosen,
        "by": f"{run.who}, {ago(run.at)}{because}",
        "rate": f"at most {run.rate:g} a second" if run.rate is not None else None,
        "canary": run.canary.text if run.canary is not None else None,
        "moved": f"{run.moved} of {run.total}, {run.skipped} skipped, {run.left} left",
        "became": _describe_results(run),
    }
    yield f"redrive {run.id}"
    yield from output.fact_lines({name: one_line(value) for name, value in facts.items() if value})


def _describe_results(run: RedriveRun) -> str:
    parts = (("succeeded", run.succeeded), ("failed again", run.failed_again), ("discarded", run.discarded))
    results = [f"{number} {name}" for name, number in parts if number or name != "discarded"]
    return ", ".join([*results, f"{run.open} open"])


def _skipped_lines(run: RedriveRun) -> Iterator[str]:
    for reason, number in run.skipped_because.items():
        yield f"  skipped   {number} × {one_line(reason)}"


def _score_row(group: Any) -> Sequence[object]:
    numbers = (group.number, group.moved, group.succeeded, group.failed_again, group.skipped, group.open)
    return (*_group_cells(group), *numbers)


def _timeline_lines(run: RedriveRun) -> Iterator[str]:
    yield "timeline"
    for entry in run.story:
        yield output.timeline_line(entry.at, entry.what, entry.who, entry.why)


def _next_steps(run: RedriveRun) -> Iterator[str]:
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
