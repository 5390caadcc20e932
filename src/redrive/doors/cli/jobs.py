"""Commands on single jobs (enqueue, status, cancel, resolve, erase), their list, and calls of tasks as operations."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from redrive.api.redrive import Redrive
from redrive.core.checks import check_known
from redrive.core.job import Job, iso
from redrive.core.outcome import Outcome
from redrive.core.store import Page
from redrive.core.times import read_time
from redrive.doors.cli import arguments, effects, output
from redrive.doors.cli.invocation import acting_user, command, confirm, connect, run_with, use_app
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import ago, clean, due, plural, shorten
from redrive.doors.cli.timeline import print_timeline, read_timeline
from redrive.doors.cli.worker import load_app
from redrive.jobs.tasks import JobHandle


@command()
@click.argument("task")
@arguments.payload_argument
@click.option("--queue", metavar="NAME", help="Instead of the queue named like the task.")
@click.option("--delay", metavar="SECONDS", type=click.FloatRange(min=0), help="Run it so much later.")
@click.option("--run-at", metavar="TIME", help="Run it then, e.g. 2031-05-17T03:00:00Z.")
@click.option("--priority", metavar="NAME", help="critical, high, normal or low.")
@arguments.key_option
@arguments.session_option
@click.option("--agent", metavar="NAME", help="Who does it.")
@click.option("--model", metavar="NAME", help="The model it starts with.")
@click.option("--max-attempts", metavar="N", type=int, help="How often it is tried at most.")
def enqueue(task: str, payload_text: str, run_at: str | None, **given: Any) -> None:
    """Accept a job. When this returns, it is synced to disk.

    The payload is a JSON object on the command line, in a file (@file.json) or from a pipe (-).
    """
    at = None if run_at is None else read_time("run_at", run_at)
    options = _name_options(run_at=at, **given)
    rd = connect(creates=True)
    payload = arguments.read_payload(payload_text, rd)
    handle, waits = run_with(rd, lambda rd: _enqueue(rd, task, payload, options))
    flags = {"duplicate": handle.duplicate, "spooled": handle.spooled, "direct": handle.direct}
    warnings = {"warnings": [waits] if waits else []}
    output.print_answer(lambda: output.job_json(handle.job) | flags | warnings, _accepted_lines(handle, waits))


def _name_options(**given: Any) -> dict[str, Any]:
    """Leave out options that were not given, and name the others as `rd.enqueue` does."""
    names = {"key": "idempotency_key", "session": "session_id"}
    return {names.get(name, name): value for name, value in given.items() if value is not None}


async def _enqueue(
    rd: Redrive, task: str, payload: dict[str, Any], options: dict[str, Any]
) -> tuple[JobHandle[Any], str | None]:
    """Enqueue a job; also return a warning if it is in the store and no worker will run it now."""
    handle = await rd.enqueue(task, payload, **options)
    stored = not handle.spooled and not handle.direct and not handle.job.ended
    return handle, await rd.jobs.waits_for_worker(handle.job) if stored else None


def _accepted_lines(handle: JobHandle[Any], waits: str | None) -> Iterator[str]:
    job = handle.job
    if handle.spooled:
        yield f"job {job.short_id} waits in the spool: the store could not take it; a worker moves it over"
        return
    if handle.direct:
        yield f"{clean(job.task)} was called directly: neither the store nor the spool could take the job"
        return
    if handle.duplicate:
        yield f"job {job.short_id} exists already with this key; it is {job.state}"
    else:
        verb = "due" if waits else "runs"
        yield f"job {job.short_id} accepted: {clean(job.task)}, {verb} {ago(max(job.run_at, time.time()))}"
    if waits:
        yield f"  {clean(waits)}"
    yield f"  follow it: redrive status {job.short_id}"


@command()
@click.argument("id")
@arguments.why_option
def cancel(id: str, why: str | None) -> None:
    """Discard a job that has not ended, and stop it if it runs. It can be restored."""
    job = use_app(lambda rd: rd.jobs.cancel(id, who=acting_user(), why=why))
    print_moved(job, "cancelled", "redrive dead restore {id}")


def print_moved(job: Job, move: str, command: str) -> None:
    """Print what happened to a job, and the command to use next."""
    state = "" if move == job.state else f"; it is {job.state}"
    moved = f"job {job.short_id} ({clean(job.task)}) {move}{state}"
    output.print_answer(lambda: output.job_json(job), (moved, f"  next: {command.format(id=job.short_id)}"))


@command()
@click.argument("id")
@arguments.secrets_option
def status(id: str, secrets: bool) -> None:
    """Show a job's timeline: attempts, causes, decisions, what to do next. `effect:KEY`: an effect without a job."""
    if (key := effects.find_key(id)) is not None:
        effects.print_effect(key, secrets=secrets)
        return
    print_timeline(use_app(lambda rd: read_timeline(rd, id)), secrets=secrets)


