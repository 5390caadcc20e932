"""The table of moves, arrow by arrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive.core import lifecycle
from redrive.core.job import HOLD_REASONS, Attempt, Cause, Failure, Job, State
from redrive.core.lifecycle import MAX_GRANTS, MOVES, Transition, diagram, legal_pairs
from redrive.errors import IllegalMove
from tests.stores.jobs import T0, a_job

W, R, H, DONE, DEAD, DISCARDED, PURGED = State
FAILURE = Failure("exception", ("shop.OutOfStock",), "none left")
CAUSE = Cause("transient", "network", "at_once", "class_table")
ATTEMPT = Attempt(1, "failed", T0, T0 + 1, "w1", failure=FAILURE, cause=CAUSE, decision="because")
TROUBLE: dict[str, Any] = {"failure": FAILURE, "cause": CAUSE, "fingerprint": "f" * 16}


def job_in(state: State, **fields: Any) -> Job:
    own: dict[State, dict[str, Any]] = {
        R: {"token": "t", "worker": "w1", "started_at": T0, "run": 1},
        H: {"because": "deferred", "held_at": T0},
        DEAD: {"because": "permanent", "lane": "manual", "recommendation": "x", "error_class": "E", "error": "E: x"},
        DISCARDED: {"because": "cancelled"},
    }
    return a_job(state=state, **{**own.get(state, {}), **fields})


ARROWS: dict[str, Callable[[Job], Transition]] = {
    "succeeded": lambda job: lifecycle.succeeded(job, T0 + 1, '"r"', ATTEMPT),
    "retried": lambda job: lifecycle.retried(job, T0 + 1, run_at=T0 + 9, allowed=5, attempt=ATTEMPT, **TROUBLE),
    "snoozed": lambda job: lifecycle.snoozed(job, T0 + 1, run_at=T0 + 9, attempt=ATTEMPT),
    "released": lambda job: lifecycle.released(job, T0 + 1, ATTEMPT),
    "held_back": lambda job: lifecycle.held_back(job, T0 + 1, because="approval", why="asks"),
    "unblocked": lambda job: lifecycle.unblocked(job, T0 + 1, who="ann"),
    "buried": lambda job: lifecycle.buried(
        job, T0 + 1, because="permanent", why="no", recommendation="look", attempt=ATTEMPT, **TROUBLE
    ),
    "redriven": lambda job: lifecycle.redriven(job, T0 + 1, max_attempts=5, who="ann", why=None, run_at=T0 + 1),
    "rerouted": lambda job: lifecycle.rerouted(job, T0 + 1, lane="delayed", who="ann", why=None),
    "deferred": lambda job: lifecycle.deferred(job, T0 + 1, owner="ann", until=T0 + 99, who="ann", why=None),
    "recalled": lambda job: lifecycle.recalled(job, T0 + 1, who="ann", why=None),
    "resolved": lambda job: lifecycle.resolved(job, T0 + 1, who="ann", why="it landed"),
    "cancelled": lambda job: lifecycle.cancelled(job, T0 + 1, who="ann", why=None),
    "discarded": lambda job: lifecycle.discarded(job, T0 + 1, who="ann", why=None),
    "restored": lambda job: lifecycle.restored(job, T0 + 1, who="ann", why=None),
    "purged": lambda job: lifecycle.purged(job, T0 + 1, who="ann", why=None),
}
LEGAL: dict[str, tuple[set[State], State]] = {
    "succeeded": ({R}, DONE),
    "retried": ({R}, W),
    "snoozed": ({R}, W),
    "released": ({R}, W),
    "held_back": ({W, R}, H),
    "unblocked": ({H}, W),
    "buried": ({W, R, H}, DEAD),
    "redriven": ({DEAD}, W),
    "rerouted": ({DEAD}, DEAD),
    "deferred": ({DEAD}, H),
    "recalled": ({W, H}, DEAD),
    "resolved": ({H, DEAD}, DONE),
    "cancelled": ({W, R, H}, DISCARDED),
    "discarded": ({DEAD}, DISCARDED),
    "restored": ({DISCARDED}, DEAD),
    "purged": ({DEAD, DISCARDED}, PURGED),
}
"""The lifecycle as it was designed, written down a second time on purpose."""
MADE_ELSEWHERE = {"enqueued", "imported", "claimed"}


def test_every_move_of_the_table_has_an_arrow() -> None:
    assert set(MOVES) == set(ARROWS) | MADE_ELSEWHERE
    assert set(ARROWS) == set(LEGAL)
    assert all(getattr(lifecycle, name, None) for name in ARROWS)


@pytest.mark.parametrize(
    ("name", "source"), [(name, source) for name, (legal, _) in LEGAL.items() for source in sorted(legal)]
)
def test_legal_moves(name: str, source: State) -> None:
    job = job_in(source)
    move = ARROWS[name](job)
    assert (move.move, move.to, move.job) == (name, LEGAL[name][1], job)
    after = move.after(job.version + 1)
    assert (after.state, after.version, after.updated_at) == (LEGAL[name][1], job.version + 1, T0 + 1)
    assert (after.id, after.key, after.created_at) == (job.id, job.key, job.created_at)
    assert after.token is None


@pytest.mark.parametrize(
    ("name", "source"),
    [(name, source) for name, (legal, _) in LEGAL.items() for source in State if source not in legal],
)
def test_illegal_moves_are_refused_by_name(name: str, source: State) -> None:
    job = job_in(source)
    with pytest.raises(IllegalMove, match=name) as refused:
        ARROWS[name](job)
    assert refused.value.job_id == job.id
    assert source in str(refused.value)


def test_the_pairs_are_those_of_the_table() -> None:
    expected = {(source, to) for legal, to in LEGAL.values() for source in legal} | {(W, R)}
    assert set(legal_pairs()) == expected
    assert len(legal_pairs()) == len(expected)


def test_nothing_leaves_done_or_purged() -> None:
    assert not [pair for pair in legal_pairs() if pair[0] in (DONE, PURGED)]


def test_the_diagram_mentions_every_move_and_every_state() -> None:
    text = diagram()
    assert text.startswith("stateDiagram-v2")
    for move in MOVES.values():
        for source in move.sources:
            for to in move.to:
                assert f"{source or '[*]'} --> {to}: {move.name}" in text
    lines = text.splitlines()
    assert len(lines) == len(set(lines))


# ---- what the arrows write


def test_a_success_clears_earlier_trouble_and_counts() -> None:
    failed_before = job_in(R, attempts=2, error_class="E", error="E: x", category="transient", detail="network")
    after = ARROWS["succeeded"](failed_before).after(2)
    assert (after.attempts, after.result_json, after.result) == (3, '"r"', "r")
    assert (after.error_class, after.error, after.category, after.detail) == (None, None, None, None)
    assert after.history[-1] == ATTEMPT


def test_a_retry_counts_one_attempt_and_keeps_the_trouble() -> None:
    after = ARROWS["retried"](job_in(R, attempts=1)).after(2)
    assert (after.attempts, after.allowed, after.run_at, after.crashes) == (2, 5, T0 + 9, 0)
    assert (after.error_class, after.error, after.detail) == ("OutOfStock", "OutOfStock: none left", "network")
    assert after.first_failed_at == T0 + 1


def test_the_first_failure_is_remembered() -> None:
    after = ARROWS["retried"](job_in(R, first_failed_at=T0 - 50)).after(2)
    assert after.first_failed_at == T0 - 50


def test_a_crash_beside_others_costs_no_attempt_but_is_counted() -> None:
    crash = lifecycle.retried(
        job_in(R, attempts=1, crashes=1), T0 + 1, run_at=T0 + 1, allowed=5, attempt=ATTEMPT, costs_attempt=False,
        crashed=True, **TROUBLE,
    )  # fmt: skip
    after = crash.after(2)
    assert (after.attempts, after.crashes) == (1, 2)


@pytest.mark.parametrize("name", ["snoozed", "released", "held_back"])
def test_what_costs_no_attempt(name: str) -> None:
    after = ARROWS[name](job_in(R, attempts=2)).after(2)
    assert (after.attempts, after.run) == (2, 1)


def test_a_released_job_runs_again_at_once() -> None:
    assert ARROWS["released"](job_in(R, run_at=T0 - 5)).after(2).run_at == T0 - 5
    assert ARROWS["released"](job_in(R, run_at=T0 + 50)).after(2).run_at == T0 + 1


def test_burying_a_run_counts_it_and_burying_a_waiting_job_does_not() -> None:
    assert ARROWS["buried"](job_in(R, attempts=2)).after(2).attempts == 3
    waiting = lifecycle.buried(job_in(W, attempts=2), T0, because="unroutable", why="x", recommendation="y", **TROUBLE)
    assert waiting.after(2).attempts == 2


def test_a_burial_says_why_where_and_what_to_do() -> None:
    after = ARROWS["buried"](job_in(R)).after(2)
    assert (after.because, after.lane, after.recommendation) == ("permanent", "manual", "look")
    assert (after.fingerprint, after.error) == ("f" * 16, "OutOfStock: none left")


def test_held_time_adds_up() -> None:
    first = ARROWS["held_back"](job_in(W)).after(2)
    assert (first.held_at, first.because) == (T0 + 1, "approval")
    back = lifecycle.unblocked(first, T0 + 31).after(3)
    assert (back.held_seconds, back.held_at, back.run_at) == (30.0, None, T0 + 31)
    again = lifecycle.held_back(back, T0 + 40, because=HOLD_REASONS[0], why="again").after(4)
    dead = lifecycle.buried(
        again, T0 + 45, because="outcome_unknown", why="a week", recommendation="look", **TROUBLE
    ).after(5)
    assert dead.held_seconds == 35.0


def test_a_clock_that_went_back_takes_no_held_time_away() -> None:
    held = job_in(H, held_at=T0 + 100, held_seconds=5.0)
    assert lifecycle.unblocked(held, T0).after(2).held_seconds == 5.0


def test_a_redrive_keeps_the_attempts_that_are_left() -> None:
    after = ARROWS["redriven"](job_in(DEAD, attempts=1, allowed=5)).after(2)
    assert (after.attempts, after.allowed, after.grants) == (1, 5, 0)
    assert (after.because, after.error_class, after.first_failed_at) == (None, None, None)


@pytest.mark.behaviour("C33")
def test_three_grants_and_no_more() -> None:
    job = job_in(DEAD, attempts=5, allowed=5)
    for grant in range(1, MAX_GRANTS + 1):
        waiting = ARROWS["redriven"](job).after(2)
        assert (waiting.grants, waiting.allowed, waiting.attempts) == (grant, job.attempts + 5, job.attempts)
        job = msgspec.structs.replace(job, attempts=waiting.allowed, allowed=waiting.allowed, grants=waiting.grants)
    assert MAX_GRANTS == 3
    with pytest.raises(IllegalMove, match="3 times already"):
        ARROWS["redriven"](job)


def test_a_redrive_within_the_grants_is_never_refused() -> None:
    assert ARROWS["redriven"](job_in(DEAD, attempts=2, allowed=5, grants=MAX_GRANTS)).after(2).grants == MAX_GRANTS


def test_the_default_number_of_attempts_counts_where_none_was_fixed() -> None:
    after = ARROWS["redriven"](job_in(DEAD, attempts=5, allowed=None)).after(2)
    assert (after.allowed, after.grants) == (10, 1)


def test_a_restored_job_is_a_manual_dead_letter_with_everything_it_needs() -> None:
    after = ARROWS["restored"](job_in(DISCARDED)).after(2)
    assert (after.state, after.because, after.lane) == (DEAD, "restored", "manual")
    assert after.recommendation and after.category and after.detail and after.error_class


def test_purging_drops_the_contents_and_keeps_the_key() -> None:
    after = ARROWS["purged"](job_in(DEAD, key="k")).after(2)
    assert (after.payload, after.result, after.error, after.key) == (None, None, None, "k")


@pytest.mark.parametrize("name", ["redriven", "resolved", "discarded", "restored", "purged", "cancelled", "unblocked"])
def test_who_did_it_is_written_down(name: str) -> None:
    assert ARROWS[name](job_in(min(LEGAL[name][0]))).who == "ann"


def test_a_decision_changes_nothing_it_was_made_of() -> None:
    job = job_in(R)
    copy = msgspec.structs.replace(job)
    for arrow in ("succeeded", "retried", "buried"):
        ARROWS[arrow](job)
    assert job == copy


def test_only_what_was_deferred_is_recalled() -> None:
    with pytest.raises(IllegalMove, match="not deferred"):
        lifecycle.recalled(job_in(H, because="approval"), T0, who="ann", why=None)


def test_a_deferred_job_keeps_its_trouble_and_comes_back_with_it() -> None:
    dead = job_in(DEAD, owner="ceo", fingerprint="f" * 16)
    held = lifecycle.deferred(dead, T0, owner="ann", until=T0 + 99, who="ann", why="after the release").after(2)
    assert (held.because, held.held_for, held.owner, held.run_at) == ("deferred", "permanent", "ann", T0 + 99)
    assert (held.error, held.fingerprint, held.lane) == (dead.error, dead.fingerprint, dead.lane)
    back = lifecycle.recalled(held, T0 + 99, who="scheduler", why=None).after(3)
    assert (back.because, back.held_for, back.lane, back.deferrals) == ("permanent", None, "manual", 1)
