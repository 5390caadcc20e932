"""Single jobs: enqueue, cancel, status, jobs, erase."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from redrive.core.times import read_time
from redrive.doors.cli import effects, output, payload, story
from redrive.doors.cli.asking import ask, confirm, connect, perform, shared, who, why
from redrive.doors.cli.filters import filtered, understood
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, counted, due, short

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from redrive.api.redrive import Redrive
    from redrive.core.job import Job
    from redrive.core.store import Event, Page
    from redrive.deadletters.verbs import Note
    from redrive.jobs.tasks import JobHandle


@click.command()
@click.argument("task")
@click.argument("payload_said", metavar="[JSON | @FILE | -]", default="{}")
@click.option("--queue", metavar="NAME", help="Instead of the queue named like the task.")
@click.option("--delay", metavar="SECONDS", type=click.FloatRange(min=0), help="Run it so much later.")
@click.option("--run-at", metavar="TIME", help="Run it then, e.g. 2031-05-17T03:00:00Z.")
@click.option("--priority", metavar="NAME", help="critical, high, normal or low.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same again gives the job that exists.")
@click.option("--session", metavar="ID", help="Who asks.")
@click.option("--agent", metavar="NAME", help="Who does it.")
@click.option("--model", metavar="NAME", help="The model it starts with.")
@click.option("--max-attempts", metavar="N", type=int, help="How often it is tried at most.")
@shared
def enqueue(
    task: str, payload_said: str, run_at: str | None, key: str | None, session: str | None, **said: Any
) -> None:
    """Accept a job. When this returns, it is synced to disk.

    The payload is a JSON object on the command line, in a file (@file.json) or from a pipe (-).
    """
    at = None if run_at is None else read_time("run_at", run_at)
    options = {**said, "run_at": at, "idempotency_key": key, "session_id": session}
    given = {name: value for name, value in options.items() if value is not None}

    rd = connect(creates=True)
    body = payload.read(payload_said, rd.settings.payload_limit)
    handle, waits = perform(rd, lambda rd: _handed_in(rd, task, body, given))
    if output.as_json():
        said = {"duplicate": handle.duplicate, "spooled": handle.spooled, "direct": handle.direct}
        output.say_json(output.job_json(handle.job) | said | {"warnings": [waits] if waits else []})
    else:
        _tell_accepted(handle, waits)


async def _handed_in(
    rd: Redrive, task: str, body: dict[str, Any], options: dict[str, Any]
) -> tuple[JobHandle[Any], str | None]:
    """The job, and what to say where no worker will run it now. A store that took nothing is not asked."""
    handle = await rd.enqueue(task, body, **options)
    stored = not handle.spooled and not handle.direct and not handle.job.ended
    return handle, await rd.jobs.waits_for_worker(handle.job) if stored else None


def _tell_accepted(handle: JobHandle[Any], waits: str | None) -> None:
    job = handle.job
    if handle.spooled:
        output.say(f"job {job.short_id} waits in the spool: the store could not take it; a worker moves it over")
        return
    if handle.direct:
        output.say(f"{clean(job.task)} was called directly: neither the store nor the spool could take the job")
        return
    if handle.duplicate:
        output.say(f"job {job.short_id} exists already with this key; it is {job.state}")
    else:
        verb = "due" if waits else "runs"
        output.say(f"job {job.short_id} accepted: {clean(job.task)}, {verb} {ago(max(job.run_at, time.time()))}")
    if waits:
        output.say(f"  {clean(waits)}")
    output.say(f"  follow it: redrive status {job.short_id}")


@click.command(short_help="Discard a job that has not ended; a running one is stopped.")
@click.argument("id")
@why
@shared
def cancel(id: str, why: str | None) -> None:
    """A job that has not ended is no longer wanted: it is discarded, and stopped where it runs. It can be restored."""
    tell_moved(ask(lambda rd: rd.jobs.cancel(id, who=who(), why=why)), "cancelled", "redrive dead restore {id}")


def tell_moved(job: Job, move: str, undo: str) -> None:
    """One line for a move, and the command that goes on from it or takes it back."""
    if output.as_json():
        output.say_json(output.job_json(job))
        return
    state = "" if move == job.state else f"; it is {job.state}"
    output.say(f"job {job.short_id} ({clean(job.task)}) {move}{state}")
    output.say(f"  next: {undo.format(id=job.short_id)}")


@click.command(short_help="Show a job's whole story, and what to do next.")
@click.argument("id")
@click.option("--secrets", is_flag=True, help="Show what looks like a secret in payload and result, too.")
@shared
def status(id: str, secrets: bool) -> None:
    """A job's whole story: attempts, causes, decisions, and what to do next. `effect:KEY`: an effect without a job."""
    if (key := effects.key_in(id)) is not None:
        effects.tell(key, secrets=secrets)
        return
    tell_story(ask(lambda rd: with_story(rd, rd.status(id))), secrets=secrets)


class Whole(NamedTuple):
    """All that is shown of one job."""

    job: Job
    moves: Sequence[Event]
    notes: Sequence[Note]
    trace_url: str | None


async def with_story(rd: Redrive, wanted: Awaitable[Job]) -> Whole:
    from redrive.reports.traceback_view import trace_link

    job = await wanted
    link = trace_link(rd.settings.trace_url, job)
    return Whole(job, await rd.jobs.story(job.id), await rd.dead.notes(job.id), link)


def tell_story(whole: Whole, *, secrets: bool) -> None:
    from redrive.core.redact import redact

    if output.as_json():
        body = output.job_json(whole.job, secrets=secrets)
        said = [note.public() for note in whole.notes]
        told = {"moves": [story.move_json(move) for move in whole.moves], "notes": said if secrets else redact(said)}
        output.say_json(body | told | {"trace_url": whole.trace_url})
    else:
        story.tell(whole.job, whole.moves, whole.notes, trace_url=whole.trace_url, secrets=secrets)