@command(short_help="Record the outcome of a job whose outcome is unknown.")
@click.argument("id")
@click.option("--landed/--not-landed", default=None, required=True, help="Whether its effect happened.")
@click.option("--why", metavar="TEXT", help="How you know; kept with the job. A job needs it.")
@click.option("--result", metavar="JSON", help="Of an effect without a job: what later calls return.")
def resolve(id: str, landed: bool | None, why: str | None, result: str | None) -> None:
    """Record the outcome of a job, or of an effect without a job (`effect:KEY`), whose outcome is unknown.

    Landed: the job is done. Not landed: its effect counts as absent and the job runs again. An effect without a job:
    later calls return the result, or the next call performs it.
    """
    if landed is None:  # newer versions of click do not ask for a flag that is required
        raise _missing_option("--landed' or '--not-landed")
    if (key := effects.find_key(id)) is not None:
        effects.resolve_effect(key, landed=landed, result=result, why=why)
        return
    if result is not None:
        raise Refusal("--result is for effects without a job", "name one as effect:KEY; `redrive effects` lists them")
    if why is None:
        raise _missing_option("--why")
    job = use_app(lambda rd: rd.jobs.resolve(id, landed=landed, who=acting_user(), why=why))
    print_moved(job, "resolved" if landed else "runs again", "redrive status {id}")


def _missing_option(option: str) -> click.MissingParameter:
    return click.MissingParameter(ctx=click.get_current_context(), param_hint=f"'{option}'", param_type="option")


@command()
@click.option(
    "--state",
    metavar="NAMES",
    multiple=True,
    help="waiting, running, held, done, dead, discarded, purged; several with commas between.",
)
@arguments.filter_options
@click.option("--text", metavar="TEXT", help="Only jobs whose input or last error has this text.")
@click.option("--limit", metavar="N", type=int, default=50, show_default=True)
@arguments.cursor_option
def jobs(state: tuple[str, ...], filters: dict[str, Any], **given: Any) -> None:
    """List jobs, newest first."""
    states = tuple(name.strip() for names in state for name in names.split(","))
    page = use_app(lambda rd: _list_jobs(rd, states, filters, **given))
    columns = ("id", "state", "task", "queue", "attempts", "changed", "last error")
    empty = 'No jobs here. Accept one with: redrive enqueue TASK \'{"name": "value"}\''
    print_page(page, columns, _row, empty=empty)


async def _list_jobs(
    rd: Redrive, state: tuple[str, ...], filters: dict[str, Any], text: str | None, **given: Any
) -> Page:
    chosen = {"state": state or None, **given, **await arguments.resolve_filters(rd, filters)}
    return (await rd.jobs.search(text, **chosen)).page if text is not None else await rd.jobs.list(**chosen)


def _row(job: Job) -> tuple[object, ...]:
    waits = job.state == "waiting" and job.run_at > job.updated_at
    changed = due(job.run_at) if waits else ago(job.updated_at)
    return job.short_id, job.state, job.task, job.queue, format_attempts(job), changed, shorten(job.error or "")


def format_attempts(job: Job) -> str:
    return str(job.attempts) if job.allowed is None else f"{job.attempts}/{job.allowed}"


def print_page(
    page: Page, columns: Sequence[str], row: Callable[[Job], Sequence[object]], *, empty: str, more: str = ""
) -> None:
    """Print a page of jobs, and the cursor of the next page if there may be one."""
    following = f"There may be more: repeat it with --cursor {page.cursor}" if page.cursor is not None else ""
    after = "\n".join(filter(None, (following, more)))
    facts = {"cursor": page.cursor, "as_of": iso(page.as_of)}

    def body() -> dict[str, Any]:
        return {"jobs": [output.job_json(job) for job in page.jobs], **facts}

    output.print_list(page.jobs, columns, row, empty=empty, more=after, body=body, cut=True)


