"""Commits to a store: the only callers of `store.apply` beside what wraps a store, and the only retry loop.

A commit is applied, stale (another process was faster) or unknown (the store cannot say). `commit` raises the unknown;
`try_commit` logs it, for callers that look at the store again by themselves; `decide_and_commit` decides anew where a
commit was stale.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.store import MAX_PARTS, Applied, Commit, Guard, Outcome, Put, Store, Unknown
from redrive.errors import CommitUnknown, StaleJob, StoreBusy

log = logging.getLogger("redrive.store")
T = TypeVar("T")
TRIES: Final = 25
"""How often a decision is made anew when another process was faster."""


async def apply_each(store: Store, commits: Sequence[Commit]) -> list[tuple[Commit, Outcome]]:
    """Applies each commit on its own, all in one call, and pairs it with its outcome."""
    return list(zip(commits, await store.apply(commits), strict=True)) if commits else []


async def commit_each(store: Store, moves: Iterable[Transition]) -> list[Transition]:
    """Commits each move on its own, all in one call, and lists those that were applied.

    A move that was not applied is left to the next look: another process was faster, or the store cannot say.
    """
    answered = await apply_each(store, [Commit((move,)) for move in moves])
    return [whole.transitions[0] for whole, outcome in answered if isinstance(outcome, Applied)]


async def commit(
    store: Store, moves: Iterable[Transition] = (), puts: Iterable[Put] = (), guards: Iterable[Guard] = (), *, what: str
) -> Applied | None:
    """Commits these parts together; None where another process was faster, and nothing was written.

    `what` says in words what the commit does ("job x was cancelled"). Raises `CommitUnknown` where the store cannot
    say whether that happened.
    """
    ((_, outcome),) = await apply_each(store, [Commit(tuple(moves), tuple(puts), tuple(guards))])
    _check_known(outcome, what)
    return outcome if isinstance(outcome, Applied) else None


def _check_known(outcome: Outcome, what: str) -> None:
    if isinstance(outcome, Unknown):
        problem = f" ({outcome.problem})" if outcome.problem else ""
        raise CommitUnknown(
            f"the store did not confirm that {what}{problem}; check, and repeat it if it did not happen"
        )


async def try_commit(
    store: Store, moves: Iterable[Transition] = (), puts: Iterable[Put] = (), *, what: str
) -> Applied | None:
    """Does the same as `commit` for a caller that looks at the store again: the unknown is logged and None."""
    try:
        return await commit(store, moves, puts, what=what)
    except CommitUnknown as error:
        log.warning("%s", error)
        return None


async def commit_in_parts(store: Store, puts: Sequence[Put], *, what: str, size: int = MAX_PARTS) -> None:
    """Commits many documents, so many at a time: for writes that are harmless to repeat."""
    for start in range(0, len(puts), size):
        await commit(store, puts=puts[start : start + size], what=what)


class Proposal(NamedTuple, Generic[T]):
    """Holds one decision: what to write, and the value that the caller is given once it is written."""

    subject: Job | str
    """What changes: a job, or anything else in words."""
    value: T
    moves: Sequence[Transition] = ()
    puts: Sequence[Put] = ()
    done: str = "changed"
    """What happens to the subject: it "was cancelled"."""


async def decide_and_commit(
    store: Store, decide: Callable[[], Awaitable[Proposal[T] | None]]
) -> tuple[T, tuple[int, ...]]:
    """Commits what `decide` makes of the store as it is now, decided anew where another process was faster.

    `decide` reads what it needs at each call. A proposal without parts writes nothing; None asks for another look.
    Returns the proposal's value and the new fences of its moves.
    """
    busy: StaleJob | StoreBusy = StoreBusy("what is looked at keeps changing, nothing was written; try again")
    for _ in range(TRIES):
        proposal = await decide()
        if proposal is None:
            continue
        subject, value, moves, puts, done = proposal
        if not moves and not puts:
            return value, ()
        ((_, outcome),) = await apply_each(store, [Commit(tuple(moves), tuple(puts))])
        if isinstance(outcome, Applied):
            return value, outcome.fences
        subject = subject if isinstance(subject, str) else f"job {subject.short_id}"
        _check_known(outcome, f"{subject} was {done}")
        problem = f"{subject} keeps changing, nothing was written; try again"
        busy = StaleJob(problem, job_id=moves[0].job.id) if moves else StoreBusy(problem)
    raise busy