@click.command(short_help="Say what became of a job whose outcome is unknown.")
@click.argument("id")
@click.option("--landed/--not-landed", default=None, required=True, help="Whether its effect happened.")
@click.option("--why", metavar="TEXT", help="How you know; it stays with the job, which needs it.")
@click.option("--result", metavar="JSON", help="Of an effect without a job: what later calls return.")
@shared
def resolve(id: str, landed: bool | None, why: str | None, result: str | None) -> None:
    """Say what became of a job, or of an effect without a job (`effect:KEY`), whose outcome is unknown.

    Landed: the job is done. Not landed: its effect counts as absent and the job runs again. An effect without a job:
    later calls return the result, or the next call performs it.
    """
    if landed is None:  # newer versions of click do not ask for a flag that is required
        raise _missing("--landed' or '--not-landed")
    if (key := effects.key_in(id)) is not None:
        effects.resolve(key, landed=landed, result=result, why=why)
        return
    if result is not None:
        raise Problem("--result is for effects without a job", "name one as effect:KEY; `redrive effects` lists them")
    if why is None:
        raise _missing("--why")
    job = ask(lambda rd: rd.jobs.resolve(id, landed=landed, who=who(), why=why))
    tell_moved(job, "resolved" if landed else "runs again", "redrive status {id}")


def _missing(option: str) -> click.MissingParameter:
    return click.MissingParameter(ctx=click.get_current_context(), param_hint=f"'{option}'", param_type="option")


@click.command()
@click.option(
    "--state", metavar="NAMES", multiple=True,
    help="waiting, running, held, done, dead, discarded, purged; several with commas between.",
)  # fmt: skip
@filtered
@click.option("--text", metavar="TEXT", help="Only jobs whose input or last error has this text.")
@click.option("--limit", metavar="N", type=int, default=50, show_default=True)
@click.option("--cursor", metavar="TEXT", help="Go on where the last page ended.")
@shared
def jobs(state: tuple[str, ...], filters: dict[str, Any], **said: Any) -> None:
    """List jobs, newest first."""
    states = tuple(name.strip() for names in state for name in names.split(","))
    page = ask(lambda rd: _listed(rd, states, filters, **said))
    if output.as_json():
        say_page(page)
    elif page.jobs:
        output.table(
            ("id", "state", "task", "queue", "attempts", "changed", "last error"), map(_row, page.jobs), cut=True
        )
        tell_more(page)
    else:
        output.say('No jobs here. Accept one with: redrive enqueue TASK \'{"name": "value"}\'')


async def _listed(
    rd: Redrive, state: tuple[str, ...], filters: dict[str, Any], text: str | None = None, **said: Any
) -> Page:
    chosen = {"state": state or None, **said, **await understood(rd, filters)}
    return (await rd.jobs.search(text, **chosen)).page if text is not None else await rd.jobs.list(**chosen)


def _row(job: Job) -> tuple[object, ...]:
    waits = job.state == "waiting" and job.run_at > job.updated_at
    changed = due(job.run_at) if waits else ago(job.updated_at)
    return job.short_id, job.state, job.task, job.queue, attempts(job), changed, short(job.error or "")


def attempts(job: Job) -> str:
    return str(job.attempts) if job.allowed is None else f"{job.attempts}/{job.allowed}"


def say_page(page: Page) -> None:
    from redrive.core.job import iso

    listed = [output.job_json(job) for job in page.jobs]
    output.say_json({"jobs": listed, "cursor": page.cursor, "as_of": iso(page.as_of)})


def tell_more(page: Page) -> None:
    if page.cursor is not None:
        output.say(f"There may be more: repeat it with --cursor {page.cursor}")


@click.command(short_help="Forget the contents of jobs, for privacy.")
@click.argument("id", required=False)
@click.option("--session", metavar="ID", help="All jobs of this session.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@shared
def erase(id: str | None, session: str | None, yes: bool) -> None:
    """Forget the contents of a job, or of all jobs of a session, for privacy. Live ones are cancelled first.

    `effect:KEY` names an effect without a job: its result is forgotten.
    """
    if id is not None and session is None and (key := effects.key_in(id)) is not None:
        effects.erase(key, yes=yes)
        return
    if (id is None) == (session is None):
        raise Problem("give a job's id or --session, one of them", "`redrive jobs --session ID` lists what would go")
    number = ask(lambda rd: _affected(rd, id, session))
    if number:
        confirm(f"erase the contents of {counted(number, 'job')}", yes=yes)
    with output.warnings_of("redrive.store"):  # whether the old bytes are gone from the file is a part of the answer
        erased, waits_for = ask(lambda rd: _erased(rd, id, session))
    if output.as_json():
        output.say_json({"erased": erased, "gone": not waits_for, "waits_for": waits_for})
        return
    left = "its id and key stay" if erased == 1 else "their ids and keys stay"
    output.say(f"erased the contents of {counted(erased, 'job')}; {left}")
    if waits_for:
        output.say("they are not gone yet. They can still be read in")
        output.table(("",), ((each,) for each in waits_for))


async def _erased(rd: Redrive, id: str | None, session: str | None) -> tuple[int, list[str]]:
    erased = await rd.jobs.erase(id, session_id=session, who=who())
    return erased, list(await rd.jobs.lingering())


async def _affected(rd: Redrive, id: str | None, session: str | None) -> int:
    from redrive.core.store import Filter

    if id is not None:
        await rd.jobs.get(id)
        return 1
    return sum((await rd.store.count(Filter(session_id=session))).values())
