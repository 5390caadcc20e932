"""What a grant covers: the matrix of consent, on values alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.core.change import AddInstruction, CompressContext, SetModel, encode, make_edit
from redrive.core.consent import Approval, Grant, covers, find_grant, subject_of, wish_of
from redrive.core.job import Attempt, Job
from tests.stores.jobs import T0, a_job


def refund(**fields: Any) -> Job:
    said: dict[str, Any] = {"task": "refund", "payload": '{"amount":900}', "session_id": "s1", "run": 1}
    return a_job(**said | fields)


def yes(**fields: Any) -> Grant:
    said: dict[str, Any] = {"id": "g1", "session_id": "s1", "scope": "refund", "at": T0, "by": "ann"}
    return Grant(**said | fields)


def allowed(grant: Grant, job: Job, *, label: str | None = None, now: float = T0 + 10) -> bool:
    return covers(grant, wish_of(job, label), now)


FIRST = refund()
AGAIN = refund(run=2, history=(Attempt(1, "failed"),))


@pytest.mark.behaviour("003-48", "B12")
@pytest.mark.parametrize(
    ("grant", "covered"),
    [
        (yes(), True),
        (yes(scope="money"), True),
        (yes(scope="other"), False),
        (yes(scope="refun"), False),
        (yes(scope=""), False),
        (yes(expires_at=T0 + 10.001), True),
        (yes(expires_at=T0 + 10), False),
        (yes(expires_at=T0), False),
        (yes(revoked_at=T0 + 9), False),
        (yes(revoked_at=T0 + 9, expires_at=T0 + 99), False),
        (yes(agent="writer"), False),
        (yes(subject=subject_of(FIRST)), True),
        (yes(subject="0123456789abcdef"), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("job", [FIRST, AGAIN], ids=["first run", "replay"])
def test_an_individual_grant(grant: Grant, job: Job, covered: bool) -> None:
    """For a task or its label; a first run and a replay are the same to it."""
    assert allowed(grant, job, label="money") is covered


@pytest.mark.behaviour("B12")
@pytest.mark.parametrize(
    ("job", "covered"),
    [
        (FIRST, True),
        (AGAIN, False),
        (refund(run=1, history=(Attempt(1, "lost"),)), False),
        (refund(changes_json='[{"change":"edit","payload":{"amount":9000}}]'), False),
        (refund(agent="ann", changes_json='[{"change":"set_agent","agent":"ann"}]'), False),
    ],
    ids=["first run", "replay", "after a crash", "edited before it ran", "reassigned before it ran"],
)
def test_a_blanket_grant_does_not_carry_over_to_a_replay(job: Job, covered: bool) -> None:
    assert allowed(yes(scope="workflow", blanket=True), job) is covered


@pytest.mark.behaviour("B12")
def test_a_blanket_grant_ends_like_any_other() -> None:
    assert not allowed(yes(blanket=True, expires_at=T0 + 1), FIRST)
    assert not allowed(yes(blanket=True, revoked_at=T0 + 1), FIRST)


@pytest.mark.behaviour("B12")
def test_a_blanket_grant_for_one_agent_or_input_covers_no_other() -> None:
    assert allowed(yes(blanket=True, agent="writer"), refund(agent="writer"))
    assert not allowed(yes(blanket=True, agent="writer"), refund(agent="ann"))
    assert allowed(yes(blanket=True, subject=subject_of(FIRST)), FIRST)
    assert not allowed(yes(blanket=True, subject="0123456789abcdef"), FIRST)


@pytest.mark.behaviour("B12")
def test_a_label_covers_the_tasks_that_have_it_and_no_others() -> None:
    bundle = yes(scope="money")
    assert allowed(bundle, refund(), label="money")
    assert allowed(bundle, refund(task="charge"), label="money")
    assert not allowed(bundle, refund(task="charge"), label="notes")
    assert not allowed(bundle, refund(task="charge"))


@pytest.mark.parametrize(
    ("grant_agent", "job_agent", "covered"),
    [(None, None, True), (None, "writer", True), ("writer", "writer", True), ("writer", "ann", False),
     ("writer", None, False)],
)  # fmt: skip
def test_a_grant_may_be_for_one_agent(grant_agent: str | None, job_agent: str | None, covered: bool) -> None:
    assert allowed(yes(agent=grant_agent), refund(agent=job_agent)) is covered


def test_the_first_grant_that_covers_is_named() -> None:
    gone, other, good = yes(id="a", revoked_at=T0), yes(id="b", scope="x"), yes(id="c")
    found = find_grant([gone, other, good], wish_of(FIRST, None), T0 + 10)
    assert found is not None and found.id == "c"
    assert find_grant([gone, other], wish_of(FIRST, None), T0 + 10) is None
    assert find_grant([], wish_of(FIRST, None), T0 + 10) is None


# What is agreed to --------------------------------------------------------------------------------------------------


def test_the_subject_is_the_input_and_not_how_it_is_written() -> None:
    assert subject_of(refund(payload='{"a":1,"b":2}')) == subject_of(refund(payload='{"b": 2, "a": 1}'))


@pytest.mark.parametrize(
    "other",
    [
        refund(payload='{"amount":901}'),
        refund(payload='{"amount":"900"}'),
        refund(task="charge"),
        refund(changes_json=encode((make_edit({"amount": 9_000}, "ann", None),))),
    ],
    ids=["other number", "text", "other task", "edited"],
)
def test_other_work_is_another_subject(other: Job) -> None:
    assert subject_of(other) != subject_of(refund())


def test_an_edit_back_to_what_was_agreed_is_what_was_agreed() -> None:
    back = refund(payload='{"amount":1}', changes_json=encode((make_edit({"amount": 900}, "ann", None),)))
    assert subject_of(back) == subject_of(refund())


@pytest.mark.parametrize(
    "change", [SetModel("large"), CompressContext(80_000), AddInstruction("Be brief.")], ids=lambda c: type(c).__name__
)
def test_how_it_is_tried_again_is_not_what_was_agreed_to(change: Any) -> None:
    """A shorter context or another model is the same work: nobody is asked twice for it."""
    assert subject_of(refund(changes_json=encode((change,)))) == subject_of(refund())


# Answers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["open", "approved", "rejected", "expired"])
def test_only_a_yes_is_true(answer: str) -> None:
    assert bool(Approval("Refund?", T0, "subject", answer=answer)) is (answer == "approved")


def test_grants_and_questions_survive_being_written_down() -> None:
    for value in (yes(agent="a", subject="s", expires_at=T0 + 1, blanket=True, why="w"), Approval("Q?", T0, "s")):
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
