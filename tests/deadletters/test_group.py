"""Error groups: when somebody must hear of one, what helps against it, and how it goes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.advice import ADVICE
from redrive.core.agents import Agent, AgentFleet
from redrive.core.job import Job, State
from redrive.core.presets import PRESETS
from redrive.core.store import Group, Lesson
from redrive.deadletters import group as groups
from redrive.deadletters.group import DAY, HOUR, Alert, GroupState, Suggestion, judge, severity, suggest, trend, view
from redrive.failures.classify import DETAILS

T0 = 1_800_000_000.0


def a_group(buried: int = 1, last_at: float = T0, **fields: Any) -> Group:
    given: dict[str, Any] = {
        "fingerprint": "0123456789abcdef", "first_at": T0, "last_at": last_at, "buried": buried, "queue": "mail",
        "task": "send", "agent": None, "error_class": "ConnectionError", "detail": "network",
        "error": "ConnectionError: reset", "sample": "f" * 32,
    }  # fmt: skip
    return Group(**{**given, **fields})


def known(buried: int = 1, **fields: Any) -> GroupState:
    """The state of a group whose burials so far were judged."""
    return GroupState(seen_buried=buried, seen_at=T0, **fields)


def kind_of(alert: Alert | None) -> str | None:
    return alert.kind if alert else None


# ---- judging


def test_the_first_burial_is_news() -> None:
    state, alert = judge(a_group(3), None, T0 + 5, recent=3)
    assert alert is not None
    assert (alert.kind, alert.queue, alert.task, alert.buried, alert.at) == ("new", "mail", "send", 3, T0 + 5)
    assert (state.status, state.seen_buried, state.alerted_at) == ("unresolved", 3, alert and alert.at)


def test_the_same_again_is_no_news_and_changes_nothing() -> None:
    state, _ = judge(a_group(3), None, T0, recent=3)
    assert judge(a_group(3), state, T0 + 9, recent=0) == (state, None)


@pytest.mark.parametrize("buried", [4, 40, 40_000])
def test_growth_alone_is_no_news(buried: int) -> None:
    state, _ = judge(a_group(3), None, T0, recent=3)
    grown, alert = judge(a_group(buried, T0 + 60), state, T0 + 60, recent=buried)
    assert (alert, grown.seen_buried, grown.status) == (None, buried, "unresolved")


@pytest.mark.parametrize(("last_at", "expected"), [(T0 + 101, "regressed"), (T0 + 100, None), (T0 + 99, None)], ids=str)
def test_only_what_was_buried_after_it_was_resolved_is_a_regression(last_at: float, expected: str | None) -> None:
    """A burial on its way while somebody resolved the group says nothing against the cure."""
    resolved = groups.resolve(a_group(3), known(3), T0 + 100, who="ann", why="fixed")
    state, alert = judge(a_group(4, last_at), resolved, T0 + 105, recent=1)
    assert kind_of(alert) == expected
    assert state.status == ("unresolved" if expected else "resolved")
    assert state.seen_buried == 4


@pytest.mark.parametrize(
    ("resolved_in", "version", "expected"),
    [
        (None, None, "regressed"),
        (None, "1.0", "regressed"),
        ("1.4", None, "regressed"),
        ("1.4", "1.3.9", None),
        ("1.4", "1.4", "regressed"),
        ("1.4", "1.4.0", "regressed"),
        ("1.4.0", "1.4", "regressed"),
        ("1.4.1", "1.4", None),
        ("1.9", "1.10", "regressed"),
        ("1.10", "1.9", None),
        ("v1.4", "1.3", None),
        ("1.4", "v1.5-rc1", "regressed"),
        ("2026.11.15", "2026.11.14", None),
        ("1.4", "deadbeef", "regressed"),
        ("abcdef0", "deadbee", "regressed"),
        ("  1.4 ", "1.3", None),
    ],
)
def test_code_that_is_older_than_the_cure_does_not_count(
    resolved_in: str | None, version: str | None, expected: str | None
) -> None:
    resolved = groups.resolve(a_group(3), known(3), T0 + 100, who="ann", why=None, in_version=resolved_in)
    _, alert = judge(a_group(4, T0 + 200), resolved, T0 + 200, 1, version)
    assert kind_of(alert) == expected


@pytest.mark.parametrize(
    ("limits", "buried", "last_at", "recent", "expected"),
    [
        ({}, 10_000, T0 + DAY, 10_000, None),
        ({"until": T0 + HOUR}, 99, T0 + HOUR - 1, 96, None),
        ({"until": T0 + HOUR}, 4, T0 + HOUR, 1, "unignored"),
        ({"rate": 5}, 8, T0 + 60, 5, None),
        ({"rate": 5}, 9, T0 + 60, 6, "unignored"),
        ({"rate": 0}, 4, T0 + 60, 1, "unignored"),
        ({"count": 5}, 8, T0 + 60, 5, None),
        ({"count": 5}, 9, T0 + 60, 1, "unignored"),
        ({"until": T0 + HOUR, "rate": 100, "count": 2}, 6, T0 + 60, 3, "unignored"),
        ({"until": T0 + HOUR, "rate": 100, "count": 20}, 6, T0 + 60, 3, None),
    ],
)
def test_what_is_ignored_is_told_when_a_limit_is_passed(
    limits: dict[str, Any], buried: int, last_at: float, recent: int, expected: str | None
) -> None:
    ignored = groups.ignore(a_group(3), known(3), T0, who="ann", why="known", **limits)
    state, alert = judge(a_group(buried, last_at), ignored, last_at, recent)
    assert kind_of(alert) == expected
    assert state.status == ("unresolved" if expected else "ignored")
    if expected:
        assert (state.ignored_until, state.ignored_rate, state.ignored_count, state.ignored_at) == (None,) * 4


def test_when_the_time_is_over_and_it_happens_no_more_nobody_hears_of_it() -> None:
    ignored = groups.ignore(a_group(3), known(3), T0, who="ann", why=None, until=T0 + HOUR)
    assert judge(a_group(3), ignored, T0 + DAY, 0) == (ignored, None)


@pytest.mark.parametrize("say", [groups.resolve, groups.ignore, groups.reopen])
def test_whoever_says_something_of_a_group_has_heard_of_it(say: Any) -> None:
    state = say(a_group(3), None, T0, who="ann", why="seen")
    assert (state.alerted_at, state.seen_buried, state.who, state.why) == (None, 3, "ann", "seen")
    assert judge(a_group(3), state, T0 + 1, 3)[1] is None


def test_a_note_silences_nothing() -> None:
    state = groups.add_note(None, T0, who="ann", text="see the wiki")
    judged, alert = judge(a_group(3), state, T0 + 1, 3)
    assert (kind_of(alert), judged.note) == ("new", "see the wiki")
    assert groups.add_note(judged, T0 + 2, who="bob", text="x").alerted_at == judged.alerted_at == T0 + 1


def test_the_story_says_who_did_what_and_why_and_is_bounded() -> None:
    state, _ = judge(a_group(1), None, T0, 1)
    state = groups.resolve(a_group(1), state, T0 + 1, who="ann", why="fixed", in_version="1.4")
    state, _ = judge(a_group(2, T0 + 2), state, T0 + 2, 1)
    state = groups.ignore(a_group(2), state, T0 + 3, who="bob", why="known", rate=5, count=7)
    state = groups.reopen(a_group(2), state, T0 + 4, who="cy", why=None)
    assert [(said.what, said.who, said.why) for said in state.story] == [
        ("new", "redrive", "first seen"),
        ("resolved in 1.4", "ann", "fixed"),
        ("regressed", "redrive", "resolved in 1.4, and it happened again"),
        ("ignored up to 5 an hour, for 7 more", "bob", "known"),
        ("reopened", "cy", None),
    ]
    for number in range(100):
        state = groups.reopen(a_group(2), state, T0 + number, who="cy", why=None)
    assert len(state.story) == groups.STORY_KEPT


def test_a_state_survives_the_store() -> None:
    state, _ = judge(a_group(3), None, T0, 3)
    assert msgspec.json.decode(msgspec.json.encode(state), type=GroupState) == state


# ---- a model: every burial by itself, and what was said last

ORDER = {"1.9": 0, "1.10": 1, "2.0": 2}
VERSIONS = st.sampled_from([None, *ORDER, "deadbeef"])


class Model:
    """What must be told, from the burials themselves."""

    def __init__(self) -> None:
        self.burials: list[tuple[float, str | None]] = []
        self.judged = 0
        self.heard = False
        self.said: tuple[str, float, dict[str, Any]] = ("nothing", 0.0, {})
        self.from_here = 0

    def say(self, what: str, now: float, **how: Any) -> None:
        self.said, self.heard, self.judged, self.from_here = (what, now, how), True, *[len(self.burials)] * 2

    def look(self, now: float) -> str | None:
        fresh, self.judged = self.burials[self.judged :], len(self.burials)
        if not fresh:
            return None
        alert = self._news(fresh, now)
        if alert:
            self.heard, self.said = True, ("nothing", now, {})
        return alert

    def _news(self, fresh: list[tuple[float, str | None]], now: float) -> str | None:
        what, when, how = self.said
        if not self.heard:
            return "new"
        if what == "resolved" and any(at > when for at, _ in fresh):
            cure, version = how["in_version"], fresh[-1][1]
            older = cure in ORDER and version in ORDER and ORDER[version] < ORDER[cure]
            return None if older else "regressed"
        if what == "ignored" and (
            (how["until"] is not None and any(at >= how["until"] for at, _ in fresh))
            or (how["rate"] is not None and self.recent(now) > how["rate"])
            or (how["count"] is not None and len(self.burials) - self.from_here > how["count"])
        ):
            return "unignored"
        return None

    def recent(self, now: float) -> int:
        return sum(at > now - HOUR for at, _ in self.burials)


STEPS = st.one_of(
    st.tuples(st.just("bury"), st.integers(1, 4), VERSIONS),
    st.just(("look",)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 600.0, HOUR, DAY])),
    st.tuples(st.just("resolve"), VERSIONS),
    st.tuples(
        st.just("ignore"),
        st.one_of(st.none(), st.sampled_from([900.0, HOUR, DAY])),
        st.one_of(st.none(), st.integers(0, 4)),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    st.just(("reopen",)),
)


class Real:
    """The same through `judge`, which sees sums and the latest burial only."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.state: GroupState | None = None
        self.version: str | None = None

    def bury(self, number: int, version: str | None, now: float) -> None:
        buried = (self.group.buried if self.group else 0) + number
        first = self.group.first_at if self.group else now
        self.group, self.version = a_group(buried, now, first_at=first), version

    def look(self, now: float, recent: int) -> str | None:
        if self.group is None:
            return None
        self.state, alert = judge(self.group, self.state, now, recent, self.version)
        assert judge(self.group, self.state, now, recent, self.version) == (self.state, None), "told twice"
        return kind_of(alert)

    def say(self, what: str, now: float, **how: Any) -> bool:
        if self.group is None:
            return False
        verbs = {"resolved": groups.resolve, "ignored": groups.ignore, "reopened": groups.reopen}
        self.state = verbs[what](self.group, self.state, now, who="ann", why=None, **how)
        return True


