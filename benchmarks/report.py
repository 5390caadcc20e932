"""The table: for people, for machines, for the documentation."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import platform
import re
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apsw
from rich.console import Console
from rich.table import Table

from benchmarks import raw
from benchmarks.bench import Check
from benchmarks.peers import MODULES, PROMISES, installed
from benchmarks.running import CONCURRENCY

VERDICTS = {True: "pass", False: "MISS", None: "not measured"}
COLUMNS = ("row", "work", "measured (median)", "reached", "must reach", "verdict")


def amount(number: float) -> str:
    """Three digits that matter."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.{1 if number >= 10 else 2 if number >= 1 else 3}f}"


def cells(check: Check) -> tuple[str, ...]:
    reached = "–" if check.reached is None else f"{amount(check.reached)} {check.unit}"
    measured = ", ".join(f"{name} {said}" for name, said in check.measured.items())
    if check.limit is None and check.reached is not None:
        return str(check.row), check.work, measured, reached, "no promise", "measured"
    must = "no promise" if check.limit is None else f"{check.relation} {check.limit:g} {check.unit}"
    return str(check.row), check.work, measured, reached, must, VERDICTS[check.passed]


def show(checks: Sequence[Check], notes: Sequence[str]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(*COLUMNS)
    table.columns[1].no_wrap = table.columns[3].no_wrap = table.columns[4].no_wrap = True
    for check in checks:
        style = {True: "green", False: "bold red", None: "yellow"}[check.passed]
        *rest, verdict = cells(check)
        table.add_row(*rest, f"[{style}]{verdict}[/]")
    console.print(table)
    for note in notes:
        console.print(note, style="dim", soft_wrap=True, highlight=False)


def notes(*, quick: bool, rounds: int) -> list[str]:
    said = ["A quick run: small sizes and few rounds, for a check; the figures of a full run count."] if quick else []
    said += [
        f"Ratios are medians of the ratios of {rounds} or more rounds; every run is a new process on new files.",
        "Row 1: a commit takes about as long here as waking a thread and being woken by it. What an event loop can have"
        " without waiting for the disk itself is the raw commit by a thread.",
        f"Row 4: concurrency={CONCURRENCY:,}; peers drain fewer jobs. Stripped: one commit, no fence, no result.",
    ]
    missing = [name for name in MODULES if name not in installed()]
    if missing:
        said.append(f"Not installed, so not measured: {', '.join(missing)} (`./dev bench` installs them).")
    return said


def machine(folder: Path) -> dict[str, str]:
    """What was measured on."""
    versions = {name: importlib.metadata.version(name) for name in ("redrive", "apsw", *installed())}
    return {
        "system": f"{platform.system()}, {platform.machine()}, {os.cpu_count()} processors",
        "filesystem": filesystem(folder),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": f"{apsw.sqlite_lib_version()} (apsw), {sqlite3.sqlite_version} (sqlite3, for the peers)",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


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


def table(checks: Sequence[Check]) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(cells, checks)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write_page(path: Path, parts: Mapping[str, str]) -> None:
    """Renew these parts of docs/performance.md; each other part stays as it was measured before."""
    before = dict(PART.findall(path.read_text("utf-8"))) if path.exists() else {}
    texts = [f"<!-- part: {name} -->\n{parts.get(name, before.get(name, ''))}" for name in ("file", "fleet")]
    path.write_text(HEAD + "".join(texts), encoding="utf-8")


def file_part(checks: Sequence[Check], notes: Sequence[str], where: dict[str, str]) -> str:
    return FILE.format(
        table=table(checks),
        notes="\n".join(f"- {note}" for note in notes),
        machine="\n".join(f"- {name}: {value}" for name, value in where.items()),
        loop=f"{inspect.getsource(raw.claim)}\n\n{inspect.getsource(raw.finish)}\n\n{inspect.getsource(raw.drain)}",
        table_sql=f"{raw.TABLE.strip()}\n\n-- claim\n{raw.CLAIM};\n\n-- finish\n{raw.FINISH};",
        concurrency=CONCURRENCY,
        peers="\n".join(f"- **{name}**: {promise}" for name, promise in PROMISES.items()),
    )


PART = re.compile(r"<!-- part: (\w+) -->\n(.*?)(?=<!-- part: |\Z)", re.DOTALL)
HEAD = """# Performance

Absolute numbers belong to one machine and its disk; what carries over are the ratios, because everything is measured
beside its limit in the same run. `./dev bench` prints these tables, `./dev bench --write` renews this page, and
`--part fleet` or `--part file` one half of it.

"""
FILE = """## One file

Every figure of this table is synced: WAL and `synchronous=FULL`, for redrive, for raw SQLite and for the other queues.

{table}

{notes}

Measured on:

{machine}

### How it is measured

Every run of a contestant is a process of its own, on a new file, on the disk of the working tree. Contestants take
turns (A B C, C B A, …) over several rounds. A ratio is taken in each round, between neighbours in time, and the median
of the rounds is what counts. Each contestant warms up first and checks afterwards that all of its work was done. Log
records are made and dropped (a `NullHandler`).

1. **One at a time**: `await rd.enqueue(...)`, each before the next, beside one-row transactions of the raw table below.
2. **100 callers**: 100 coroutines, each awaiting its own acceptance before its next enqueue. Group commit makes one
   sync serve all that wait.
3. **`enqueue_many`**: the raw loop makes ids and encodes the same payloads with `json`, and inserts 1,000 per commit.
4. **Drain**: `await rd.drain(concurrency={concurrency})` until every result is synced, beside the raw loop below. The
   raw loop syncs its claims as well; redrive need not (a claim that a power loss takes back is made again). For jobs
   that do nothing a large concurrency is best; the default of 100 is shown beside it. *Stripped* is the shortest loop
   there is, for information: claim and finish in one commit, without fence or result. A kill loses its jobs.
5. **Failures**: `retry_on=(ValueError,)`, `backoff="none"`, `max_attempts=3`: every attempt is captured, classified,
   decided on and kept in the history; attempts per second beside the raw loop, which does none of that.
6. **Latency**: an idle worker in the same process, in turn with two raw commits (an insert and a claim); then with
   enqueues from another process, at random moments.
7. **Backlog**: half of the jobs are due and half scheduled for tomorrow, in one queue. Claims of 10 jobs on this file
   and on a small one, in turn; the newest 100 dead letters; the largest resident size of a worker with
   concurrency {concurrency} that runs 20,000 jobs in front of the backlog.
8. **Start**: `import redrive` (its parts are loaded when first used), and with `redrive.Redrive("jobs.db")`, over the
   bare interpreter; asyncio and msgspec alone beside it; the whole of `redrive --version`.
9. **A failure**: from the exception to the decision, without the store, for errors of several libraries.
10. **At scale**: every page that can be reached from the first one and every GET of the OpenAPI document, also with
    each filter, asked through the ASGI app without a network, on a store with a million jobs and a month of history.
    What counts is the slowest of them at its 95th percentile; the slowest ones are named.
11. **Watched**: `redrive serve` drains with concurrency {concurrency}. Twenty clients read the dashboard's live stream,
    and one loads its first page every second. Compared is the processor time of the serving process alone, per job, so
    that what the clients cost themselves does not count.

#### The raw loop

What a careful person writes by hand with apsw, in one thread:

```sql
{table_sql}
```

```python
{loop}```

#### The other queues

{peers}
"""