@command()
@click.argument("id", required=False)
@click.option("--session", metavar="ID", help="All jobs of this session.")
@arguments.yes_option
def erase(id: str | None, session: str | None, yes: bool) -> None:
    """Erase the contents of a job, or of all jobs of a session, for privacy. Live ones are cancelled first.

    `effect:KEY` names an effect without a job: its result is erased.
    """
    if session is None and (key := effects.find_key(id)) is not None:
        effects.erase_effect(key, yes=yes)
        return
    if (id is None) == (session is None):
        raise Refusal("give a job's id or --session, one of them", "`redrive jobs --session ID` lists what would go")
    if number := use_app(lambda rd: _count_affected(rd, id, session)):
        confirm(f"erase the contents of {plural(number, 'job')}", yes=yes)
    with output.print_log_warnings("redrive.store"):  # they say whether the old bytes are gone from the file
        erased, places = use_app(lambda rd: _erase(rd, id, session))
    output.print_answer({"erased": erased, "gone": not places, "waits_for": places}, _erased_lines(erased, places))


def _erased_lines(erased: int, places: list[str]) -> output.Lines:
    left = "its id and key stay" if erased == 1 else "their ids and keys stay"
    yield f"erased the contents of {plural(erased, 'job')}; {left}"
    if places:
        yield "The erased contents can still be read in"
        yield output.Table(("",), ((place,) for place in places))


async def _erase(rd: Redrive, id: str | None, session: str | None) -> tuple[int, list[str]]:
    erased = await rd.jobs.erase(id, session_id=session, who=acting_user())
    return erased, list(await rd.jobs.lingering())


async def _count_affected(rd: Redrive, id: str | None, session: str | None) -> int:
    if id is not None:
        await rd.jobs.get(id)
        return 1
    return sum((await rd.jobs.count(session_id=session)).values())


# ---- operations


@command()
@click.argument("app")
@click.argument("task")
@arguments.payload_argument
@arguments.timeout_option
@arguments.key_option
@arguments.session_option
def call(app: str, task: str, payload_text: str, timeout: float | None, **given: Any) -> None:
    """Run a task of APP now and here. Exit status 0 only when it is done: queued for a retry is not done.

    APP is a `module:attribute` that names a Redrive, e.g. tasks:rd.
    """
    rd = load_app(app)
    check_known("task", task, rd.registry.handlers, app)
    payload = arguments.read_payload(payload_text, rd)
    options = _name_options(**given)
    _exit_with_outcome(run_with(rd, lambda rd: rd.call(task, payload, timeout=timeout, **options)))


@command()
@click.argument("task")
@arguments.payload_argument
@arguments.key_option
@arguments.session_option
def submit(task: str, payload_text: str, **given: Any) -> None:
    """Have a worker do it later, in one attempt. The answer is an operation to ask about."""
    rd = connect(creates=True)
    payload = arguments.read_payload(payload_text, rd)
    _print_outcome(run_with(rd, lambda rd: rd.submit(task, payload, **_name_options(**given))))


@command()
@click.argument("app")
@click.argument("id")
@arguments.timeout_option
def retry(app: str, id: str, timeout: float | None) -> None:
    """Try an operation once more, by its id alone, with the input of the first time. What is done stays done.

    APP is a `module:attribute` that names a Redrive, e.g. tasks:rd.
    """
    _exit_with_outcome(run_with(load_app(app), lambda rd: rd.retry(id, timeout=timeout, who=acting_user())))


@command()
def operations() -> None:
    """List operations that wait for a retry or their turn, and when the next is due."""
    summary: dict[str, Any] = use_app(lambda rd: rd.operations())
    rows = [(row["operation_id"][-8:], row["task"], row["status"], row["retry_at"]) for row in summary["recent"]]
    head = f"{plural(summary['queued'], 'operation')} waiting, the next at {summary['next_retry_at']}"
    lines = (head, output.Table(("id", "task", "status", "due"), rows))
    output.print_answer(summary, lines if summary["queued"] else "No operation waits.")


def _exit_with_outcome(outcome: Outcome) -> None:
    _print_outcome(outcome)
    if not outcome:
        sys.exit(1)


def _print_outcome(outcome: Outcome) -> None:
    output.print_answer(outcome, _outcome_lines(outcome))


def _outcome_lines(outcome: Outcome) -> Iterator[str]:
    if outcome:
        yield output.Verbatim(output.escape_controls(json.dumps(outcome.result, ensure_ascii=False)))
        return
    yield f"{outcome.status}: {clean(outcome.message)}"
    if outcome.error:
        yield f"  error: {clean(outcome.error)}"
    if outcome.operation_id:
        yield f"  follow it: redrive status {outcome.operation_id[-8:]}"