@given(st.lists(STEPS, max_size=40))
def test_alerts_are_exactly_the_new_the_regressed_and_the_unignored(steps: list[tuple[Any, ...]]) -> None:
    model, real, now = Model(), Real(), T0
    for step in [*steps, ("look",)]:
        now += 1.0
        match step:
            case ("bury", number, version):
                model.burials += [(now, version)] * number
                real.bury(number, version, now)
            case ("look",):
                assert real.look(now, model.recent(now)) == model.look(now)
            case ("wait", seconds):
                now += seconds
            case ("resolve", version):
                if real.say("resolved", now, in_version=version):
                    model.say("resolved", now, in_version=version)
            case ("ignore", until, rate, count):
                how = {"until": None if until is None else now + until, "rate": rate, "count": count}
                if real.say("ignored", now, **how):
                    model.say("ignored", now, **how)
            case ("reopen",):
                if real.say("reopened", now):
                    model.say("nothing", now)
    assert real.state is None or real.state.seen_buried == len(model.burials)


# ---- alerts


@given(st.sampled_from(["new", "unignored", "regressed"]), st.integers(0, 10**6), st.integers(1, 10**6))
def test_more_hurts_more_and_what_came_back_hurts_more_than_what_is_new(kind: Any, dead: int, more: int) -> None:
    assert 0.4 <= severity(kind, dead) <= severity(kind, dead + more) <= 1.0
    assert severity("new", dead) <= severity("unignored", dead) <= severity("regressed", dead)


