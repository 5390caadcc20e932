"""Commands on what starts or stops work by itself: breakers, schedules, cycles of scripts, workflows."""

from __future__ import annotations

from typing import Final

import click

from redrive.api.redrive import Redrive
from redrive.core.view import view
from redrive.core.workflow import StepStatus, WorkflowStatus
from redrive.doors.cli import output
from redrive.doors.cli.invocation import acting_user, command, command_group, use_app
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import ago, clean, one_line, shorten
from redrive.flows.schedules import Scheduled
from redrive.retries.breaker import Breaker
from redrive.scripts.cycle_history import CycleStanding

BREAKERS: Final = ("what", "state", "since", "cause", "next probe", "said")
SCHEDULES: Final = ("schedule", "line", "zone", "last slot", "next slot", "last job", "state", "note")
CYCLES: Final = ("cycle", "last", "begun", "outcome", "jobs", "usual", "next", "runs")
WORKFLOWS: Final = ("id", "workflow", "state", "done", "failed", "blocked", "started")
STEPS: Final = ("step", "state", "job", "task", "attempts", "waits for", "error")


@command()
@click.option("--close", metavar="KEY", help="Close this breaker, because it answers again: its parked jobs run.")
def breakers(close: str | None) -> None:
    """List what is down: hosts, models and others whose jobs are parked until a probe succeeds."""
    if close is not None:
        if not use_app(lambda rd: rd.close_breaker(close)):
            raise Refusal(f"no breaker {close!r} is open", "`redrive breakers` lists those that are")
        output.print_answer({"closed": close}, f"closed {clean(close)}: its jobs come back")
        return
    output.print_list(use_app(lambda rd: rd.breakers()), BREAKERS, _breaker_row, empty="Nothing is down.")


def _breaker_row(breaker: Breaker) -> tuple[object, ...]:
    probe = ago(breaker.until) if breaker.state == "open" else ""
    return clean(breaker.key), breaker.state, ago(breaker.since), breaker.cause, probe, shorten(breaker.error)


@command()
@click.option("--forget", metavar="NAME", help="Drop a schedule that the code no longer has from this list.")
def schedules(forget: str | None) -> None:
    """List the schedules of tasks: last and next slot, last job, and what was left out."""
    if forget is not None:
        if not use_app(lambda rd: rd.forget_schedule(forget)):
            raise Refusal(f"no schedule {forget!r} is known", "`redrive schedules` lists those that are")
        output.print_answer({"forgotten": forget}, f"forgot {clean(forget)}")
        return
    empty = "No worker has seen a schedule yet: @rd.task(schedule=redrive.cron('0 3 * * *')) makes one."
    output.print_list(use_app(lambda rd: rd.schedules()), SCHEDULES, _schedule_row, empty=empty)


def _schedule_row(schedule: Scheduled) -> tuple[object, ...]:
    late = schedule.due_since
    following = f"due {ago(late)}" if late is not None else ago(schedule.next_slot)
    job, note = schedule.job[-8:] if schedule.job else "", shorten(schedule.note) if schedule.note else ""
    slots = (ago(schedule.last_slot), following)
    return schedule.name, schedule.line, schedule.tz, *slots, job, schedule.state or "", note


@command_group(invoke_without_command=True)
@click.pass_context
def cycles(ctx: click.Context) -> None:
    """List the cycles of scripts: the last run, its jobs beside the usual number, and when the next is due.

    Below the list: which of them are missing, died or had fewer jobs than usual.
    """
    if ctx.invoked_subcommand is not None:
        return
    standings = use_app(lambda rd: rd.cycles())
    problems = [f"  {clean(finding.sentence)}" for standing in standings for finding in standing.findings]
    empty = 'No cycle has left a record yet: `with rd.cycle("nightly") as night:` in a script makes one.'
    more = "\n".join(problems)
    output.print_list(standings, CYCLES, _cycle_row, empty=empty, more=more, body=lambda: view(standings, secrets=True))


def _cycle_row(standing: CycleStanding) -> tuple[object, ...]:
    last, next_start = standing.last, ago(standing.due_at) if standing.due_at is not None else ""
    run = (last.cycle_id, ago(last.begun), last.outcome.replace("_", " "), last.jobs)
    return standing.name, *run, standing.usual_jobs, next_start, standing.runs


@cycles.command(short_help="Drop the records of a cycle that is not expected any more.")
@click.argument("name")
def forget(name: str) -> None:
    """Drop the records of a cycle, which is not expected any more. Its jobs stay as they are."""
    acting_user()
    if not use_app(lambda rd: rd.forget_cycle(name)):
        raise Refusal(f"no cycle {name!r} has a record", "`redrive cycles` lists those that have")
    output.print_answer({"forgotten": name}, f"forgot {clean(name)}")


@command()
@click.argument("id", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many to list.")
def workflows(id: str | None, limit: int) -> None:
    """List workflows, the newest first; with the ID of one (or of a job in it), its steps and what they wait for."""
    if id is not None:
        status = use_app(lambda rd: _get_status(rd, id))
        lines = (one_line(status.text), output.Table(STEPS, map(_step_row, status.steps)))
        output.print_answer(lambda: view(status, secrets=True), lines)
        return
    statuses = use_app(lambda rd: rd.workflows.list(limit=limit))
    empty = "No workflow was ever started here."
    output.print_list(statuses, WORKFLOWS, _workflow_row, empty=empty, body=lambda: view(statuses, secrets=True))


async def _get_status(rd: Redrive, id: str) -> WorkflowStatus:
    return await (await rd.workflows.get(id)).status()


def _workflow_row(status: WorkflowStatus) -> tuple[object, ...]:
    done = f"{status.count('DONE', 'FORGOTTEN')}/{len(status.steps)}"
    failed, blocked = (shorten(", ".join(step.name for step in steps)) for steps in (status.failed, status.blocked))
    return status.id[-8:], status.name, status.state, done, failed, blocked, ago(status.created_at)


def _step_row(step: StepStatus) -> tuple[object, ...]:
    waits, error = shorten(", ".join(step.waits_for)), shorten(step.error) if step.error is not None else ""
    return step.name, step.state, step.job_id[-8:], step.task, step.attempts, waits, error
