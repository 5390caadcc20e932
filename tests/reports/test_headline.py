"""What needs a person, how everything stands in one sentence, and what to begin with."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from redrive.core.policy import DEFAULT, Policy, merge
from redrive.core.store import Group, LeftBehind, Quiet
from redrive.deadletters.group import view
from redrive.reports.headline import standing
from redrive.reports.health import health
from redrive.reports.needs import (
    ORDER,
    STALLED_AFTER,
    Blocked,
    Need,
    NeedKind,
    Pile,
    Snapshot,
    Stalled,
    list_stalled,
    needs,
    stalled_limit,
)
from redrive.reports.queue_numbers import QueueNumbers
from tests.stores.jobs import a_job

NOW = 1_800_000_000.0


def queue(name: str = "mail", policy: Policy | None = None, **numbers: Any) -> QueueNumbers:
    return QueueNumbers(name, merge(policy, DEFAULT), **numbers)


def found(**seen: Any) -> list[Need]:
    return needs(Snapshot(NOW, NOW - 86400.0, **seen))


def job(**fields: Any) -> Any:
    return msgspec.structs.replace(a_job(), task="send", queue="mail", **fields)


# ---- the list


def test_where_nothing_needs_a_person_the_list_is_empty() -> None:
    assert found() == []
    assert found(queues=[queue(due=25, running=3, held=4, parked=4, retrying=90, retrying_later=90)]) == []


def test_every_kind_has_its_place() -> None:
    assert list(ORDER) == list(get_args(NeedKind))


def test_the_gravest_is_said_first() -> None:
    everything = found(
        queues=[queue("full", due=40)],
        manual=[Pile(5, job(because="permanent", lane="manual", error="KeyError: x", fingerprint="aa"))],
        held=[Pile(2, job(because="approval")), Pile(1, job(because="outcome_unknown"))],
        overdue=[Pile(1, job(because="deferred"))],
        unattended=[Pile(3, job(run_at=NOW - 900))],
        left_behind=[LeftBehind("box-7-ab", "box", True, NOW - 90, ("j" * 32,), ("send",))],
        list_stalled=[Stalled(job(), NOW - 3600, 900.0)],
        blocked=[Blocked("w1", "send")],
        spooled=7,
        disk_free=1024,
        channels=["notify: channel x has failed 3 times in a row"],
    )
    assert [need.kind for need in everything] == [
        "process_gone", "outcome_unknown", "approval", "dead_manual", "stalled", "loop_blocked", "unattended",
        "backed_up", "deferred_overdue", "spooled", "disk_low", "channel_failed",
    ]  # fmt: skip
    assert all(need.id and need.sentence and need.action and need.command for need in everything)
    assert len({need.id for need in everything}) == len(everything)


@pytest.mark.parametrize(("gone", "words"), [(True, "is gone (last seen 9 d ago)"), (False, "was not seen for 9 d")])
def test_of_a_process_that_may_live_elsewhere_only_its_silence_is_said(gone: bool, words: str) -> None:
    left = LeftBehind("box-7-ab", "box", gone, NOW - 9 * 86400, ("a" * 32, "b" * 32), ("publish",))
    (need,) = found(left_behind=[left])
    assert need.sentence == f"process box-7-ab {words} and left 2 running jobs behind (publish)"
    assert (need.count, need.since, need.task) == (2, NOW - 9 * 86400, "publish")


@pytest.mark.parametrize(
    ("durations", "limit"),
    [
        ([], STALLED_AFTER),
        ([600.0] * 19, STALLED_AFTER),
        ([1.0] * 50, STALLED_AFTER),
        ([600.0] * 20, 6000.0),
        ([1.0] * 19 + [9_000.0], STALLED_AFTER),
        ([200.0] * 95 + [9_000.0] * 5, 2000.0),
    ],
)
def test_a_task_may_take_ten_times_as_long_as_usual_and_at_least_a_quarter_of_an_hour(
    durations: list[float], limit: float
) -> None:
    assert stalled_limit(durations) == limit


def test_a_job_is_stalled_by_its_own_limit_or_the_usual_one() -> None:
    one, two = job(id="1" * 32), job(id="2" * 32)
    quiet = [Quiet(one, NOW - 1000), Quiet(two, NOW - 1000)]
    assert [each.job.id for each in list_stalled(quiet, {one.id: float("inf")}, NOW)] == [two.id]
    assert [each.job.id for each in list_stalled(quiet, {one.id: 10.0, two.id: 2000.0}, NOW)] == [one.id]


def test_a_paused_queue_that_is_full_is_to_be_resumed() -> None:
    full = [queue(f"q{number}", due=100 * number, paused=number == 4) for number in range(1, 5)]
    backed_up = found(queues=full)
    assert [(need.queue, need.count) for need in backed_up] == [("q4", 400), ("q3", 300), ("q2", 200), ("q1", 100)]
    assert backed_up[0].command == "redrive queues resume q4" and "resume" not in backed_up[1].action


@pytest.mark.parametrize("due", [0, 3, 4, 40])
def test_a_backlog_is_the_same_for_whoever_asks(due: int) -> None:
    one = queue(policy=Policy(health_depth=3), due=due)
    list_of_needs = found(queues=[one])
    assert one.too_many_due is one.needs_eyes is bool(list_of_needs) is (due > 3)
    assert (health([one], list_of_needs).exit_code == 1) is (due > 3)


@pytest.mark.parametrize(
    ("numbers", "eyes"),
    [
        ({"running": 3, "done": 9}, False),
        ({"held": 2, "blocked": 1, "deferred": 1}, False),
        ({"held": 3, "blocked": 1, "deferred": 1}, True),
        ({"held": 1, "deferred": 1, "overdue": 1}, True),
        ({"dead": 1}, True),
        ({"paused": True}, True),
        ({"retrying": 1}, True),
    ],
)
def test_a_queue_needs_eyes_where_it_is_not_healthy_or_somebody_stopped_it(numbers: dict[str, Any], eyes: bool) -> None:
    assert queue(**numbers).needs_eyes is eyes


# ---- in one sentence


def need(kind: NeedKind, count: int, sentence: str = "something is wrong") -> Need:
    return Need(kind, f"{kind}:x", count, sentence, "Look.", "redrive morning")


def dead(count: int) -> Need:
    return need("dead_manual", count)


def held(count: int) -> Need:
    return need("approval", count)


SLOW = need("backed_up", 80, "mail is backed up: 80 jobs are due")
GONE = need("process_gone", 2, "process box-7 is gone and left 2 running jobs behind (send)")


@pytest.mark.parametrize(
    ("queues", "needs", "title"),
    [
        ([], [], "Nothing has been enqueued yet."),
        ([queue(done=3)], [], "All is well."),
        ([queue(due=1, unattended=1)], [dead(1)], "1 job is due, and no worker runs it."),
        ([queue(due=5, unattended=2)], [], "2 jobs are due, and no worker runs them."),
        ([queue(due=2)], [], "All is well."),
        ([queue(dead=1)], [dead(1)], "1 dead letter waits for you."),
        ([queue(dead=1)], [held(1)], "1 held job waits for you."),
        ([queue(dead=1)], [dead(1200), held(1)], "1,200 dead letters and 1 held job wait for you."),
        ([queue(due=80)], [SLOW], "Mail is backed up: 80 jobs are due."),
        ([queue(due=80)], [dead(2), SLOW], "2 dead letters wait for you."),
        ([queue(due=80)], [GONE, dead(2)], "Process box-7 is gone and left 2 running jobs behind (send)."),
        ([queue(waiting=35, retrying=35)], [], "35 jobs are retrying after failures."),
        ([queue(retrying=1, held=9, parked=9)], [], "1 job is retrying after failures, 9 are parked."),
        ([queue(held=150, parked=150)], [], "150 jobs are parked: what they call is down."),
        (
            [queue(dead=12, comes_back=12, next_back=480.0)],
            [],
            "12 dead letters come back by themselves, the next in 8 min.",
        ),
        ([queue(dead=1, comes_back=1, next_back=480.0)], [], "1 dead letter comes back by itself, in 8 min."),
        ([queue(dead=5, comes_back=1)], [dead(4)], "4 dead letters wait for you."),
    ],
)
def test_the_worst_is_said_first(queues: list[QueueNumbers], needs: list[Need], title: str) -> None:
    found = standing(queues, needs, 7)
    assert found.title == title
    assert found.well is (title in ("All is well.", "Nothing has been enqueued yet."))
    assert found.lead


def test_what_comes_back_is_told_beside_what_waits_for_a_person() -> None:
    queues = [queue(dead=9, comes_back=5, next_back=3600.0), queue("sync", dead=7, comes_back=7, next_back=480.0)]
    lead = standing(queues, [dead(4)], 0).lead
    assert lead.endswith("12 dead letters come back by themselves, the next in 8 min.")


def test_what_to_begin_with_is_the_largest_trouble_and_what_helps_against_it() -> None:
    group = Group("f" * 16, 1.0, 2.0, 34, "mail", "send", None, "TimeoutError", "timeout", "no answer.", "job")
    first = view(group, None, 34, 3.0, [])
    lead = standing([queue(dead=34)], [dead(40)], 0, first).lead
    assert lead.startswith("Begin with the 34 of send: no answer. ") and lead.endswith(first.suggestion.text)
    partly = msgspec.structs.replace(first, manual=2)
    assert standing([queue(dead=34)], [dead(2)], 0, partly).lead.startswith("Begin with the 2 of send: ")
