"""Checks what happened in a fleet, line by line of the ledger, and not only what was left at the end.

The ledger has what producers, workers and tasks saw, in the order in which they wrote it: `accepted`, `start`, `end`,
`completed`, `effect`. `told_by` adds what the store tells of each job afterwards: `settled` for every run in its
history, `final` for its state. `problems_in` reads nothing but these lines:

- every accepted job is there once and has ended;
- no run is settled twice, and no job has two runs that are done;
- whoever was told that his completion counts had started the job, has it in the store's history as done, and nobody
  started a later run of it, before or after: a stale completion is refused, and what is done does not run again;
- of two runs that overlapped in time at most one was completed;
- an outside effect happened once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redrive import Job, Redrive, State
from tests.chaos.ledger import Ledger

OVER = frozenset({"done", "dead", "held", "cancelled", "purged", "discarded"})


@dataclass(slots=True)
class Run:
    """One start of a job: which run, whose process, when."""

    run: int
    pid: int
    began: float
    ended: float | None = None


@dataclass(slots=True)
class Story:
    """Everything the ledger says of one job."""

    job: str
    accepted: int = 0
    runs: list[Run] = field(default_factory=list)
    told: list[tuple[int, float]] = field(default_factory=list)
    """Who was told that his completion counts, and when: (pid, time)."""
    settled: list[tuple[int, str]] = field(default_factory=list)
    final: list[str] = field(default_factory=list)

    def of(self, pid: int, before: float) -> Run | None:
        """The run that this process had begun last by then."""
        mine = [run for run in self.runs if run.pid == pid and run.began <= before]
        return mine[-1] if mine else None


def read(lines: Iterable[str]) -> tuple[dict[str, Story], Counter[str]]:
    """The stories of all jobs, and how often each effect happened."""
    stories: dict[str, Story] = {}
    effects: Counter[str] = Counter()
    for what, *words in (line.split(" ") for line in lines if line):
        if what == "effect":
            effects[words[0]] += 1
        elif what in ("accepted", "start", "end", "completed", "settled", "final"):
            _enter(stories.setdefault(words[0], Story(words[0])), what, words[1:])
    return stories, effects


def _enter(story: Story, what: str, words: Sequence[str]) -> None:
    match what:
        case "accepted":
            story.accepted += 1
        case "start":
            story.runs.append(Run(int(words[0]), int(words[1]), float(words[2])))
        case "end":
            run, pid = int(words[0]), int(words[1])
            for each in story.runs:
                if (each.run, each.pid) == (run, pid):
                    each.ended = float(words[2])
        case "completed":
            story.told.append((int(words[0]), float(words[1])))
        case "settled":
            story.settled.append((int(words[0]), words[1]))
        case "final":
            story.final.append(words[0])


def problems_in(lines: Iterable[str]) -> list[str]:
    """Everything that must not have happened, in words."""
    stories, effects = read(lines)
    problems = [f"effect {key} happened {count} times" for key, count in effects.items() if count > 1]
    for story in stories.values():
        problems += (f"job {story.job}: {problem}" for problem in _of_one(story))
    return problems


def _of_one(story: Story) -> Iterator[str]:
    yield from _of_the_end(story)
    yield from _of_settling(story)
    yield from _of_completions(story)


def _of_the_end(story: Story) -> Iterator[str]:
    if len(story.final) > 1:
        yield f"it is stored {len(story.final)} times"
    if story.accepted and not story.final:
        yield "it was accepted and is not stored"
    if story.final and story.final[0] not in OVER:
        yield f"it has not ended: {story.final[0]}"
    if story.accepted and story.final == ["done"] and not any(outcome == "done" for _, outcome in story.settled):
        yield "it is done, and no run of it was"


def _of_settling(story: Story) -> Iterator[str]:
    for run, count in Counter(run for run, outcome in story.settled if outcome != "lost").items():
        if count > 1:
            yield f"run {run} was settled {count} times"
    done = [run for run, outcome in story.settled if outcome == "done"]
    if len(done) > 1:
        yield f"runs {done} are all done"
    later = sorted({run.run for run in story.runs if done and run.run > min(done)})
    if later:
        yield f"run {min(done)} was done, and runs {later} were started"


def _of_completions(story: Story) -> Iterator[str]:
    if len(story.told) > 1:
        yield f"{len(story.told)} completions were told as counted"
    counted: dict[int, Run] = {}
    for pid, at in story.told:
        run = story.of(pid, at)
        if run is None:
            yield f"process {pid} completed it and had not started it"
            continue
        counted[id(run)] = run
        if story.final and (run.run, "done") not in story.settled:
            yield f"run {run.run} was told as completed, and the store has it as {dict(story.settled).get(run.run)}"
        if any(other.run > run.run for other in story.runs):
            yield f"run {run.run} of process {pid} was completed although a later one was started"
    runs = list(counted.values())
    if any(_overlap(one, other) for number, one in enumerate(runs) for other in runs[number + 1 :]):
        yield "two runs at the same time were both completed"


def _overlap(one: Run, other: Run) -> bool:
    forever = float("inf")
    return one.began < (other.ended or forever) and other.began < (one.ended or forever)


# ---- what the store tells


async def told_by(rd: Redrive) -> list[str]:
    """What became of every job, as the store tells it now."""
    return [line async for job in rd.store.scan() for line in lines_of(job)]


def lines_of(job: Job) -> list[str]:
    settled = [f"settled {job.id} {attempt.run} {attempt.outcome}" for attempt in job.history]
    return [*settled, f"final {job.id} {State(job.state).value}"]


def lines_in(path: Path) -> list[str]:
    """Whole lines: what follows the last newline was torn by a kill."""
    return path.read_text().split("\n")[:-1]


async def assert_history(rd: Redrive, ledger: Ledger) -> None:
    """Prove the whole story of a run, once nothing happens any more."""
    lines = [*lines_in(ledger.path), *await told_by(rd)]
    counted = Counter(line.partition(" ")[0] for line in lines if line)
    print("history:", ", ".join(f"{count} {what}" for what, count in sorted(counted.items())))
    problems = problems_in(lines)
    of = {problem.split(" ")[1].rstrip(":") for problem in problems[:3]}
    shown = [line for line in lines if of & set(line.split(" "))]
    assert not problems, "\n".join([f"{len(problems)} problems", *problems[:10], "", *shown])
