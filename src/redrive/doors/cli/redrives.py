"""Commands on bulk redrives: plan and start one, follow, pause, resume or cancel it, and show its score."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from redrive.api.redrive import Redrive
from redrive.deadletters.bulk_run import ItemView, Plan, RedriveRun
from redrive.deadletters.input_edits import PatchPreview
from redrive.doors.cli import arguments, output
from redrive.doors.cli.invocation import acting_user, command, command_group, confirm_undoable, use_app
from redrive.doors.cli.jobs import print_moved
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import ago, clean, one_line, plural, shorten

COLUMNS: Final = ("id", "state", "started", "who", "moved", "succeeded", "failed again", "skipped", "open", "what")
SCORES: Final = ("group", "task", "what", "number", "moved", "succeeded", "failed again", "skipped", "open")
STATUSES: Final = ("pending", "skipped", "moved", "succeeded", "failed_again", "discarded")
ROWS: Final = 20
"""How many groups are shown; --json has all of them."""
LOOK_FIRST: Final = "repeat it with --yes if that is meant, or look first with --dry-run"
Show = Callable[["RedriveRun"], None]
COUNT: Final = click.IntRange(min=0)
F = TypeVar("F", bound=Callable[..., Any])


def bulk_options(command: F) -> F:
    """Add the options of a bulk redrive: canary, rate, and whether to ask."""
    for option in (
        arguments.yes_option,
        click.option("--detach", is_flag=True, help="Start it and leave the rest to the workers."),
        click.option("--rate", metavar="N", type=float, help="At most N a second."),
        click.option("--pass-rate", metavar="SHARE", type=float, help="The share of a canary that must succeed: 0.8."),
        click.option("--canary", metavar="N", type=COUNT, default=0, help="N go first and must succeed."),
    ):
        command = option(command)
    return command


@command("redrive", short_help="Send dead letters back to the queue unchanged.")
@click.argument("ids", nargs=-1)
@arguments.filter_options
@arguments.all_option
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@bulk_options
@arguments.why_option
def redrive_(ids: tuple[str, ...], filters: dict[str, Any], all_: bool, why: str | None, **how: Any) -> int:
    """Send dead letters back to the queue: same id, key and history; fresh attempts if they were used up.

    One ID goes at once. Several, or those that the options choose, are planned, asked about, and moved as one redrive
    that goes on if this command is stopped. Exit status 1 when some failed again or it did not get to its end.
    """
    if len(ids) == 1 and not filters and not all_ and not any(how.values()):
        job = use_app(lambda rd: rd.dead.redrive(ids[0], who=acting_user(), why=why))
        print_moved(job, "redriven", "redrive status {id}")
        return 0
    _check_scope("redrive", ids, filters, all_=all_)
    scope = {"ids": ids, "all": all_, **use_app(lambda rd: arguments.resolve_filters(rd, filters))}
    plan = use_app(lambda rd: rd.redrives.plan(**scope))
    action = f"redrive {plural(plan.moving, 'dead letter')}" if plan.number else None

    async def start(rd: Redrive, **options: Any) -> RedriveRun:
        return await rd.redrives.start(**scope, token=plan.token, who=acting_user(), why=why, **options)

    return _start_run(plan, _plan_lines(plan), action, start, **how)


def edit_many(
    ids: tuple[str, ...], filters: Mapping[str, Any], patch: str, why: str | None, *, all_: bool, **how: Any
) -> int:
    """Preview the same patch for many, ask, then start one run that goes on if this command is stopped."""
    _check_scope("edit", ids, filters, all_=all_)
    where = use_app(lambda rd: arguments.resolve_filters(rd, filters))
    scope: dict[str, Any] = {"ids": ids, "all": all_, "where": where}

    async def preview_edit(rd: Redrive) -> PatchPreview:
        return await rd.dead.preview_edit_many(arguments.read_payload(patch, rd), **scope)

    preview = use_app(preview_edit)
    number = preview.changing if preview.looked_at is None else preview.number
    action = f"edit and redrive {plural(number, 'dead letter')}" if preview.changing else None

    async def start(rd: Redrive, **options: Any) -> RedriveRun:
        given = arguments.read_payload(patch, rd)
        return await rd.dead.edit_many(given, **scope, token=preview.token, who=acting_user(), why=why, **options)

    status = _start_run(preview, _patch_lines(preview), action, start, **how)
    return status if preview.changing else 1


def _check_scope(verb: str, ids: tuple[str, ...], filters: Mapping[str, Any], *, all_: bool) -> None:
    if not ids and not filters and not all_:
        hint = "`redrive dead groups` lists the error groups"
        raise Refusal(f"say what to {verb}: ids, --group, --queue, … or --all", hint)


def _start_run(
    preview: Plan | PatchPreview,
    lines: output.Lines,
    action: str | None,
    start: Callable[..., Coroutine[Any, Any, RedriveRun]],
    *,
    dry_run: bool,
    yes: bool,
    detach: bool,
    **options: Any,
) -> int:
    """Print what a run would do, ask, and start it. Without an action, or with --dry-run, nothing more is done."""
    if dry_run or action is None:
        output.print_answer(preview, lines)
        return 0
    if not output.wants_json():
        output.print_lines(lines)
    confirm_undoable(action, yes=yes, hint=LOOK_FIRST)
    given = {name: value for name, value in options.items() if value is not None}
    run = use_app(lambda rd: start(rd, **given))
    if not detach:
        return _follow(run.id)
    follow = f"  follow it: redrive redrives follow {run.short_id}"
    output.print_answer(run, (f"redrive {run.short_id} is started; the workers carry it on", follow))
    return 0


def _patch_lines(preview: PatchPreview) -> Iterator[str]:
    yield f"{clean(preview.text)} ({clean(preview.chosen)}): {clean(', '.join(preview.fields))}"
    for error in preview.errors:
        yield f"  refused: {error.number} × {clean(error.field)} {one_line(error.problem)}"
    for reason, number in preview.refused.items():
        yield f"  refused: {number} × {one_line(reason)}"
    for sample in preview.samples:
        yield f"{sample.job_id[-8:]} ({clean(sample.task)})"
        for line in (*sample.difference, *(f"no longer counts: {void}" for void in sample.voided)):
            yield f"  {clean(line)}"
    yield from _other_runs(preview.running)


def _other_runs(ids: Sequence[str]) -> Iterator[str]:
    for id in ids:
        yield f"note: redrive {id} still moves one of these groups; another can start only when it is over"


def _plan_lines(plan: Plan) -> output.Lines:
    if not plan.number:
        yield f"No dead letters match ({clean(plan.chosen)}): there is nothing to redrive."
        return
    rest = f", {plan.number - plan.moving} would be skipped" if plan.skipped else ""
    yield f"{plural(plan.number, 'dead letter')} ({clean(plan.chosen)}): {plan.moving} would move{rest}"
    groups = [(*_group_cells(group), group.number) for group in plan.groups[:ROWS]]
    yield output.Table(("group", "task", "what", "number"), groups)
    yield from _describe_rest(len(plan.groups))
    yield f"queues: {', '.join(f'{clean(name)} {number}' for name, number in plan.queues.items())}"
    for reason, number in plan.skipped.items():
        yield f"skipped: {number} × {one_line(reason)}"
    yield f"cost: {_describe_cost(plan)}"
    for warning in plan.warnings:
        yield f"note: {clean(warning)}"
    yield from _other_runs(plan.running)


def _group_cells(group: Any) -> tuple[str, str, str]:
    return (group.fingerprint or "")[:8], group.task, shorten(group.error or group.error_class or "", 60)


def _describe_rest(number: int) -> Iterator[str]:
    if number > ROWS:
        yield f"and {number - ROWS} more: --json shows them"


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
        short = id[-8:]
        for line in (f"redrive {short} goes on where a worker runs", f"  follow it: redrive redrives follow {short}"):
            click.echo(line, err=True)
        click.echo(f"  stop it: redrive redrives cancel {short}", err=True)
        raise click.Abort from None
    output.print_answer(run, _followed_lines(run))
    return 1 if run.failed_again or run.state in ("paused", "cancelled") else 0


def _followed_lines(run: RedriveRun) -> output.Lines:
    yield from _run_lines(run)
    if not run.over and run.state != "paused":
        yield "No worker that knows these tasks runs now: `redrive worker APP` runs the jobs and carries it on."


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


@command_group("redrives")
def redrives() -> None:
    """Look after bulk redrives: how far they are, and their score."""


@redrives.command("list")
@click.option("--limit", metavar="N", type=int, default=20, show_default=True)
def list_(limit: int) -> None:
    """List bulk redrives, the latest first."""
    runs = use_app(lambda rd: rd.redrives.list(limit=limit))
    empty = "No bulk redrive so far. `redrive dead redrive --group ID --dry-run` plans one."
    more = "".join(f"Look closer: redrive redrives show {run.short_id}" for run in runs[:1])
    output.print_list(runs, COLUMNS, _row, empty=empty, more=more)


def _row(run: RedriveRun) -> tuple[object, ...]:
    moved = f"{run.moved} of {run.total}"
    return run.short_id, run.state, ago(run.at), run.who, moved, *_results(run), shorten(run.chosen, 40)


def _results(counts: Any) -> tuple[int, ...]:
    return counts.succeeded, counts.failed_again, counts.skipped, counts.open


@redrives.command(short_help="Show a redrive: its score, its timeline, and what to do next.")
@click.argument("id")
@click.option("--items", is_flag=True, help="Also list what became of each dead letter.")
@click.option("--status", metavar="NAME", type=click.Choice(STATUSES), help="Only items with this status.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="How many items."
)
def show(id: str, items: bool, status: str | None, limit: int) -> None:
    """Show a redrive: its score by group, its canary, its timeline, and what to do next."""
    wanted = limit if items or status else 0
    run, listed = use_app(lambda rd: _read_items(rd, id, status, wanted))
    body = run.public() | ({"items": listed} if wanted else {})
    output.print_answer(body, (*_run_lines(run), *(_item_lines(listed) if wanted else ())))


def _item_lines(items: list[ItemView]) -> output.Lines:
    rows = [(item.id[-8:], item.task, item.status, shorten(item.why or "", 80)) for item in items]
    yield output.Table(("id", "task", "became", "why"), rows) if rows else "No items match."


async def _read_items(rd: Redrive, id: str, status: Any, wanted: int) -> tuple[RedriveRun, list[ItemView]]:
    run = await rd.redrives.get(id)
    items: list[ItemView] = []
    cursor, more = None, wanted > 0
    while more:
        page = await rd.redrives.items(run.id, cursor, statuses=[status] if status else ())
        items += page.items
        cursor = page.cursor
        more = cursor is not None and len(items) < wanted
    return run, items[:wanted]


@redrives.command()
@click.argument("id")
def follow(id: str) -> int:
    """Advance a redrive and watch it until it is over or paused. Exit status 1 when some failed again."""
    return _follow(use_app(lambda rd: rd.redrives.get(id)).id)


@redrives.command(short_help="Pause a redrive until it is resumed.")
@click.argument("id")
@arguments.why_option
def pause(id: str, why: str | None) -> None:
    """Pause a redrive: nothing more is moved until it is resumed; what was moved goes on."""
    _print_steered(use_app(lambda rd: rd.redrives.pause(id, who=acting_user(), why=why)), "resume")


@redrives.command(short_help="Resume a redrive where it stopped.")
@click.argument("id")
@click.option("--canary", metavar="N", type=COUNT, help="N go first again; 0 for none.")
@arguments.why_option
def resume(id: str, canary: int | None, why: str | None) -> None:
    """Resume a redrive where it stopped; after a canary that failed, with another one."""
    _print_steered(use_app(lambda rd: rd.redrives.resume(id, canary=canary, who=acting_user(), why=why)), "follow")


@redrives.command(short_help="Cancel a redrive; what was moved stays moved.")
@click.argument("id")
@arguments.why_option
def cancel(id: str, why: str | None) -> None:
    """Cancel a redrive: what was moved stays moved, the rest stays dead."""
    _print_steered(use_app(lambda rd: rd.redrives.cancel(id, who=acting_user(), why=why)), "show")


def _print_steered(run: RedriveRun, next_command: str) -> None:
    next_step = f"  next: redrive redrives {next_command} {run.short_id}"
    output.print_answer(run, (f"redrive {run.short_id} is {one_line(run.text)}", next_step))


# ---- its score


def _run_lines(run: RedriveRun) -> output.Lines:
    yield from _head(run)
    for reason, number in run.skipped_because.items():
        yield f"  skipped   {number} × {one_line(reason)}"
    groups = run.by_group[:ROWS]
    yield output.Table(
        SCORES, [(*_group_cells(group), group.number, group.moved, *_results(group)) for group in groups]
    )
    yield from _describe_rest(len(run.by_group))
    yield "timeline"
    yield from output.timeline_lines(run.story)
    yield from _next_steps(run)


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


def _next_steps(run: RedriveRun) -> Iterator[str]:
    id = run.short_id
    moving = (f"Follow it: redrive redrives follow {id}", f"Stop it: redrive redrives pause {id}")
    ways = {
        "paused": (f"Go on: redrive redrives resume {id}", f"End it: redrive redrives cancel {id}"),
        "canary": moving,
        "moving": moving,
        "settling": (f"{run.open} wait for a worker or still run: redrive redrives follow {id}",),
    }.get(run.state, ())
    failed = (f"What failed again: redrive redrives show {id} --status failed_again",) if run.failed_again else ()
    if ways or failed:
        yield "what next"
    for line in (*ways, *failed):
        yield f"  {line}"
