"""`redrive worker APP`: run jobs, in this process or in several."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import asked, shared
from redrive.doors.cli.problems import BROKEN, TERMINATED, Problem
from redrive.doors.cli.text import counted

if TYPE_CHECKING:
    import logging

    from redrive.api.redrive import Redrive


LAST_SECONDS: Final = 5.0
"""So long may a process whose store has stopped take to end by itself."""


def names(text: str) -> tuple[str, ...]:
    """Several names with commas between them."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise click.BadParameter("give at least one name")
    return found


@click.command(short_help="Run the jobs of APP, e.g. tasks:rd.")
@click.argument("app")
@click.option("--processes", metavar="N", type=click.IntRange(1, 256), default=1, help="Run so many workers at once.")
@click.option("--concurrency", metavar="N", type=click.IntRange(min=1), help="Jobs at once, per process.")
@click.option("--queues", metavar="A,B", type=names, help="Only jobs of these queues.")
@click.option("--agents", metavar="A,B", type=names, help="Only jobs of these agents.")
@click.option("--grace", metavar="SECONDS", type=click.FloatRange(min=0), help="How long running jobs may finish.")
@click.option("--drain", is_flag=True, help="Run what is due now, then exit.")
@click.option("--reload", is_flag=True, help="Start again when a Python file of this folder changes.")
@click.option("--parent", type=int, hidden=True, help="Stop when this process is no longer the parent.")
@shared
def worker(app: str, processes: int, drain: bool, reload: bool, parent: int | None, **said: Any) -> int:
    """Run the jobs of APP, a `module:attribute` that names a Redrive, e.g. tasks:rd.

    SIGTERM or Ctrl-C lets running jobs finish within the grace period, then gives the rest back to the queue. Ends with
    exit status 3 when the disk fails to sync: its supervisor should start it again.
    """
    options = {name: value for name, value in said.items() if value is not None}
    if drain and reload:
        raise Problem("--drain ends when nothing is due, and --reload goes on", "leave one of them out")
    rd = load(app)
    log_to_stderr()
    if processes > 1 or reload:
        from redrive.doors.cli.processes import run

        return run(rd, app, processes, drain=drain, reload=reload, options=options)
    if parent is not None:
        _stop_without(parent)
    return _drain(rd, options) if drain else _work(rd, options)


def load(app: str) -> Redrive:
    """The Redrive that APP names. The caller's folder is searched first, as `python` itself would."""
    import os

    from redrive.api.redrive import Redrive

    module, _, attribute = app.partition(":")
    if not module or not attribute or module.endswith(".py") or "/" in module:
        raise Problem(f"{app!r} is not module:attribute", "for rd in tasks.py write: redrive worker tasks:rd")
    if asked().url:
        os.environ["REDRIVE_URL"] = str(asked().url)
    found = getattr(_module(module), attribute, None)
    if not isinstance(found, Redrive):
        known = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, Redrive)]
        hint = f"there is {module}:{known[0]}" if known else f"{module} should say: {attribute} = redrive.Redrive()"
        raise Problem(f"{app!r} is not a Redrive", hint)
    _same_database(found, app)
    return found


def _module(name: str) -> Any:
    import importlib
    import os

    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        ours = error.name is not None and f"{name}.".startswith(f"{error.name}.")
        hint = (
            "run it in the folder that holds the module, or set PYTHONPATH" if ours else f"{name} needs it: install it"
        )
        raise Problem(f"cannot import {name}: {error}", hint) from None
    except Exception as error:  # noqa: BLE001 - told with the line that raised it
        raise Problem(f"importing {name} failed: {type(error).__name__}: {error}", _raised_at(error)) from None


def _raised_at(error: Exception) -> str:
    import traceback
    from pathlib import Path

    import redrive

    ours = str(Path(redrive.__file__).parent)
    if isinstance(error, SyntaxError) and error.filename:
        return f"see {error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith((ours, "<frozen"))), frames[-1])
    return f"see {last.filename}, line {last.lineno}"


