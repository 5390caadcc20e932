"""Writes the part of docs/performance.md about fleets."""

from __future__ import annotations

import datetime
import importlib.metadata
import inspect
import os
import platform
import subprocess
from collections.abc import Sequence

from benchmarks import fleet_postgres, peers_nats, raw_nats
from benchmarks.bench import Check
from benchmarks.report import table
from benchmarks.running import CONCURRENCY
from redrive.doors.demo.cluster import find_server
from tests import postgres_server

PACKAGES = ("redrive", "nats-py", "taskiq-nats", "pgqueuer", "procrastinate")


def versions() -> str:
    known = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    said = [f"{name} {known[name]}" for name in PACKAGES if name in known]
    servers = [[find_server(), "--version"]]
    if (folder := postgres_server.binaries()) is not None:
        servers.append([str(folder / "postgres"), "--version"])
    said += [subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in servers]
    return ", ".join(said)


def missed(checks: Sequence[Check]) -> list[int]:
    return sorted({check.row for check in checks if check.passed is False})


def part(checks: Sequence[Check]) -> str:
    return TEXT.format(
        table=table(checks),
        misses="\n".join(f"- Row {row} misses: {MISSES.get(row, 'not looked into.')}" for row in missed(checks)),
        rounds=min(len(values) for check in checks if check.row == 13 for values in check.values.values()),
        day=datetime.datetime.now(datetime.UTC).strftime("%B %Y"),
        machine=f"{platform.system()}, {platform.machine()}, {os.cpu_count()} processors",
        load=f"{os.getloadavg()[1]:.0f}",
        versions=versions(),
        callers=inspect.getsource(raw_nats.by_callers),
        bulk=inspect.getsource(raw_nats.publish),
        loop=inspect.getsource(raw_nats.drain),
        confirmed=inspect.getsource(raw_nats.drain_confirmed),
        concurrency=CONCURRENCY,
        batch=raw_nats.BATCH,
        peers="\n".join(
            f"- **{name}**: {promise}" for name, promise in (peers_nats.PROMISES | fleet_postgres.PROMISES).items()
        ),
    )


MISSES = {
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

TEXT = """## A fleet

Redrive on NATS JetStream, beside what a careful person writes with nats-py and beside taskiq-nats, and on PostgreSQL
beside two queues that are made for it. *Hub* is a process with a replica; a *thin* process has none and asks a hub.

{table}

{misses}

Measured in {day} on {machine}, load average {load}. Servers, hubs and contestants share the machine; a load average
above its processors means that other work ran at the same time, and that the ratios of a quiet machine will differ.
{versions}.

### How the fleet is measured

Every run of a contestant is a process of its own with servers of its own, on loopback, on new files. Contestants take
turns over {rounds} rounds (row 21: one run), a ratio is taken in each, and the median counts; row 20 says its worst.

13. **One at a time** on a hub: `await rd.enqueue(...)` beside `await js.publish(...)`, each before the next. Raw stores
    a message; redrive stores a job, and returns when the log has it and this hub has executed it.
14. **100 callers**: 100 coroutines, each awaiting its own acceptance. Redrive sends what waits together as one message.
15. **`enqueue_many`** beside `js.publish_async`, of which a thousand wait for their acknowledgement.
16. **Drain**: `await rd.drain(concurrency={concurrency})` until the log has every result, beside the raw loop below and
    taskiq's receiver. Raw fetches {batch} messages at a time. It has no claims, results, history or fences:
    an acknowledgement is all it writes.
17. **Sync always**: the same with `sync_interval: always`, for raw as well. One sync serves every job of a message.
    The drain is measured beside a raw loop that waits until the server confirms its acknowledgements, because redrive's
    results are on disk when it returns; the loop that does not wait is measured, too.
18. **R3**: three servers on this one machine; four processes share its processors.
19. **Through a hub**: the contestant has no file. A hub in another process answers it, over NATS or over HTTP. The
    bare hop has no queue at all: a process that publishes what it is asked to and answers.
20. **Lone jobs**: messages that the log gained from the enqueue of a job to its result, while 32 thin workers wait.
21. **Start**: a hub with an empty folder restores the newest snapshot and follows the log; `--large` measures a million
    jobs. A thin worker, from its first line to its first job. Memory is the largest resident size of that process.
22. **PostgreSQL**: Debian's server with its own defaults, on files in memory where the system has /dev/shm, so that a
    sync costs nothing. No promise: a log of messages is appended by one transaction at a time.

#### Raw nats-py

```python
{callers}

{bulk}

{loop}

{confirmed}```

#### The other queues of this table

{peers}
"""
