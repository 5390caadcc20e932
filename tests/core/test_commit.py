"""Commits: applied, stale and unknown are told apart in one place, and one loop decides anew."""

from collections.abc import Sequence

import pytest

from redrive.core.commit import TRIES, Proposal, commit, commit_each, commit_in_parts, decide_and_commit, try_commit
from redrive.core.lifecycle import cancelled
from redrive.core.store import Applied, Commit, Outcome, Put, Stale, Unknown
from redrive.errors import CommitUnknown, StaleJob, StoreBusy
from tests.stores.jobs import T0, a_job

PUT = Put("kind", "key", b"1")
MOVE = cancelled(a_job(), T0, who="ann", why="no longer wanted")


class Store:
    """Answers commits with these outcomes, in order, and then with the last one."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)
        self.calls: list[list[Commit]] = []

    async def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
        self.calls.append(list(commits))
        return [self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0] for _ in commits]


async def test_a_commit_is_applied_stale_or_raised() -> None:
    store = Store(Applied((7,)), Stale(), Unknown("cut off"))
    assert await commit(store, [MOVE], [PUT], what="it was done") == Applied((7,))  # type: ignore[arg-type]
    assert await commit(store, [MOVE], what="it was done") is None  # type: ignore[arg-type]
    with pytest.raises(CommitUnknown, match=r"did not confirm that it was done \(cut off\); check"):
        await commit(store, [MOVE], what="it was done")  # type: ignore[arg-type]
    assert store.calls[0] == [Commit((MOVE,), (PUT,))]


async def test_a_commit_that_is_only_tried_says_in_the_log_that_it_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    assert await try_commit(Store(Unknown("cut off")), puts=[PUT], what="x was noted") is None  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "did not confirm that x was noted" in record.getMessage()


async def test_each_move_is_its_own_commit_in_one_call() -> None:
    store = Store(Applied(), Stale(), Unknown())
    moves = [cancelled(a_job(), T0 + number, who="ann", why="old") for number in range(3)]
    assert await commit_each(store, moves) == moves[:1]  # type: ignore[arg-type]
    assert store.calls == [[Commit((move,)) for move in moves]]
    assert await commit_each(store, []) == [] and len(store.calls) == 1  # type: ignore[arg-type]


async def test_many_documents_are_committed_some_at_a_time() -> None:
    store = Store(Applied())
    await commit_in_parts(store, [PUT] * 5, what="they were written", size=2)  # type: ignore[arg-type]
    assert [len(whole.puts) for (whole,) in store.calls] == [2, 2, 1]


async def test_a_decision_is_made_anew_where_another_was_faster() -> None:
    store, looks = Store(Stale(), Applied((4,))), iter(range(10))

    async def decide() -> Proposal[int] | None:
        look = next(looks)
        return Proposal("job x", look, [MOVE], done="cancelled") if look else None  # the first look was too early

    assert await decide_and_commit(store, decide) == (2, (4,))  # type: ignore[arg-type]
    assert len(store.calls) == 2


async def test_a_decision_without_parts_writes_nothing() -> None:
    async def decide() -> Proposal[str]:
        return Proposal("job x", "as it is")

    assert await decide_and_commit(Store(Unknown()), decide) == ("as it is", ())  # type: ignore[arg-type]


async def test_a_decision_that_never_comes_to_its_turn_is_told() -> None:
    async def move() -> Proposal[None]:
        return Proposal("job x", None, [MOVE])

    async def write() -> Proposal[None]:
        return Proposal("document x", None, puts=[PUT])

    store = Store(Stale())
    with pytest.raises(StaleJob, match="job x keeps changing"):
        await decide_and_commit(store, move)  # type: ignore[arg-type]
    assert len(store.calls) == TRIES
    with pytest.raises(StoreBusy, match="document x keeps changing"):
        await decide_and_commit(store, write)  # type: ignore[arg-type]
    with pytest.raises(CommitUnknown, match="job x was changed"):
        await decide_and_commit(Store(Unknown()), move)  # type: ignore[arg-type]
