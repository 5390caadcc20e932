"""Workflows: how they stand, and why one does not go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.text import ago, clean, one_line, short

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.core.workflow import StepStatus, WorkflowStatus


@click.command(short_help="List workflows; with an ID, its steps.")
@click.argument("id", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many to list.")
@shared
def workflows(id: str | None, limit: int) -> None:
    """List workflows, the newest first; with the ID of one (or of a job in it), its steps and what they wait for."""
    if id is not None:
        _show(ask(lambda rd: _status(rd, id)))
        return
    found = ask(lambda rd: rd.workflows.list(limit=limit))
    if output.as_json():
        from redrive.core.view import view

        output.say_json(view(found, secrets=True))
    elif found:
        output.table(("id", "workflow", "state", "done", "failed", "blocked", "started"), map(_row, found))
    else:
        output.say("No workflow was ever started here.")


async def _status(rd: Redrive, id: str) -> WorkflowStatus:
    return await (await rd.workflows.get(id)).status()


def _row(status: WorkflowStatus) -> tuple[object, ...]:
    done = f"{status.count('DONE', 'FORGOTTEN')}/{len(status.steps)}"
    failed, blocked = (", ".join(step.name for step in steps) for steps in (status.failed, status.blocked))
    return status.id[-8:], status.name, status.state, done, short(failed), short(blocked), ago(status.created_at)


def _show(status: WorkflowStatus) -> None:
    if output.as_json():
        from redrive.core.view import view

        output.say_json(view(status, secrets=True))
        return
    output.say(clean(one_line(status.text)))
    output.table(("step", "state", "job", "task", "attempts", "waits for", "error"), map(_step, status.steps))


def _step(step: StepStatus) -> tuple[object, ...]:
    trouble = short(step.error) if step.error is not None else ""
    return step.name, step.state, step.job_id[-8:], step.task, step.attempts, short(", ".join(step.waits_for)), trouble
