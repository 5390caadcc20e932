"""A store as it is after a month of trouble: a million jobs, a hundred thousand dead letters in five hundred groups.

Written by SQL, because running so many jobs would take an hour; the counters, tallies, groups and histories are those
that the store would have written. It is made once and kept in the folder for temporary files, by schema and size.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import zlib
from pathlib import Path

import apsw
import msgspec

from redrive import Redrive
from redrive.core.job import Attempt, Cause, Failure
from redrive.core.workflow import Flow, FlowStep
from redrive.retries.breaker import Breaker
from redrive.stores.sqlite import schema

GROUPS = 500
ROUTES = 40
DAYS = 30
SESSIONS = 2_000
SHARE = 11
"""Every so many jobs is a dead letter."""
DETAILS = ("timeout", "rate_limited", "credentials", "bug", "invalid_output", "context_overflow", "server_error")
CLASSES = ("TimeoutError", "RateLimitError", "AuthenticationError", "KeyError", "ValidationError", "BadRequestError")


def large_store(jobs: int) -> Path:
    """The file, made where it is not there yet for this schema and this way to fill it."""
    written = zlib.crc32("".join((*schema.read_steps(), Path(__file__).read_text("utf-8"))).encode())
    path = Path(tempfile.gettempdir()) / f"redrive-scale-{written:08x}-{jobs}.db"
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}")
        try:
            fill(fresh, jobs, time.time())
            fresh.replace(path)
        finally:
            for rest in path.parent.glob(f"{fresh.name}*"):
                rest.unlink()
    return path


def fill(path: Path, jobs: int, now: float) -> None:
    connection = apsw.Connection(str(path))
    schema.migrate(connection, str(path))
    for pragma, value in (("synchronous", 0), ("journal_mode", "MEMORY"), ("cache_size", -400_000)):
        connection.pragma(pragma, value)
    connection.execute("BEGIN")
    _routes(connection)
    _jobs(connection, jobs, now)
    _moves(connection)
    _groups(connection)
    _tallies(connection, now)
    _documents(connection, jobs, now)
    connection.execute(schema.make_recount())
    connection.execute("COMMIT")
    connection.pragma("journal_mode", "WAL")
    connection.close()
    rd = Redrive(path)
    rd.run_blocking(_acted(rd))
    connection = apsw.Connection(str(path))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # all of it in the one file that is kept
    connection.close()


async def _acted(rd: Redrive) -> None:
    """What people have done about it, by the verbs themselves: groups judged, two redrives, some notes."""
    logging.getLogger("redrive").setLevel(logging.CRITICAL)
    async with rd:
        await rd.groups.look()
        largest, *_, smallest = sorted(await rd.store.groups(), key=lambda group: -group.buried)
        paused = await rd.redrives.start(fingerprint=largest.fingerprint, canary=10, who="anna", why="it is fixed")
        await rd.redrives.pause(paused.id, who="anna", why="the receiver is slow")
        await rd.redrives.start(fingerprint=smallest.fingerprint, rate=10.0, who="anna", why="a try")
        await rd.redrives.advance()
        for letter in (await rd.dead.list(limit=20)).jobs:
            await rd.dead.note(letter.id, "Seen; waits for the new key.", who="anna")


def _routes(connection: apsw.Connection) -> None:
    for number in range(ROUTES):
        agent = f"agent-{number % 7}" if number % 3 == 0 else None
        names = (f"queue-{number % 20:02}", f"task-{number:02}", agent)
        connection.execute("INSERT INTO routes (queue, task, agent) VALUES (?, ?, ?)", names)


_NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :jobs)"
_STATE = f"""CASE
    WHEN n % {SHARE} = 0 THEN 'dead'
    WHEN n % 5003 = 1 THEN 'held'
    WHEN n % 307 = 1 THEN 'discarded'
    WHEN n >= :jobs * 0.8 THEN 'waiting'
    ELSE 'done' END"""
_FILL = f"""{_NUMBERS}, stated AS (
    SELECT n, {_STATE} AS state, :start + n * :step AS at,
        -- a few large groups and many small ones
        CASE WHEN n / {SHARE} % 2 THEN n / {SHARE} / 2 % {GROUPS} ELSE n / {SHARE} / 2 % 20 END AS grp
    FROM numbers)
INSERT INTO jobs (id, route, state, priority, run_at, created_at, updated_at, version, payload, run, attempts, allowed,
    result, key, session_id, reason, options_json, because, lane, category, detail, subclass, fingerprint, error_class,
    error, recommendation, owner, first_failed_at, held_at, held_for, worker, started_at)
