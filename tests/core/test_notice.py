"""Notices as values: who is told what, what is the same, and how much is told at once."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import lifecycle
from redrive.core.job import Attempt, Failure, Job, State
from redrive.core.lifecycle import Transition
from redrive.core.notice import (
    BURST,
    FOLD_SECONDS,
    Notice,
    NotifyPolicy,
    Paged,
    SentMessage,
    check_notify,
    digest_of_content,
    is_dealt_with,
    notice_for,
    page_due,
    pause_after,
    plan,
    waiting_key,
    with_words,
    write_page,
)
from redrive.core.store import Group
from redrive.errors import InvalidInput
from redrive.failures.classify import cause_of

NOW = 1_800_000_000.0
_numbers = count()


def job(state: State = State.running, reason: str = "retry", session: str | None = "s", **fields: Any) -> Job:
    said = {"run": 3, "attempts": 2, "allowed": 5, "token": "t" if state is State.running else None} | fields
    return Job(
        id="0190" + "a" * 28, queue="mail", task="publish", agent=None, state=state, priority=2, run_at=NOW, version=4,
        created_at=NOW - 60, updated_at=NOW, payload="{}", reason=reason, session_id=session, **said,
    )  # fmt: skip


def succeeded(of: Job, **extra: Any) -> Transition:
    return lifecycle.succeeded(of, NOW, '"fine"', **extra)


def buried(of: Job, lane: Any = "manual", **extra: Any) -> Transition:
    failure = Failure("exception", ("builtins.TimeoutError",), "no answer")
    return lifecycle.buried(
        of, NOW, because="attempts_exhausted", why="It failed 5 times", recommendation="Look at the receiver.",
        failure=failure, cause=cause_of("timeout", "t", failure), fingerprint="f" * 16, lane=lane,
        attempt=Attempt(of.run, "failed", failure=failure), **extra,
    )  # fmt: skip


def held(of: Job, because: str) -> Transition:
    return lifecycle.held_back(of, NOW, because=because, why="It asks: send it?", recommendation="redrive approve X")


def told(move: Transition) -> tuple[str, str, str] | None:
    notice = notice_for(move)
    return (notice.kind, notice.audience, notice.level) if notice else None


# ---- who is told what


@pytest.mark.behaviour("003-62", "003-63")
@pytest.mark.parametrize(
    ("reason", "success", "failed"),
    [
        ("direct", None, None),
        ("retry", ("retry_success", "session", "acknowledgement"), ("retry_exhausted", "both", "actionable")),
        (
            "deferred_submit",
            ("deferred_done", "session", "acknowledgement"),
            ("deferred_failed", "session", "actionable"),
        ),
        ("scheduled_job", None, ("scheduled_failed", "session", "actionable")),
    ],
)  # fmt: skip
def test_by_reason(reason: str, success: Any, failed: Any) -> None:
    assert told(succeeded(job(reason=reason))) == success
    assert told(buried(job(reason=reason))) == failed


@pytest.mark.parametrize(
    ("reason", "failed"),
    [("direct", None), ("retry", "user"), ("deferred_submit", None), ("scheduled_job", None)],
)
def test_without_a_session_only_people_can_be_told(reason: str, failed: str | None) -> None:
    notice = notice_for(buried(job(reason=reason, session=None)))
    assert (notice.audience if notice else None) == failed
    assert notice_for(succeeded(job(reason=reason, session=None))) is None


def test_a_reason_nobody_knows_is_told_rather_than_not() -> None:
    assert told(buried(job(reason="new_reason"))) == ("retry_exhausted", "both", "actionable")


def test_the_reason_that_the_move_itself_gives_counts() -> None:
    """A call whose caller has gone becomes a retry in the move that says so."""
    move = succeeded(job(reason="direct"))
    assert notice_for(move) is None
    assert told(msgspec.structs.replace(move, set={**move.set, "reason": "retry"})) == (
        "retry_success", "session", "acknowledgement",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("because", "kind", "audience", "alone"),
    [
        ("consent", "needs_consent", "session", "user"),
        ("approval", "needs_approval", "session", "user"),
        ("outcome_unknown", "needs_check", "both", "user"),
    ],
)
@pytest.mark.parametrize("reason", ["direct", "retry", "scheduled_job"])
def test_a_question_reaches_whoever_can_answer(because: str, kind: str, audience: str, alone: str, reason: str) -> None:
    assert told(held(job(reason=reason), because)) == (kind, audience, "actionable")
    assert told(held(job(reason=reason, session=None), because)) == (kind, alone, "actionable")
    notice = notice_for(held(job(reason=reason), because))
    assert notice is not None and "redrive approve" in notice.text and "It asks" in notice.text


@pytest.mark.parametrize("because", ["circuit_open", "blocked", "deferred"])
def test_what_ends_by_itself_asks_nobody(because: str) -> None:
    assert notice_for(held(job(), because)) is None


def test_moves_in_between_tell_nobody_anything() -> None:
    dead = buried(job()).after(5)
    for move in (
        lifecycle.snoozed(job(), NOW, run_at=NOW, attempt=Attempt(3, "snoozed")),
        lifecycle.redriven(dead, NOW, max_attempts=5, who="ann", why=None, run_at=NOW),
        lifecycle.discarded(dead, NOW, who="ann", why="old"),
    ):
        assert notice_for(move) is None, move.move


@pytest.mark.behaviour("003-4")
def test_a_letter_that_comes_back_by_itself_has_not_failed_for_good() -> None:
    """Else one operation would be told as exhausted, and an hour later as done."""
    assert notice_for(buried(job(attempts=2, allowed=5), lane="delayed")) is None
    last = buried(job(attempts=4, allowed=5), lane="delayed")
    assert told(last) == ("retry_exhausted", "both", "actionable"), "nothing is left: it will not come back"
    waits = buried(job(attempts=2, allowed=5), lane="delayed").after(5)
    rerouted = lifecycle.rerouted(waits, NOW, lane="manual", who="ann", why=None)
    assert told(rerouted) == ("retry_exhausted", "both", "actionable")


def test_ends_that_people_made() -> None:
    cancelled = notice_for(lifecycle.cancelled(job(State.waiting), NOW, who="ann", why="no longer wanted"))
    assert cancelled is not None and (cancelled.kind, cancelled.level) == ("cancelled", "acknowledgement")
    assert "ann" in cancelled.text and "no longer wanted" in cancelled.text
    from_held = lifecycle.resolved(held(job(), "outcome_unknown").after(5), NOW, who="ann", why="it is there")
    assert told(from_held) == ("retry_success", "session", "acknowledgement")
    from_dead = lifecycle.resolved(buried(job()).after(5), NOW, who="ann", why="it is there")
    assert told(from_dead) == ("resolved", "session", "acknowledgement"), "exhausted was told before"
    scheduled = lifecycle.cancelled(job(State.waiting, "scheduled_job"), NOW, who="ann", why=None)
    assert notice_for(scheduled) is None, "nobody waits for it"


@pytest.mark.behaviour("003-4")
def test_the_same_end_is_the_same_notice_and_a_fresh_start_another() -> None:
    first, again = notice_for(buried(job(run=3))), notice_for(buried(job(run=4)))
    assert first is not None and again is not None and first.id == again.id
    fresh = notice_for(buried(job(run=9, fresh_from=5)))
    assert fresh is not None and fresh.id != first.id


@pytest.mark.behaviour("B17")
def test_success_is_born_resolved_and_exhaustion_pending() -> None:
    good, bad = notice_for(succeeded(job())), notice_for(buried(job()))
    assert good is not None and (good.status, good.priority, good.actionable) == ("resolved", "normal", False)
    assert bad is not None and (bad.status, bad.priority, bad.actionable) == ("pending", "high", True)
    for sign in ("no answer", "Look at the receiver.", "redrive dead show"):
        assert sign in bad.text


def test_words_are_bounded() -> None:
    long = "x" * 10_000
    notice = notice_for(lifecycle.cancelled(job(State.waiting), NOW, who="ann", why=long))
    assert notice is not None and len(notice.text) < 2_100


def test_what_counts_as_dealt_with() -> None:
    exhausted, question = notice_for(buried(job())), notice_for(held(job(), "consent"))
    success = notice_for(succeeded(job()))
    assert exhausted is not None and question is not None and success is not None
    dead, waits = buried(job()).after(5), held(job(), "consent").after(5)
    assert not is_dealt_with(exhausted, dead)
    assert not is_dealt_with(question, waits)
    assert is_dealt_with(success, dead)
    redriven = lifecycle.redriven(dead, NOW, max_attempts=5, who="ann", why=None, run_at=NOW).after(6)
    assert is_dealt_with(exhausted, redriven)
    assert is_dealt_with(exhausted, msgspec.structs.replace(dead, fresh_from=3)), "dead again, and told again"
    assert is_dealt_with(question, lifecycle.unblocked(waits, NOW).after(6))
    assert is_dealt_with(question, msgspec.structs.replace(waits, run=4)), "it asks again, in a new notice"
    for notice in (exhausted, question):
        assert is_dealt_with(notice, None)
        assert is_dealt_with(msgspec.structs.replace(notice, read_at=NOW), dead)


# ---- what people are told at once


def some(
    number: int, kind: str = "retry_exhausted", *, task: str | None = None, since: float = NOW
) -> list[tuple[str, Notice]]:
    """So many notices, a second apart; each a trouble of its own, or all of one task the same one."""
    found = []
    for n in range(number):
        id = f"{next(_numbers):032x}"
        name = task or f"task-{id[-6:]}"
        notice = Notice(
            f"{id}.{kind}.0", kind, "actionable", "both", f"{name} failed for good", "no answer", since + n, "mail",
            name, id, "s", 0, "f" * 16,
        )  # fmt: skip
        found.append((waiting_key(notice), notice))
    return found


def covered(messages: Any) -> list[str]:
    return [key for message in messages for key in message.keys]


def test_a_few_are_told_one_by_one_in_order() -> None:
    waiting = some(BURST)
    messages = plan(list(reversed(waiting)), [], NOW + 60)
    assert [message.keys for message in messages] == [(key,) for key, _ in waiting]
    assert [message.title for message in messages] == [notice.title for _, notice in waiting]
    assert all(notice.job_id in message.text for message, (_, notice) in zip(messages, waiting, strict=True))


def test_the_same_thing_is_told_once_with_its_number() -> None:
    waiting = some(37, task="publish")
    (message,) = plan(waiting, [], NOW + 60)
    assert (message.count, message.title) == (37, "37 × publish failed for good")
    assert list(message.keys) == [key for key, _ in waiting]


def test_many_different_things_end_in_a_summary() -> None:
    waiting = some(40)
    messages = plan(waiting, [], NOW + 60)
    assert len(messages) == BURST
    assert covered(messages) == [key for key, _ in waiting]
    assert messages[-1].count == 40 - BURST + 1
    assert messages[-1].title == "35 more: retry exhausted"


def test_kinds_do_not_crowd_each_other_out() -> None:
    waiting = some(40) + some(1, "page", task="", since=NOW + 20.5)
    messages = plan(waiting, [], NOW + 60)
    assert [message.kind for message in messages] == ["retry_exhausted"] * BURST + ["page"]


@pytest.mark.behaviour("C48")
def test_what_was_told_lately_waits_and_is_counted() -> None:
    first, more = some(1, task="publish"), some(3, task="publish", since=NOW + 10)
    (message,) = plan(first, [], NOW)
    sent = [SentMessage(NOW + 5, message.kind, message.alike)]
    assert plan(more, sent, NOW + 5 + FOLD_SECONDS - 1) == []
    (later,) = plan(more, sent, NOW + 5 + FOLD_SECONDS)
    assert later.count == 3


def test_a_time_in_the_future_keeps_nobody_quiet() -> None:
    waiting = some(1, task="publish")
    (message,) = plan(waiting, [], NOW)
    assert plan(waiting, [SentMessage(NOW + 86_400, message.kind, message.alike)], NOW) == [message]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", "i"]), st.integers(1, 30)), max_size=12
    ),
    st.integers(1, 40),
)
def test_over_time_everything_is_told_once_in_order_and_never_too_much(rounds: Any, step: int) -> None:
    """A courier that comes by every `step` seconds while troubles of all sorts arrive."""
    now, waiting, sent, told, known = NOW, {}, [], [], {}
    for names in [*rounds, *[None] * (BURST * 400 // step)]:
        for n in range(names[1] if names is not None else 0):
            waiting |= dict(some(1, task=f"{names[0]}{n % 7}", since=now + n / 1000))
        known |= waiting
        for message in plan(list(waiting.items()), sent, now):
            told.append(message)
            sent.append(SentMessage(now, message.kind, message.alike))
            for key in message.keys:
                del waiting[key]
        assert sum(now - one.at < FOLD_SECONDS for one in sent) <= BURST
        now += step
    assert not waiting
    assert sorted(covered(told)) == sorted(known)
    latest, mentioned = "", set()
    for message in told:
        first = message.keys[0]
        assert first > latest or digest_of_content(known[first]) in mentioned, "only what was told before may come late"
        latest = max(latest, first)
        mentioned |= {digest_of_content(known[key]) for key in message.keys}


def test_pauses_grow_up_to_five_minutes() -> None:
    pauses = [pause_after(failures) for failures in range(1, 40)]
    assert pauses[:7] == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0]
    assert set(pauses[6:]) == {300.0}


# ---- pages

POLICY = NotifyPolicy()


@pytest.mark.behaviour("B49")
def test_three_dead_letters_in_an_hour_page() -> None:
    assert not page_due({"f": 2}, None, NOW, POLICY)
    assert page_due({"f": 3}, None, NOW, POLICY)
    assert page_due({"f": 1, "g": 2}, None, NOW, POLICY)


@pytest.mark.parametrize(
    ("letters", "seconds", "due"),
    [
        ({"f": 50}, 3599.0, False),
        ({"f": 50}, 3600.0, True),
        ({"f": 2}, 7200.0, False),
        ({"f": 3, "new": 1}, 299.0, False),
        ({"f": 3, "new": 1}, 300.0, True),
        ({"f": 3}, -86_400.0, True),
    ],
)
def test_once_a_window_or_for_a_new_group(letters: dict[str, int], seconds: float, due: bool) -> None:
    assert page_due(letters, Paged(NOW, ("f",)), NOW + seconds, POLICY) is due


def test_a_page_says_how_many_of_what() -> None:
    groups = [Group(f, NOW, NOW, 9, "mail", task, None, "TimeoutError", "timeout", "TimeoutError: slow", "x")
              for f, task in (("f", "publish"), ("g", "fetch"))]  # fmt: skip
    notice = write_page({"g": 2, "f": 5, "": 1}, groups, NOW, POLICY)
    assert (notice.title, notice.level, notice.audience) == ("8 dead letters in the last hour", "actionable", "user")
    assert "slow" not in msgspec.json.encode(notice).decode(), "what waits for a channel keeps no job's words"
    spoken = with_words(notice, {"x": job(State.dead, error="TimeoutError: slow")})
    assert spoken.text.index("5 × publish: TimeoutError: slow") < spoken.text.index("2 × fetch")
    assert "1 others" in spoken.text
    assert "5 × publish: TimeoutError; 2 × fetch: TimeoutError; and" in with_words(notice, {}).text


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"page_after": 0}, "notify.page_after"),
        ({"page_window": 0.0}, "notify.page_window"),
        ({"page_window": float("nan")}, "notify.page_window"),
        ({"page_window": float("inf")}, "notify.page_window.*at most 31622400 seconds"),
        ({"page_window": 1e300}, "notify.page_window"),
        ({"urls": ("mailto://a@b.c", "hunter22")}, r"notify.urls\[1\]"),
    ],
)
def test_impossible_settings_are_named(said: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field) as refused:
        check_notify(NotifyPolicy(**said))
    assert "hunter22" not in str(refused.value)