@pytest.mark.parametrize(("dead", "pages"), [(1, False), (2, False), (3, True), (300, True)])
def test_three_dead_letters_of_one_trouble_hurt_as_much_as_a_full_queue(dead: int, pages: bool) -> None:
    assert (severity("new", dead) >= 0.7) is pages


def test_an_alert_in_words_says_what_where_how_much_and_what_to_do() -> None:
    _, alert = judge(a_group(12), None, T0, 12)
    assert alert
    text = groups.message(alert, a_group(12), Suggestion("Renew the token.", "fix"))
    for part in ("new kind of failure", "send", "queue mail", "ConnectionError: reset", "12 dead letters",
                 "Renew the token.", "redrive dead group 01234567"):  # fmt: skip
        assert part in text


# ---- what helps


@pytest.mark.parametrize(
    ("lessons", "text", "action", "strategy"),
    [
        ([("compress_context", 8, 1)], "Redriving with less context worked 8 of 9 times.", "redrive",
         "compress_context"),
        ([("set_model", 1, 0), ("compress_context", 8, 1)], "less context worked 8 of 9", "redrive",
         "compress_context"),
        ([("set_model", 9, 0), ("compress_context", 8, 1)], "another model worked 9 of 9", "redrive", "set_model"),
        ([("compress_context+set_model", 2, 1)], "with less context and another model worked 2 of 3", "redrive",
         "compress_context+set_model"),
        ([("retry", 3, 1)], "Redriving as it is worked 3 of 4 times.", "redrive", "retry"),
        ([("retry", 1, 9)], "Redriving as it is worked only 1 of 10 times. The prompt is too", "change", "retry"),
        ([("retry", 0, 9)], "Nothing tried so far helps: redriving as it is worked 0 of 9 times. The prompt is too",
         "change", "retry"),
        ([("retry", 0, 0)], "The prompt is too long.", "change", None),
        ([], "The prompt is too long.", "change", None),
    ],
)  # fmt: skip
def test_what_worked_before_is_suggested(
    lessons: list[tuple[str, int, int]], text: str, action: str, strategy: str | None
) -> None:
    found = suggest(a_group(detail="context_overflow"), [Lesson("0123456789abcdef", *one) for one in lessons])
    assert text in found.text
    assert (found.action, found.strategy) == (action, strategy)


