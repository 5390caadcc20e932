"""What waits for somebody, how everything stands in one sentence, and what to begin with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.core.breakers import Breaker
from redrive.core.policy import DEFAULT, Policy, merge
from redrive.core.store import Group
from redrive.insight.groups import view
from redrive.insight.health import QueueNumbers, health
from redrive.insight.morning import FOR_A_PERSON
from redrive.insight.standing import ASKED, Need, needs, standing


def queue(name: str = "mail", policy: Policy | None = None, **numbers: Any) -> QueueNumbers:
    return QueueNumbers(name, merge(policy, DEFAULT), **numbers)


def told(found: list[Need]) -> list[tuple[str, int, str]]:
    return [(need.kind, need.number, need.about) for need in found]


# ---- what waits


def test_where_nothing_waits_nothing_is_said() -> None:
    assert needs([]) == []
    assert needs([queue(due=25, running=3, held=4, done=9)], holds={"blocked": 4}) == []


def test_the_most_urgent_is_said_first() -> None:
    queues = [queue("full", due=40), queue("slow", running=1, stalled=["job 1 has been running for 9 s"])]
    down = [Breaker("api.example.com", "open", "server_error", 1.0, 10.0, 11.0, 1.0)]
    holds = {"consent": 1, "approval": 2, "outcome_unknown": 3, "deferred": 9}
    found = needs(queues, manual=5, holds=holds, down=down, spooled=7)
    assert told(found) == [
        ("dead", 5, ""),
        ("held", 2, "approval"),
        ("held", 1, "consent"),
        ("held", 3, "outcome_unknown"),
        ("down", 1, "api.example.com"),
        ("stalled", 1, "slow"),
        ("backed_up", 40, "full"),
        ("spooled", 7, ""),
    ]
    assert [need.kind for need in found if need.asks] == ["dead", "held", "held", "held"]
    assert all(need.what and need.todo for need in found)
    assert all(need.alone for need in found if not need.asks), "each may have to stand as the sentence"


def test_one_and_many_are_said_as_people_do() -> None:
    one, many = needs([], manual=1, holds={"approval": 1}), needs([], manual=2, holds={"approval": 2})
    assert [need.what for need in one] == ["dead letter waits for you", "job waits for an approval"]
    assert [need.what for need in many] == ["dead letters wait for you", "jobs wait for an approval"]


def test_what_only_a_person_ends_has_words() -> None:
    assert set(FOR_A_PERSON) == ASKED.keys()


def test_the_fullest_queues_are_named_and_one_that_is_paused_is_to_be_resumed() -> None:
    found = needs([queue(f"q{number}", due=100 * number, paused=number == 4) for number in range(1, 5)])
    assert told(found) == [("backed_up", 400, "q4"), ("backed_up", 300, "q3"), ("backed_up", 200, "q2")]
    assert "resume" in found[0].todo and "resume" not in found[1].todo


@pytest.mark.parametrize("due", [0, 3, 4, 40])
def test_a_backlog_is_the_same_for_whoever_asks(due: int) -> None:
    one = queue(policy=Policy(health_depth=3), due=due)
    assert one.backed_up is one.needs_eyes is (health([one]).status == "degraded") is bool(needs([one])) is (due > 3)


@pytest.mark.parametrize(
    ("numbers", "eyes"),
    [
        ({"running": 3, "done": 9}, False),
        ({"held": 2, "blocked": 1, "deferred": 1}, False),
        ({"held": 3, "blocked": 1, "deferred": 1}, True),
        ({"held": 1, "deferred": 1, "overdue": 1}, True),
        ({"dead": 1}, True),
        ({"paused": True}, True),
        ({"stalled": ["job 1"]}, True),
    ],
)
def test_a_queue_needs_eyes_where_it_is_not_healthy_or_somebody_stopped_it(numbers: dict[str, Any], eyes: bool) -> None:
    assert queue(**numbers).needs_eyes is eyes


# ---- in one sentence


def dead(number: int) -> Need:
    return Need("dead", number, "dead letters wait for you", "Look.")


def held(number: int) -> Need:
    return Need("held", number, "jobs wait for an approval", "Answer.", "approval")


SLOW = Need("backed_up", 80, "jobs are due in mail", "More workers?", "mail", "mail is backed up: 80 jobs are due.")


@pytest.mark.parametrize(
    ("queues", "needs", "title"),
    [
        ([], [], "Nothing has been enqueued yet."),
        ([queue(done=3)], [], "All is well."),
        ([queue(due=1, unattended=1)], [dead(1)], "1 job is due, and nobody runs it."),
        ([queue(due=5, unattended=2)], [], "2 jobs are due, and nobody runs them."),
        ([queue(due=2)], [], "All is well."),
        ([queue(dead=1)], [dead(1)], "1 dead letter waits for you."),
        ([queue(dead=1)], [held(1)], "1 held job waits for you."),
        ([queue(dead=1)], [dead(1200), held(1)], "1,200 dead letters and 1 held job wait for you."),
        ([queue(due=80)], [SLOW], "Mail is backed up: 80 jobs are due."),
        ([queue(due=80)], [dead(2), SLOW], "2 dead letters wait for you."),
    ],
)
def test_the_worst_is_said_first(queues: list[QueueNumbers], needs: list[Need], title: str) -> None:
    found = standing(queues, needs, 7)
    assert found.title == title
    assert found.well is (title in ("All is well.", "Nothing has been enqueued yet."))
    assert found.lead


def test_what_to_begin_with_is_the_largest_trouble_and_what_helps_against_it() -> None:
    group = Group("f" * 16, 1.0, 2.0, 34, "mail", "send", None, "TimeoutError", "timeout", "no answer.", "job")
    first = view(group, None, 34, 3.0, [])
    lead = standing([queue(dead=34)], [dead(40)], 0, first).lead
    assert lead.startswith("Begin with the 34 of send: no answer. ") and lead.endswith(first.suggestion.text)
    partly = msgspec.structs.replace(first, manual=2)
    assert standing([queue(dead=34)], [dead(2)], 0, partly).lead.startswith("Begin with the 2 of send: ")