SELECT
    printf('%012x7%03x%016x', CAST(at * 1000 AS INTEGER), n & 4095, 9223372036854775807 - n * 7919),
    CASE state WHEN 'dead' THEN grp % {ROUTES} + 1 ELSE n % {ROUTES} + 1 END,
    state, n % 4,
    CASE WHEN state = 'waiting' AND n % 2 THEN :now + n % 86400 ELSE at END,
    at, at + CASE state WHEN 'waiting' THEN 0 ELSE 30 END,
    CASE state WHEN 'waiting' THEN 1 ELSE 3 END,
    printf('{{"topic":"article %d","draft":"%s","tries":%d}}', n, 'words and words and words and words', n % 5),
    CASE state WHEN 'waiting' THEN 0 ELSE 1 + (state = 'dead') END,
    CASE state WHEN 'waiting' THEN 0 WHEN 'held' THEN 0 ELSE 1 + (state = 'dead') END,
    5,
    CASE state WHEN 'done' THEN printf('{{"posted":%d}}', n) END,
    CASE WHEN n % 10 = 3 THEN printf('key-%d', n) END,
    CASE WHEN n % 5 = 2 THEN printf('session-%d', n % {SESSIONS}) END,
    CASE n % 50 WHEN 7 THEN 'retry' WHEN 8 THEN 'deferred_submit' WHEN 9 THEN 'scheduled_job' ELSE 'direct' END,
    NULL,
    CASE state WHEN 'dead' THEN CASE n % 3 WHEN 0 THEN 'attempts_exhausted' WHEN 1 THEN 'permanent'
        ELSE 'terminated' END WHEN 'held' THEN CASE n % 2 WHEN 0 THEN 'approval' ELSE 'outcome_unknown' END
        WHEN 'discarded' THEN 'discarded' END,
    CASE state WHEN 'dead' THEN CASE WHEN n % 10 = 0 THEN 'delayed' ELSE 'manual' END END,
    CASE state WHEN 'dead' THEN CASE grp % 3 WHEN 0 THEN 'transient' WHEN 1 THEN 'permanent' ELSE 'conditional' END END,
    CASE state WHEN 'dead' THEN :details ->> (grp % json_array_length(:details)) END,
    CASE state WHEN 'dead' THEN CASE grp % 2 WHEN 0 THEN 'Transient' ELSE 'Logic' END END,
    CASE state WHEN 'dead' THEN printf('%016x', (grp + 1) * 28643598247) END,
    CASE state WHEN 'dead' THEN :classes ->> (grp % json_array_length(:classes)) END,
    CASE state WHEN 'dead' THEN printf('Error of kind %d: the request %d was answered with nonsense', grp, n) END,
    CASE state WHEN 'dead' THEN 'Look at the receiver, then redrive the group.' WHEN 'held' THEN 'Answer it.' END,
    CASE WHEN state = 'dead' AND n % 4 = 0 THEN 'ceo' END,
    CASE state WHEN 'dead' THEN at + 1 END,
    CASE state WHEN 'held' THEN at + 30 END,
    CASE state WHEN 'held' THEN 'question' END,
    CASE state WHEN 'waiting' THEN NULL ELSE 'worker-1' END,
    CASE state WHEN 'waiting' THEN NULL ELSE at + 1 END