def test_the_success_rate_is_told() -> None:
    found = suggest(a_group(), [Lesson("x", "compress_context", 8, 1)])
    assert found.rate == pytest.approx(8 / 9)
    assert found.public()["success_rate"] == found.rate
    assert suggest(a_group(), []).rate is None


@pytest.mark.parametrize("detail", [*DETAILS, None, "never heard of"])
def test_every_trouble_has_a_suggestion(detail: str | None) -> None:
    found = suggest(a_group(detail=detail), [])
    assert len(found.text) > 20
    assert found.action in ("redrive", "change", "fix", "look")
    assert found.text == ADVICE.get(str(detail), found.text)
    assert suggest(a_group(detail=None), [], detail) == found


def test_the_read_latest_dead_letters_own_recommendation_comes_before_the_general_one() -> None:
    """And after what worked; where nothing did, it is told, too."""
    silent = Job("j1", "q", "work", None, State.dead, 2, T0, 5, T0, T0, "{}")
    said = msgspec.structs.replace(silent, recommendation="Redrive it after\nthe change freeze.")
    group = a_group(detail="gave_up")
    assert suggest(group, [], letter=said).text == "Redrive it after the change freeze."
    assert suggest(group, [], letter=silent) == suggest(group, []) != suggest(group, [], letter=said)
    assert suggest(group, [], letter=said).action == suggest(group, []).action
    assert suggest(group, [Lesson("x", "retry", 3, 1)], letter=said).text == "Redriving as it is worked 3 of 4 times."
    assert suggest(group, [Lesson("x", "retry", 0, 4)], letter=said).text.endswith(
        " Redrive it after the change freeze."
    )


# ---- seeing


