"""Writes docs/performance.md and its figures from what was measured."""

from __future__ import annotations

import inspect
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import fleet_postgres, fleet_report, growth_report, peers, peers_nats, plot, raw
from benchmarks.bench import CONCURRENCY, Check, Values, ratio
from benchmarks.report import missed, table
from benchmarks.rows import PARTS, rows_of

FIGURE = "performance-peers.svg"


def texts(checks: Sequence[Check], notes: Sequence[str], where: Mapping[str, str]) -> dict[str, str]:
    """The text of each part that was measured whole."""
    of = {part: [check for check in checks if check.row in numbers(part)] for part in PARTS}
    whole = {part: {check.row for check in of[part] if check.passed is not None} == numbers(part) for part in PARTS}
    found = {}
    if whole["file"]:
        found["file"] = file_part(of["file"], notes, where)
    if whole["growth"]:
        found["growth"] = growth_report.part(of["growth"])
    if whole["fleet"]:
        found["fleet"] = fleet_report.part(of["fleet"], where)
    return found


def figures(checks: Sequence[Check], parts: Mapping[str, str]) -> dict[str, str]:
    """The files of the figures that belong to these parts."""
    drawn = {}
    if "file" in parts:
        drawn[FIGURE] = figure(checks)
    if "growth" in parts:
        drawn |= growth_report.figures(checks)
    return drawn


def numbers(part: str) -> set[int]:
    return {row.number for row in rows_of(part)}


def figure(checks: Sequence[Check]) -> str:
    """How much of raw each queue reaches, and how late a job starts in another process."""
    shares = [_shares(check) for check in checks if check.unit == "× raw" and "raw" in check.values and check.row < 6]
    late = [check for check in checks if check.unit == "ms" and "raw" in check.values]
    return plot.bars([*shares, *(_panel(check, "ms", _medians(check.values)) for check in late)])


def _shares(check: Check) -> plot.Panel:
    values: Values = {name: list(taken) for name, taken in check.values.items()}
    shares = {name: ratio(values, name, "raw") or 0.0 for name in values if name != "raw"}
    return _panel(check, "× raw", shares)


def _medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(taken) for name, taken in values.items()}


def _panel(check: Check, unit: str, values: dict[str, float]) -> plot.Panel:
    named = {name.removesuffix(", concurrency 100") + " (100)" * name.endswith("100"): value
             for name, value in values.items()}  # fmt: skip
    marks = {name: mark for name, mark in (("must", check.limit), ("aim", check.aim)) if mark is not None}
    return plot.Panel(TITLES.get(check.row, check.work), unit, named, marks)


TITLES = {1: "enqueue one by one", 3: "bulk enqueue", 4: "drain of no-op jobs", 5: "failing to dead",
          6: "start in another process"}  # fmt: skip


def write(path: Path, parts: Mapping[str, str], drawn: Mapping[str, str]) -> None:
    """Renew these parts of the page, and their figures; each other part stays as it was measured before."""
    before = dict(PART.findall(path.read_text("utf-8"))) if path.exists() else {}
    kept = {name: parts.get(name, before.get(name, "")) for name in PARTS}
    path.write_text(HEAD + "".join(f"<!-- part: {name} -->\n{text}" for name, text in kept.items()), "utf-8")
    for name, image in drawn.items():
        (path.parent / "images").mkdir(exist_ok=True)
        (path.parent / "images" / name).write_text(image, "utf-8")


def file_part(checks: Sequence[Check], notes: Sequence[str], where: Mapping[str, str]) -> str:
    code = (raw.insert, raw.claim, raw.finish, raw.fail, raw.drain)
    promises = peers.PROMISES | fleet_postgres.PROMISES | peers_nats.PROMISES
    return FILE.format(
        table=table(checks),
        figure=FIGURE,
        notes="\n".join(f"- {line}" for line in (*missed(checks), *notes)),
        machine="\n".join(f"- {name}: {value}" for name, value in where.items()),
        loop="\n\n".join(inspect.getsource(one) for one in code),
        table_sql=f"{raw.TABLE.strip()}\n\n-- insert\n{raw.INSERT};\n\n-- claim\n{raw.CLAIM};\n\n"
        f"-- finish\n{raw.FINISH};\n\n-- fail\n{raw.FAIL};",
        concurrency=CONCURRENCY,
        peers="\n".join(f"- **{name}**: {promise}" for name, promise in promises.items()),
    )


