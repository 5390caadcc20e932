"""Writes the part of docs/performance.md about fleets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from benchmarks import raw_nats
from benchmarks.bench import CONCURRENCY, Check
from benchmarks.report import missed, table


def part(checks: Sequence[Check], where: Mapping[str, str]) -> str:
    return TEXT.format(
        table=table(checks),
        misses="\n".join(f"- {line}" for line in missed(checks)),
        rounds=min(len(values) for check in checks if check.row == 13 for values in check.values.values()),
        machine=f"{where['measured']}, on {where['system']}",
        versions=f"{where['versions']}, {where['servers']}",
        callers=inspect.getsource(raw_nats.by_callers),
        bulk=inspect.getsource(raw_nats.publish),
        loop=inspect.getsource(raw_nats.drain),
        confirmed=inspect.getsource(raw_nats.drain_confirmed),
        concurrency=CONCURRENCY,
        batch=raw_nats.BATCH,
    )


TEXT = """## A fleet

Redrive on NATS JetStream, beside what a careful person writes with nats-py and beside taskiq-nats, and on PostgreSQL
beside two queues that are made for it. *Hub* is a process with a replica; a *thin* process has none and asks a hub.

{table}

{misses}

Measured in {machine}. Servers, hubs and contestants share the machine; a load
average near its processors means that other work ran at the same time, and that the ratios of a quiet machine will
differ. {versions}.

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

The other queues of this table are described [above](#the-other-queues).
"""
