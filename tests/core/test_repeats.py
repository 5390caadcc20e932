"""The rule that recognises an agent that repeats itself (checklist B52)."""

import pytest

from redrive.core.repeats import (
    RepeatRule,
    SessionAction,
    Watched,
    check_repeats,
    identify_action,
    observe,
    warn_agent,
    write_repeats_notice,
)
from redrive.errors import InvalidInput

RULE = RepeatRule()


def after(*actions: tuple[str, bool], rule: RepeatRule = RULE, start: Watched | None = None) -> Watched:
    watched = start or Watched()
    for number, (what, ok) in enumerate(actions):
        watched = observe(watched, [SessionAction(what, ok)], "publish", rule, float(number))
    return watched


FAILED, OTHER = ("a", False), ("b", True)


@pytest.mark.behaviour("R-8a", "B52")
def test_five_of_fifteen_without_success_are_a_loop() -> None:
    assert after(*[FAILED] * 4).loop is None
    found = after(*[FAILED] * 5).loop
    assert found is not None and (found.what, found.times, found.windows) == ("a", 5, 1)
    apart = after(*[FAILED, OTHER, OTHER] * 4, FAILED).loop
    assert apart is not None and apart.times == 5, "five of the last thirteen"


@pytest.mark.behaviour("R-8a")
def test_a_window_of_fifteen_is_no_window_of_sixteen() -> None:
    spread = [FAILED, *[OTHER] * 11, *[FAILED] * 4]
    assert len(spread) == 16 and after(*spread).loop is None
    assert after(*spread[1:], FAILED).loop is not None


@pytest.mark.behaviour("R-8a", "B52")
def test_one_success_in_the_window_is_no_loop() -> None:
    assert after(("a", True), *[FAILED] * 9).loop is None
    assert after(*[FAILED] * 4, ("a", True), *[FAILED] * 4).loop is None
    broken = after(*[FAILED] * 6, ("a", True))
    assert broken.loop is None, "it succeeded"


@pytest.mark.behaviour("R-8a", "B52")
def test_who_is_told_and_goes_on_is_seen_in_a_second_window() -> None:
    first = after(*[FAILED] * 5)
    second = after(FAILED, start=first).loop
    assert second is not None and (second.times, second.windows) == (6, 2)
    paused = after(OTHER, ("c", False), start=first)
    assert paused.loop == first.loop, "something else in between ends no loop"
    gone = after(*[OTHER] * 11, start=first)
    assert gone.loop is None, "the window has passed"


@pytest.mark.behaviour("R-8a")
def test_it_can_be_set_and_turned_off() -> None:
    assert after(*[FAILED] * 2, rule=RepeatRule(2, 3)).loop is not None
    assert after(*[FAILED] * 50, rule=RepeatRule(0, 15)).loop is None
    for times, window in ((0, 15), (2, 2), (15, 15)):
        check_repeats(RepeatRule(times, window))
    for times, window in ((1, 15), (16, 15), (-1, 15), (5, 1), (5, 1_001)):
        with pytest.raises(InvalidInput, match="repeats"):
            check_repeats(RepeatRule(times, window))


def test_an_action_is_its_task_and_its_parameters_in_any_order() -> None:
    assert identify_action("t", {"a": 1, "b": [2]}) == identify_action("t", {"b": [2], "a": 1})
    names = {
        identify_action("t", {"a": 1}),
        identify_action("t", {"a": 2}),
        identify_action("u", {"a": 1}),
        identify_action("t", {}),
    }
    assert len(names) == 4
    assert identify_action("t", {"a": "\ud800"}) == identify_action("t", {"a": "\ud800"}), "also what JSON cannot say"


def test_the_words_say_how_often_and_what_to_do() -> None:
    loop = after(*[FAILED] * 6).loop
    assert loop is not None
    assert "6 of your last 15 actions" in warn_agent(loop, RULE) and "tell a person" in warn_agent(loop, RULE)
    notice = write_repeats_notice("s1", loop, RULE, "job-12345678")
    assert (notice.audience, notice.kind) == ("user", "repeats")
    assert "Session s1 repeats publish" in notice.text and "redrive status 12345678" in notice.text