PART = re.compile(r"<!-- part: (\w+) -->\n(.*?)(?=<!-- part: |\Z)", re.DOTALL)
HEAD = """# Performance

Absolute numbers belong to one machine and its disk; what carries over are the ratios, because everything is measured
beside its limit in the same run. `./dev bench` prints these tables, `./dev bench enqueue drain` some rows of them, and
`./dev bench --write` renews this page (`--part file`, `growth` or `fleet` a part of it). `./dev bench --against PATH`
measures another checkout of redrive and this one in turn, and says what became slower.

"""
FILE = """## One file

Every figure of this table is synced: WAL and `synchronous=FULL` for redrive, for raw SQLite and for the other queues on
SQLite; `fsync` as Debian sets it up for PostgreSQL; `sync_interval: always` for NATS. *Must reach* is what redrive
promises, *aim* what it should come to.

{table}

![How much of raw SQLite each queue reaches](images/{figure})

The red line is what redrive must reach, the dashed green one its aim.

{notes}

Measured on:

{machine}

### How it is measured

Every run of a contestant is a process of its own, on a new file, on the disk of the working tree. Contestants take
turns (A B C, C B A, …) over several rounds; the other queues run in the first three. A ratio is taken in each round,
between neighbours in time, and the median of the rounds is what counts. Each contestant warms up first and checks
afterwards that all of its work was done. Log records are made and dropped (a `NullHandler`).

1. **One at a time** (`enqueue`): `await rd.enqueue(...)`, each before the next, beside one-row commits of the raw loop
   below. *Raw by a thread* is what an event loop can have without waiting for the disk itself: the same commit, handed
   to a thread and awaited.
2. **100 callers** (`callers`): 100 coroutines, each awaiting its own acceptance before its next enqueue. Group commit
   makes one sync serve all that wait.
3. **Bulk** (`bulk`): `enqueue_many`, beside 100 raw rows per commit. litequeue puts 100 per transaction; 100 callers
   send to taskiq-nats at once; huey and persist-queue have no way to put many.
4. **Drain** (`drain`): `await rd.drain(concurrency={concurrency})` until every result is synced, beside the raw loop:
   100 jobs per claim, each claim and each set of results a commit. For jobs that do nothing a large concurrency is
   best; the default of 100 is shown beside it. The other queues drain fewer jobs.
5. **Failures** (`failing`): `retry_on=(ValueError,)`, `backoff="none"`, `max_attempts=3`: every attempt is captured,
   classified, decided on and kept in the history; attempts per second, beside a raw loop that writes the error's text.
   litequeue, persist-queue and pgqueuer retry nothing that raises.
6. **Latency** (`latency`): an idle worker in the same process, in turn with two raw commits (an insert and a claim);
   then with enqueues from another process, at random moments. Raw, huey and litequeue are asked for work every
   millisecond, which is a processor that never rests; pgqueuer, procrastinate and taskiq-nats are told by their server.
7. **Backlog** (`backlog`): half of the jobs are due and half scheduled for tomorrow, in one queue. Claims of 10 jobs on
   this file and on a small one, in turn; the newest 100 dead letters; the largest resident size of a worker with
   concurrency {concurrency} that runs 20,000 jobs in front of the backlog.
8. **Start** (`start`): `import redrive` (its parts are loaded when first used), and with `redrive.Redrive("jobs.db")`,
   over the bare interpreter; asyncio and msgspec alone beside it; the whole of `redrive --version`.
9. **A failure** (`judging`): from the exception to the decision, without the store, for errors of several libraries.
10. **At scale** (`answers`): every page that can be reached from the first one and every GET of the OpenAPI document,
    also with each filter, asked through the ASGI app without a network, on a store with a million jobs and a month of
    history. What counts is the slowest of them at its 95th percentile; the slowest ones are named.
11. **Watched** (`watched`): `redrive serve` drains with concurrency {concurrency}. Twenty clients read the dashboard's
    live stream, and one loads its first page every second. Compared is the processor time of the serving process alone,
    per job, so that what the clients cost themselves does not count.
12. **The guard** (`opening`): what a program pays per opening of any other file for being kept from ruining the store.

#### The raw loop

The fewest statements that keep jobs, with Python's own `sqlite3`, in one thread: no other callers, no leases, no
fences, no history, and nothing that comes back after a crash.

```sql
{table_sql}
```

```python
{loop}```

#### The other queues

{peers}

"""
