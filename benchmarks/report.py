"""The table: for people, for machines, and for the page of the documentation (`page.py`)."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import apsw
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import all_peers
from benchmarks.bench import Check, amount
from benchmarks.nats_server import find_server
from tests import postgres_server

PACKAGES = ("redrive", "apsw", "huey", "litequeue", "persist-queue", "nats-py", "taskiq-nats", "pgqueuer",
            "procrastinate")  # fmt: skip
VERDICTS = {True: "pass", False: "MISS", None: "not measured"}
COLUMNS = ("row", "work", "measured (median)", "reached", "must reach", "aim", "verdict")


def cells(check: Check) -> tuple[str, ...]:
    reached = "–" if check.reached is None else f"{amount(check.reached)} {check.unit}"
    measured = ", ".join(f"{name} {said}" for name, said in check.measured.items())
    must = "no promise" if check.limit is None else f"{check.relation} {check.limit:g} {check.unit}"
    aim = "" if check.aim is None else f"{check.relation} {check.aim:g} {check.unit}"
    return str(check.row), check.work, measured, reached, must, aim, verdict(check)


def verdict(check: Check) -> str:
    if check.limit is None and check.reached is not None:
        return "measured"
    return "pass, and the aim" if check.aimed else VERDICTS[check.passed]


def show(checks: Sequence[Check], notes: Sequence[str]) -> None:
    """As a table in the terminal: what was measured stands below the work."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    table = Table(COLUMNS[0], "work, and what was measured (median)", *COLUMNS[3:])
    table.columns[1].min_width = 60
    for check in checks:
        style = {True: "green", False: "bold red", None: "yellow"}[check.passed]
        number, work, measured, *rest, judged = cells(check)
        table.add_row(
            number, f"{work}\n[dim]{escape(measured)}[/]" if measured else work, *rest, f"[{style}]{judged}[/]"
        )
    console.print(table)
    for line in missed(checks):
        console.print(line, soft_wrap=True, highlight=False)
    for note in notes:
        console.print(note, style="dim", soft_wrap=True, highlight=False)


def missed(checks: Sequence[Check]) -> list[str]:
    """Why rows miss."""
    rows = sorted({check.row for check in checks if check.passed is False})
    return [f"Row {row} misses: {MISSES.get(row, 'not looked into.')}" for row in rows]


def notes(*, quick: bool, rounds: int | None) -> list[str]:
    said = ["A quick run: small sizes and few rounds, for a check; the figures of a full run count."] if quick else []
    count = "2 or more" if rounds is None else str(rounds)
    said.append(
        f"Ratios are medians of the rounds' ratios, between neighbours in time. Rounds: {count}; every run is a new"
        " process on new files."
    )
    missing = [name for name in all_peers.VERBS if name not in all_peers.installed()]
    if missing:
        said.append(f"Not installed, so not measured: {', '.join(missing)} (`./dev bench` installs them).")
    return said


def machine(folder: Path) -> dict[str, str]:
    """What is going to be measured on."""
    known = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    day = datetime.datetime.now(datetime.UTC).strftime("%B %Y")
    return {
        "measured": f"{day}, load average {os.getloadavg()[1]:.0f} before it began",
        "system": f"{platform.system()}, {platform.machine()}, {os.cpu_count()} processors",
        "filesystem": filesystem(folder),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": f"{apsw.sqlite_lib_version()} (apsw: redrive), {sqlite3.sqlite_version} (sqlite3: the others)",
        "versions": ", ".join(f"{name} {known[name]}" for name in PACKAGES if name in known),
        "servers": ", ".join(servers()),
    }


def servers() -> list[str]:
    """The servers that some contestants need, as they name themselves."""
    programs = [find_server(), *([str(found / "postgres")] if (found := postgres_server.binaries()) else [])]
    asked = [[program, "--version"] for program in programs if program]
    return [subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in asked]


def filesystem(folder: Path) -> str:
    """The type of the filesystem that was measured, where the system says it."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return sys.platform
    best, kind = Path("/"), "unknown"
    for line in mounts.read_text().splitlines():
        point, found = line.split(" ")[1:3]
        where = Path(point.replace("\\040", " "))
        if folder.resolve().is_relative_to(where) and len(where.parts) >= len(best.parts):
            best, kind = where, found
    return kind


def data(checks: Sequence[Check], notes: Sequence[str], where: dict[str, str], *, quick: bool) -> dict[str, Any]:
    rows = [{**asdict(check), "passed": check.passed} for check in checks]
    return {"quick": quick, "machine": where, "checks": rows, "notes": list(notes)}


def checks_of(data: Mapping[str, Any]) -> list[Check]:
    """What an earlier run measured."""
    names = [one.name for one in fields(Check)]
    return [Check(**{name: row[name] for name in names}) for row in data["checks"]]


def table(checks: Sequence[Check]) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(cells, checks)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


MISSES = {
    1: "a lone enqueue hands its job to the thread that writes and is woken by it; what that alone costs is the second"
    " line. The rest is redrive's own work per job (row 27 says its processor time): options and checks in the caller's"
    " thread, counters and sums beside the row in the writer's.",
    3: "beside the row that raw inserts, each job has an id, options that are checked one by one, and its part in the"
    " sums by queue and by time. One thread does all of it (row 27 says its processor time).",
    4: "raw runs two statements per job and nothing else. Here an event loop runs a coroutine for each, its claim is"
    " fenced, its result and its move are kept and counted; the interpreter's time per job is the limit (row 27).",
    5: "raw writes a text per attempt. Here each is captured with its traceback, classified, decided on and kept in the"
    " history; the judging alone takes what row 9 says.",
    6: "raw asks for work every millisecond, without end. What redrive takes longer is the time until a worker notices"
    " that another process has committed, and the wake-ups of its threads.",
    8: "most of it is time in which Python imports modules; what asyncio and msgspec need of it stands beside it.",
    10: "the slowest ones are named. A filter that no index serves reads every job of its state.",
    13: "raw waits for one answer of the server. A hub hands the job to its own thread, hears it back from the log,"
    " executes it in its file (about 100 µs of SQLite) and hands the answer to the caller's thread: three times the"
    " processor time of a raw publish, and two more threads to wake. Runs of this row differ by a third on one machine,"
    " by where its two processors wake which thread; medians of 0.33 to 0.36 were seen.",
    14: "a hub takes 70 to 90 µs of processor time per job in two threads that share one interpreter lock, a raw client"
    " 33 to 38 µs.",
    17: "the drain of a hub is bounded by the interpreter, not by syncs: it is nearly as fast as in row 16, where"
    " nothing is synced. A raw loop that awaits the answer to each acknowledgement is less than twice as slow here.",
    19: "the limit is taken from a queue that publishes directly. A *bare hop*, a request of nats-py to a process that"
    " does nothing but publish and answer, is below it already, so no queue whose hubs accept the jobs can reach it."
    " A lone enqueue of redrive wakes the caller, its transport's thread, the server, the hub and the hub's engine,"
    " and all of the way back.",
    20: "everything that the log gained is counted. In a run that was read message by message each job cost three (one"
    " Insert, one Take, one Apply); the rest were other Applies, and Forgets of pruning, by the 32 processes that had"
    " just started. That they come by time and not by job is supposed: an idle fleet was not counted beside it.",
}
"""Why a row misses, as far as it is known."""