def _same_database(rd: Redrive, app: str) -> None:
    """--url is for apps that leave the choice open."""
    said = asked().url
    if said and rd.settings.url != said:
        raise Problem(
            f"{app} names its own database, {rd.shown_url}; --url cannot change it",
            "leave --url out, or write Redrive() without a path in the code",
        )


def _work(rd: Redrive, options: dict[str, Any]) -> int:
    import logging

    from redrive.engine.interrupts import run_until_told

    tasks = ", ".join(sorted(rd.registry.handlers))
    logging.getLogger("redrive.worker").info("working on %s; tasks: %s", rd.shown_url, tasks)
    run_until_told(_until_told(rd, options))
    if output.as_json():
        output.say_json({"stopped": True, "events": rd.bus.metrics()})
    return status_of_the_end()


def status_of_the_end() -> int:
    """0 where a signal from outside ended the process. One that a job sent is told, and no process manager likes it."""
    import logging

    from redrive.engine.interrupts import ended_by_a_job

    if (said := ended_by_a_job()) is None:
        return 0
    logging.getLogger("redrive.worker").critical("this process ends with exit status %d: %s", TERMINATED, said)
    return TERMINATED


async def _until_told(rd: Redrive, options: dict[str, Any]) -> None:
    """Run until told to stop. A task that ignores its cancellation has been given back and must not keep us here."""
    from redrive.errors import StoreFailed

    try:
        await rd.run_worker(**options)
    except StoreFailed:
        await leave(BROKEN)
        raise
    await leave()


async def leave(status: int = 0) -> None:
    """End the process even where something in it does not want to: a task, and after a failure a thread, too."""
    import asyncio
    import os

    if status:
        _end_within(LAST_SECONDS, status)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left and (await asyncio.wait(left, timeout=1.0))[1]:
        from redrive.doors.cli.repeats import tell_repeats

        status = status or status_of_the_end()
        tell_repeats()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_within(seconds: float, status: int) -> None:
    """End the process with this status where its own way out takes longer: it waits for every thread of a pool."""
    import os
    import threading

    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()


def _drain(rd: Redrive, options: dict[str, Any]) -> int:
    from redrive.engine.interrupts import run_until_told

    attempts = run_until_told(_until_drained(rd, options))
    if output.as_json():
        output.say_json({"drained": attempts is not None, "events": rd.bus.metrics()})
    elif attempts is None:
        output.say("stopped before everything due was run")
    else:
        output.say(
            f"drained: {counted(attempts, 'attempt')}" if attempts else "nothing was due: redrive jobs --state waiting"
        )
    return TERMINATED if attempts is None else 0


async def _until_drained(rd: Redrive, options: dict[str, Any]) -> int | None:
    """How many attempts were made, or None where SIGTERM came first: then what ran was finished or given back."""
    import asyncio
    import signal

    draining = asyncio.create_task(rd.drain(**options))
    told: list[int] = []

    def stop(number: int) -> None:
        told.append(number)
        draining.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    ending = rd.make_ending(options.get("grace"), TERMINATED)
    ending.hear(signal.SIGTERM)
    try:
        return await draining
    except asyncio.CancelledError:
        if not told:
            raise
        if told[0] == signal.SIGINT:
            raise KeyboardInterrupt from None
        return None
    finally:
        await rd.close()
        ending.over()


def _stop_without(parent: int) -> None:
    """A worker whose parent was killed must not go on unseen."""
    import os
    import signal
    import threading
    import time

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="redrive-parent", daemon=True).start()


def log_to_stderr() -> None:
    """Where the app has not set up logging by itself."""
    import logging

    from redrive.doors.cli.repeats import count_repeats

    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(json=asked().json))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("redrive").setLevel(logging.INFO)
    count_repeats()


def _formatter(*, json: bool) -> logging.Formatter:
    from redrive.doors.cli.processes import JsonLines, TextLines

    return JsonLines() if json else TextLines()
