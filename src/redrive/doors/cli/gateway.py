"""Operations from the command line: call a task and hear honestly how it stands, submit, retry, and what waits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from redrive.core.checks import check_known
from redrive.doors.cli import output, payload
from redrive.doors.cli.asking import ask, connect, perform, shared, who
from redrive.doors.cli.text import clean, counted
from redrive.doors.cli.worker import load

if TYPE_CHECKING:
    from redrive.core.outcome import Outcome

_KEY = click.option("--key", metavar="TEXT", help="Idempotency key: the same again gives the operation that exists.")
_SESSION = click.option("--session", metavar="ID", help="Who asks: consent, costs and notices belong to it.")
_TIMEOUT = click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(min=0), help="Wait so long; then the answer is its id."
)


@click.command()
@click.argument("app")
@click.argument("task")
@click.argument("payload_said", metavar="[JSON | @FILE | -]", default="{}")
@_TIMEOUT
@_KEY
@_SESSION
@shared
def call(app: str, task: str, payload_said: str, timeout: float | None, key: str | None, session: str | None) -> None:
    """Run a task of APP now and here. Exit status 0 only when it is done: queued for a retry is not done.

    APP is a `module:attribute` that names a Redrive, e.g. tasks:rd.
    """
    rd = load(app)
    check_known("task", task, rd.registry.handlers, app)
    body = payload.read(payload_said, rd.settings.payload_limit)
    given = _given(key, session)
    _tell(perform(rd, lambda rd: rd.call(task, body, timeout=timeout, **given)))


@click.command()
@click.argument("task")
@click.argument("payload_said", metavar="[JSON | @FILE | -]", default="{}")
@_KEY
@_SESSION
@shared
def submit(task: str, payload_said: str, key: str | None, session: str | None) -> None:
    """Have a worker do it later, in one attempt. The answer is an operation to ask about."""
    rd = connect(creates=True)
    body = payload.read(payload_said, rd.settings.payload_limit)
    outcome = perform(rd, lambda rd: rd.submit(task, body, **_given(key, session)))
    _say(outcome)


@click.command(short_help="Try an operation once more, by its id alone.")
@click.argument("app")
@click.argument("id")
@_TIMEOUT
@shared
def retry(app: str, id: str, timeout: float | None) -> None:
    """An operation once more, by its id alone: with what was given the first time. What is done stays done.

    APP is a `module:attribute` that names a Redrive, e.g. tasks:rd.
    """
    _tell(perform(load(app), lambda rd: rd.retry(id, timeout=timeout, who=who())))


@click.command(short_help="List operations that wait for a retry or their turn.")
@shared
def operations() -> None:
    """Operations that wait for a retry or their turn, and when the next is due."""
    found = ask(lambda rd: rd.operations())
    if output.as_json():
        output.say_json(found)
        return
    if not found["queued"]:
        output.say("No operation waits.")
        return
    output.say(f"{counted(found['queued'], 'operation')} waiting, the next at {found['next_retry_at']}")
    rows = [(one["operation_id"][-8:], clean(one["task"]), one["status"], one["retry_at"]) for one in found["recent"]]
    output.table(("id", "task", "status", "due"), rows)


def _given(key: str | None, session: str | None) -> dict[str, Any]:
    said = {"idempotency_key": key, "session_id": session}
    return {name: value for name, value in said.items() if value is not None}


def _tell(outcome: Outcome) -> None:
    """The answer, and an exit status that tells the truth."""
    _say(outcome)
    if not outcome:
        sys.exit(1)


def _say(outcome: Outcome) -> None:
    import json

    if output.as_json():
        output.say_json(outcome.public())
        return
    if outcome:
        output.say(output.harmless(json.dumps(outcome.result, ensure_ascii=False)), verbatim=True)
        return
    output.say(f"{outcome.status}: {clean(outcome.message)}")
    if outcome.error:
        output.say(f"  error: {clean(outcome.error)}")
    if outcome.operation_id:
        output.say(f"  follow it: redrive status {outcome.operation_id[-8:]}")