FROM stated"""


def _jobs(connection: apsw.Connection, jobs: int, now: float) -> None:
    span = DAYS * 86_400.0
    values = {
        "jobs": jobs, "now": now, "start": now - span, "step": span / jobs,
        "details": json.dumps(DETAILS), "classes": json.dumps(CLASSES),
    }  # fmt: skip
    connection.execute(_FILL, values)
    connection.execute("UPDATE jobs SET died_at = updated_at WHERE state = 'dead'")


def _moves(connection: apsw.Connection) -> None:
    """Two failed attempts for each dead letter, one success for each done job, in the order of their times."""
    cause = Cause("transient", "timeout", "at_once", "class")
    failure = Failure("exception", ("openai.APITimeoutError", "builtins.Exception"), "Request timed out.", status=504)
    first, last = (
        json.dumps(
            msgspec.to_builtins(
                Attempt(run, "failed", 0.0, 0.0, "worker-1", failure=failure, cause=cause, decision=decision)
            )
        )
        for run, decision in ((1, "Retried: a timeout heals by itself."), (2, "Buried: two tries, no success."))
    )
    insert = "INSERT INTO moves (job, move, at, run, attempts, state, who, why, attempt)"
    connection.execute(
        f"""{insert} SELECT seq, move, at, run, attempts, state, NULL, why, attempt FROM (
        SELECT seq, 'retried' AS move, created_at + 10 AS at, 1 AS run, 1 AS attempts, 'waiting' AS state,
            'Retried: a timeout heals by itself.' AS why, :first AS attempt FROM jobs WHERE state = 'dead'
        UNION ALL SELECT seq, 'buried', updated_at, 2, 2, 'dead', 'Buried: two tries, no success.', :last FROM jobs
            WHERE state = 'dead'
        UNION ALL SELECT seq, 'succeeded', updated_at, 1, 1, 'done', NULL, NULL FROM jobs WHERE state = 'done'
        UNION ALL SELECT seq, 'held_back', updated_at, 1, 0, 'held', 'Nobody can tell.', NULL FROM jobs
            WHERE state = 'held'
        UNION ALL SELECT seq, 'cancelled', updated_at, 1, 1, 'discarded', 'not wanted', NULL FROM jobs
            WHERE state = 'discarded'
        ) ORDER BY at""",
        {"first": first, "last": last},
    )


def _groups(connection: apsw.Connection) -> None:
    connection.execute(
        """INSERT INTO groups (fingerprint, first_at, last_at, buried, route, error_class, detail, error, sample)
        SELECT fingerprint, min(created_at), max(updated_at), count(*), route, error_class, detail, error, id
        FROM jobs WHERE state = 'dead' GROUP BY fingerprint"""
    )
    for strategy, worked, failed in (("wait", 20, 4), ("other_model", 3, 9)):
        connection.execute("INSERT INTO lessons SELECT fingerprint, ?, ?, ? FROM groups", (strategy, worked, failed))


_HOURLY = (("enqueued", "true"), ("succeeded", "state = 'done'"), ("retried", "state = 'dead'"),
           ("buried", "state = 'dead'"))  # fmt: skip
"""Which moves the jobs of a state have behind them."""


def _tallies(connection: apsw.Connection, now: float) -> None:
    """What the store adds up while it writes: by the hour, by the day, by the minute of the last day."""
    for move, where in _HOURLY:
        failed = "ifnull(error_class, ''), ifnull(detail, '')" if "dead" in where else "'', ''"
        connection.execute(
            f"""INSERT INTO tallies SELECT CAST(updated_at AS INTEGER) / 3600, route, '{move}', {failed}, count(*)
            FROM jobs WHERE {where} GROUP BY 1, 2, 4, 5"""
        )
        connection.execute(
            f"""INSERT INTO minutes SELECT CAST(updated_at AS INTEGER) / 60, route, '{move}', count(*)
            FROM jobs WHERE {where} AND updated_at > ? GROUP BY 1, 2""",
            (now - 86_400,),
        )
    connection.execute("INSERT INTO days SELECT hour / 24, route, move, sum(number) FROM tallies GROUP BY 1, 2, 3")
    connection.execute(
        """INSERT INTO failure_days SELECT hour / 24, route, move, error_class, detail, sum(number) FROM tallies
        WHERE error_class <> '' GROUP BY 1, 2, 3, 4, 5"""
    )
    # What died in an hour and is dead now, and as many again that came back by themselves or by a person.
    for what, part in (("died", 2), ("auto", 3), ("person", 6)):
        connection.execute(
            """INSERT INTO outcomes SELECT hour, route, ?, '', sum(number) * 2 / ? + 1, sum(number) * 1200.0
            FROM tallies WHERE move = 'buried' GROUP BY 1, 2""",
            (what, part),
        )
    connection.execute(
        """INSERT INTO outcome_days SELECT hour / 24, route, what, name, sum(number), sum(seconds) FROM outcomes
        GROUP BY 1, 2, 3, 4"""
    )


def _documents(connection: apsw.Connection, jobs: int, now: float) -> None:
    def put(kind: str, key: str, value: object) -> None:
        connection.execute(
            "INSERT INTO docs (kind, key, value) VALUES (?, ?, ?)", (kind, key, msgspec.json.encode(value))
        )

    for number in range(10):
        key = f"host:api-{number}.example.org"
        state = ("open", "half_open", "closed")[number % 3]
        put("breaker", key, Breaker(key, state, "timeout", now - 60, 30.0, now + 30, 10.0, error="timed out"))
    put("queue", "queue-03", {"paused": True, "who": "anna", "why": "the receiver is away", "at": now - 3_600})
    for start in range(200):
        ids = [
            row[0] for row in connection.execute("SELECT id FROM jobs WHERE seq > ? LIMIT 4", (start * jobs // 250,))
        ]
        steps = tuple(
            FlowStep(f"step-{place}", id, "task-01", (f"step-{place - 1}",) if place else ())
            for place, id in enumerate(ids)
        )
        put("workflow", ids[0], Flow(ids[0], f"flow-{start % 5}", steps, "shape", now - start * 60))
