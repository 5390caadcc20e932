"""What really happened, written outside the store, and the checker that compares the two.

A ledger is one append-only file that every process of a chaos run writes to; each line is synced before the writer goes
on. `audit` then proves, against the store:

- what was accepted is stored, and what is stored was offered by somebody;
- no job was completed twice, as the store tells it and as the workers told it, nor by anybody but its last starter;
- starts beyond those the history explains are at most kills × concurrency + expired leases;
- the books balance: the counters say what the records say, and every job is in one of the states.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from redrive import Job, Redrive, State
from redrive.core.store import Event


class Ledger:
    """Append-only; a line is on disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._pid = os.getpid()

    def write(self, *words: object) -> None:
        if self._handle is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._handle = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.write(self._handle, (" ".join(map(str, words)) + "\n").encode())
        os.fsync(self._handle)

    def offered(self, job_id: str) -> None:
        """Somebody is about to hand in this job; it may or may not be accepted."""
        self.write("offered", job_id)

    def accepted(self, job_ids: Iterable[str]) -> None:
        """Somebody was told that these jobs are safe."""
        self.write("\n".join(f"accepted {job_id}" for job_id in job_ids))

    def started(self, job_id: str, run: int) -> None:
        self.write("start", job_id, run, os.getpid(), _moment())

    def ended(self, job_id: str, run: int) -> None:
        self.write("end", job_id, run, os.getpid(), _moment())

    def completed(self, job_id: str) -> None:
        """A worker was told that its completion counts."""
        self.write("completed", job_id, os.getpid(), _moment())

    def effect(self, key: str) -> None:
        self.write("effect", key)

    def killed(self, pid: int) -> None:
        self.write("killed", pid)

    def note(self, *words: object) -> None:
        self.write("note", *words)

    def read(self) -> Books:
        return Books.of(self.path)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _moment() -> str:
    """Now, on the one monotonic clock that all processes of this machine share."""
    return f"{time.monotonic():.6f}"


@dataclass(slots=True)
class Books:
    """The ledger, read."""

    offered: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    starts: list[tuple[str, int, int]] = field(default_factory=list)
    """(job, run, pid), in order."""
    ends: list[tuple[str, int, int]] = field(default_factory=list)
    story: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Starts and ends together, in order: ("start" or "end", job, run, pid)."""
    completed: Counter[str] = field(default_factory=Counter)
    completed_by: dict[str, int] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Books:
        books = cls()
        text = path.read_text() if path.exists() else ""
        for line in text.split("\n")[:-1]:  # what follows the last newline is a line that a kill tore
            books._enter(*line.split(" "))
        return books

    def _enter(self, what: str, *words: str) -> None:
        match what:
            case "offered":
                self.offered.add(words[0])
            case "accepted":
                self.accepted.add(words[0])
            case "start" | "end":
                run = (words[0], int(words[1]), int(words[2]))
                (self.starts if what == "start" else self.ends).append(run)
                self.story.append((what, *run))
            case "completed":
                self.completed[words[0]] += 1
                self.completed_by[words[0]] = int(words[1])
            case "effect":
                self.effects[words[0]] += 1
            case "killed":
                self.kills += 1
            case "note":
                self.notes.append(" ".join(words))

    def started(self, job_id: str) -> int:
        return sum(job == job_id for job, _, _ in self.starts)


@dataclass(slots=True)
class Audit:
    """What the checker saw, and everything that is wrong with it."""

    jobs: dict[str, Job]
    books: Books
    problems: list[str]
    extra_starts: int
    states: Counter[str]

    def assert_sound(self) -> Audit:
        print(self)
        assert not self.problems, "\n".join(self.problems)
        return self

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return (
            f"{len(self.books.accepted)} accepted; {states}; {len(self.books.starts)} starts, "
            f"{self.extra_starts} of them extra; {self.books.kills} kills; {len(self.problems)} problems"
        )


async def audit(rd: Redrive, ledger: Ledger, *, concurrency: int = 0, expiries: int = 0, ended: bool = True) -> Audit:
    """Compare ledger and store. With `ended`, no job may be waiting or running any more."""
    books = ledger.read()
    jobs = {job.id: job async for job in rd.store.scan()}
    completions = Counter(event.job_id for event in await all_events(rd) if event.move == "succeeded")
    states = Counter(str(job.state) for job in jobs.values())
    extra = _extra_starts(books, jobs)
    problems = [
        *_lost_or_unexplained(books, jobs),
        *_twice("the store says completed", completions),
        *_twice("workers were told completed", books.completed),
        *_twice("outside effect", books.effects),
        *_by_a_stranger(books),
        *await _unbalanced(rd, states),
    ]
    most = books.kills * concurrency + expiries
    if extra > most:
        problems.append(f"{extra} extra starts, at most {most} can be explained")
    if ended:
        problems += [f"job {job.id} is {job.state}, not ended" for job in jobs.values() if not _over(job)]
    return Audit(jobs, books, problems, extra, states)


async def all_events(rd: Redrive) -> list[Event]:
    found: list[Event] = []
    cursor = ""
    while page := await rd.store.events(cursor):
        found += page
        cursor = page[-1].cursor
    return found


def _over(job: Job) -> bool:
    return job.ended or job.state is State.held


def _extra_starts(books: Books, jobs: dict[str, Job]) -> int:
    """Starts whose run did not come to a settled end, and second starts of one run.

    A claimed job that was given back before it began settles a run without a start. The history of a purged job is
    gone, so it explains itself.
    """
    purged = {job.id for job in jobs.values() if job.state is State.purged}
    settled = {(job.id, attempt.run) for job in jobs.values() for attempt in job.history if attempt.outcome != "lost"}
    starts = Counter((job, run) for job, run, _ in books.starts if job not in purged)
    return starts.total() - len(settled & starts.keys())


def _lost_or_unexplained(books: Books, jobs: dict[str, Job]) -> list[str]:
    known = books.offered | books.accepted
    lost = [f"job {id} was accepted and is not stored" for id in sorted(books.accepted - jobs.keys())]
    return lost + [f"job {id} is stored, and nobody offered it" for id in sorted(jobs.keys() - known)]


def _twice(what: str, counts: Counter[str]) -> list[str]:
    return [f"{what} {count} times: {name}" for name, count in counts.items() if count > 1]


def _by_a_stranger(books: Books) -> list[str]:
    last = {job: pid for job, _, pid in sorted(books.starts, key=lambda start: start[1])}
    return [
        f"job {job} was completed by process {pid}, which had lost it to {last[job]}"
        for job, pid in books.completed_by.items()
        if job in last and last[job] != pid
    ]


async def _unbalanced(rd: Redrive, states: Counter[str]) -> list[str]:
    stats = await rd.stats()
    totals = {state: stats["totals"][state] for state in State if stats["totals"][state]}
    problems = []
    if totals != states:
        problems.append(f"the counters say {totals}, the records {dict(states)}")
    if stats["accepted"] != states.total() + stats["totals"]["spooled"]:
        problems.append(f"{stats['accepted']} accepted, but {states.total()} stored")
    return problems
