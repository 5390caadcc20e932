"""`redrive worker APP` runs jobs, in this process or in several; helpers to load APP and to end a process."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

import click

import redrive
from redrive.api.redrive import Redrive
from redrive.doors.cli import output
from redrive.doors.cli.invocation import command, invocation
from redrive.doors.cli.logs import log_to_stderr, write_repeats
from redrive.doors.cli.problems import BROKEN, TERMINATED, Refusal
from redrive.doors.cli.text import plural
from redrive.doors.cli.worker_processes import run_processes
from redrive.engine.interrupts import ended_by_a_job, run_until_signalled
from redrive.errors import StoreFailed

LAST_SECONDS: Final = 5.0
"""How long a process whose store has failed may take to end by itself."""


def split_names(text: str) -> tuple[str, ...]:
    """Split names at commas."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise click.BadParameter("give at least one name")
    return names


@command()
@click.argument("app")
@click.option("--processes", metavar="N", type=click.IntRange(1, 256), default=1, help="Run this many workers at once.")
@click.option("--concurrency", metavar="N", type=click.IntRange(min=1), help="Jobs at once, per process.")
@click.option("--queues", metavar="A,B", type=split_names, help="Only jobs of these queues.")
@click.option("--agents", metavar="A,B", type=split_names, help="Only jobs of these agents.")
@click.option("--grace", metavar="SECONDS", type=click.FloatRange(min=0), help="How long running jobs may finish.")
@click.option("--drain", is_flag=True, help="Run what is due now, then exit.")
@click.option("--reload", is_flag=True, help="Start again when a Python file of this folder changes.")
@click.option("--parent", type=int, hidden=True, help="Stop when this process is no longer the parent.")
def worker(app: str, processes: int, drain: bool, reload: bool, parent: int | None, **given: Any) -> int:
    """Run the jobs of APP, a `module:attribute` that names a Redrive, e.g. tasks:rd.

    SIGTERM or Ctrl-C lets running jobs finish within the grace period, then gives the rest back to the queue. Ends with
    exit status 3 when the disk fails to sync: its supervisor should start it again.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if drain and reload:
        raise Refusal("--drain ends when nothing is due, and --reload goes on", "leave one of them out")
    rd = load_app(app)
    log_to_stderr()
    if processes > 1 or reload:
        return run_processes(rd, app, processes, drain=drain, reload=reload, options=options)
    if parent is not None:
        _stop_with_parent(parent)
    return _drain(rd, options) if drain else _run_worker(rd, options)


def load_app(app: str) -> Redrive:
    """Import the Redrive that APP names. The caller's folder is searched first, as `python` itself does."""
    module, _, attribute = app.partition(":")
    if not module or not attribute or module.endswith(".py") or "/" in module:
        raise Refusal(f"{app!r} is not module:attribute", "for rd in tasks.py write: redrive worker tasks:rd")
    if invocation().url:
        os.environ["REDRIVE_URL"] = str(invocation().url)
    rd = getattr(_import_module(module), attribute, None)
    if not isinstance(rd, Redrive):
        known = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, Redrive)]
        hint = f"there is {module}:{known[0]}" if known else f"{module} should say: {attribute} = redrive.Redrive()"
        raise Refusal(f"{app!r} is not a Redrive", hint)
    _check_database(rd, app)
    return rd


def _import_module(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        ours = error.name is not None and f"{name}.".startswith(f"{error.name}.")
        path_hint = "run it in the folder that holds the module, or set PYTHONPATH"
        hint = path_hint if ours else f"{name} needs it: install it"
        raise Refusal(f"cannot import {name}: {error}", hint) from None
    except Exception as error:  # noqa: BLE001 - reported with the line that raised it
        raise Refusal(f"importing {name} failed: {type(error).__name__}: {error}", _locate(error)) from None


def _locate(error: Exception) -> str:
    ours = str(Path(redrive.__file__).parent)
    if isinstance(error, SyntaxError) and error.filename:
        return f"see {error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith((ours, "<frozen"))), frames[-1])
    return f"see {last.filename}, line {last.lineno}"


def _check_database(rd: Redrive, app: str) -> None:
    """Refuse --url for an app that names its database itself."""
    url = invocation().url
    if url and rd.settings.url != url:
        problem = f"{app} names its own database, {rd.shown_url}; --url cannot change it"
        raise Refusal(problem, "leave --url out, or write Redrive() without a path in the code")


def _run_worker(rd: Redrive, options: dict[str, Any]) -> int:
    tasks = ", ".join(sorted(rd.registry.handlers))
    logging.getLogger("redrive.worker").info("working on %s; tasks: %s", rd.shown_url, tasks)
    run_until_signalled(_work_until_stopped(rd, options))
    if output.wants_json():
        output.print_json({"stopped": True, "events": rd.bus.metrics()})
    return end_status()


def end_status() -> int:
    """Return 0 if a signal from outside ended the process; if a job sent it, log that and return 143."""
    if (cause := ended_by_a_job()) is None:
        return 0
    logging.getLogger("redrive.worker").critical("this process ends with exit status %d: %s", TERMINATED, cause)
    return TERMINATED


async def _work_until_stopped(rd: Redrive, options: dict[str, Any]) -> None:
    """Run a worker until a signal comes. A task that ignores its cancellation does not keep the process alive."""
    try:
        await rd.run_worker(**options)
    except StoreFailed:
        await leave_process(BROKEN)
        raise
    await leave_process()


async def leave_process(status: int = 0) -> None:
    """End the process even if a task, or after a failure a thread, does not end by itself."""
    if status:
        _end_within(LAST_SECONDS, status)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left and (await asyncio.wait(left, timeout=1.0))[1]:
        status = status or end_status()
        write_repeats()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_within(seconds: float, status: int) -> None:
    """End the process with this status if its own exit, which waits for every thread of a pool, takes longer."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()


def _drain(rd: Redrive, options: dict[str, Any]) -> int:
    attempts = run_until_signalled(_drain_until_stopped(rd, options))
    if output.wants_json():
        output.print_json({"drained": attempts is not None, "events": rd.bus.metrics()})
    elif attempts is None:
        output.print_line("stopped before everything due was run")
    else:
        output.print_line(
            f"drained: {plural(attempts, 'attempt')}" if attempts else "nothing was due: redrive jobs --state waiting"
        )
    return TERMINATED if attempts is None else 0


async def _drain_until_stopped(rd: Redrive, options: dict[str, Any]) -> int | None:
    """Run what is due and return the number of attempts; None if SIGTERM came first and jobs were given back."""
    draining = asyncio.create_task(rd.drain(**options))
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        draining.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    ending = rd.make_ending(options.get("grace"), TERMINATED)
    ending.hear(signal.SIGTERM)
    try:
        return await draining
    except asyncio.CancelledError:
        if not signals:
            raise
        if signals[0] == signal.SIGINT:
            raise KeyboardInterrupt from None
        return None
    finally:
        await rd.close()
        ending.over()


def _stop_with_parent(parent: int) -> None:
    """Send SIGTERM to this process when its parent has ended, so that no worker goes on unsupervised."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="redrive-parent", daemon=True).start()