@pytest.mark.parametrize(
    ("hours", "dead", "first_at", "last_at", "expected"),
    [
        ({0: 1}, 1, T0, T0, "new"),
        ({-5: 1, 0: 9}, 1, T0 - 5 * HOUR, T0, "new"),
        ({-30: 2, 0: 3}, 1, T0 - 90 * HOUR, T0, "growing"),
        ({0: 3}, 1, T0 - 90 * HOUR, T0, "growing"),
        ({-30: 3, 0: 2}, 1, T0 - 90 * HOUR, T0, "shrinking"),
        ({-30: 3, -1: 1, 0: 2}, 0, T0 - 90 * HOUR, T0, "steady"),
        ({-30: 3}, 2, T0 - 90 * HOUR, T0 - 30 * HOUR, "quiet"),
        ({-30: 3}, 0, T0 - 90 * HOUR, T0 - 30 * HOUR, "cured"),
    ],
)
def test_how_it_goes(hours: dict[int, int], dead: int, first_at: float, last_at: float, expected: str) -> None:
    now_hour = int(T0 // HOUR)
    state = known(hours=tuple((now_hour + hour, number) for hour, number in hours.items()))
    assert trend(a_group(9, last_at, first_at=first_at), state, dead, T0) == expected


def test_burials_are_noted_by_the_hour_and_forgotten_after_two_days() -> None:
    state, _ = judge(a_group(2, T0), None, T0, 2)
    for hour in range(1, 100):
        state, _ = judge(a_group(2 + hour, T0 + hour * HOUR), state, T0 + hour * HOUR, 1)
    assert len(state.hours) == groups.HOURS_KEPT
    assert {number for _, number in state.hours} == {1}
    seen = view(a_group(101, T0 + 99 * HOUR), state, 5, T0 + 99 * HOUR)
    assert (seen.last_day, seen.day_before, seen.trend) == (24, 24, "steady")


def test_a_view_for_the_outside() -> None:
    state = groups.ignore(a_group(3), known(3), T0, who="ann", why="known", until=T0 + HOUR)
    seen = view(a_group(3), state, 2, T0, [Lesson("x", "retry", 1, 1)])
    body = msgspec.json.decode(msgspec.json.encode(seen.public()))
    assert (body["fingerprint"], body["status"], body["dead"], body["buried"]) == ("0123456789abcdef", "ignored", 2, 3)
    assert (body["ignored_until"], body["first_at"]) == ("2027-01-15T09:00:00.000Z", "2027-01-15T08:00:00.000Z")
    assert body["lessons"] == [{"strategy": "retry", "worked": 1, "failed": 1}]
    assert body["suggestion"]["strategy"] == "retry"
    assert [line["who"] for line in body["story"]] == ["ann"]
    assert not {"seen_buried", "hours"} & body.keys()


def test_a_group_that_nobody_looked_at_yet_can_be_seen() -> None:
    seen = view(a_group(3), None, 3, T0)
    assert (seen.status, seen.last_day, seen.trend, seen.short) == ("unresolved", 3, "new", "01234567")


# ---- who else, and what first

SEVEN = AgentFleet(PRESETS["seven_agents"].agents, escalation="ceo")


@pytest.mark.parametrize(
    ("agent", "detail", "task", "expected"),
    [
        ("cto", "authority", "code_review", "backend"),
        ("backend", "refusal", "code_review", "cto"),
        ("cto", "context_overflow", "debugging", "backend"),
        ("cto", "network", "code_review", None),
        ("cto", None, "code_review", None),
        (None, "authority", "code_review", None),
        ("cto", "authority", "send", None),
    ],
)
def test_another_agent_is_named_where_the_trouble_has_to_do_with_who_does_it(
    agent: str | None, detail: str | None, task: str, expected: str | None
) -> None:
    assert groups.other_agent(a_group(agent=agent, detail=detail, task=task), SEVEN) == expected


def test_whoever_things_are_escalated_to_is_no_other_agent_unless_it_is_one() -> None:
    group = a_group(agent="cto", detail="authority", task="send")
    assert groups.other_agent(group, AgentFleet(agents={"cto": Agent(("send",))}, escalation="ceo")) is None
    able = {"cto": Agent(("send",)), "ceo": Agent()}
    assert groups.other_agent(group, AgentFleet(agents=able, escalation="ceo")) == "ceo"


def test_the_largest_troubles_are_those_with_the_most_letters() -> None:
    assert groups.largest({("a",): 1, ("b",): 3, (None,): 9, ("c",): 2, ("d",): 0}, 2) == ["b", "c"]
    assert groups.largest({("d",): 0, (None,): 1}, 5) == []


def test_strategies_that_are_the_same_to_a_person_are_told_as_one() -> None:
    names = {"redriven": (1, 0), "bury": (2, 1), "retry": (0, 4), "set_model": (3, 3)}
    lessons = [Lesson("f", name, worked, failed) for name, (worked, failed) in names.items()]
    assert [(one.text, one.worked, one.times) for one in groups.rank_strategies(lessons)] == [
        ("Redriven as it is", 3, 4),
        ("Retried with another model", 3, 6),
        ("Retried as it is", 0, 4),
    ]
