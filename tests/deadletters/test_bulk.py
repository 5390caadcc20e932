"""A bulk redrive as values: numbers that add up, the pace, the canary's verdict, what follows from what."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.job import Attempt, Job, State, Usage
from redrive.deadletters import bulk_progress, bulk_run
from redrive.deadletters.bulk_run import CHUNK, Canary, Chosen, Flight, RedriveRun, RunItem

NOW = 1_800_000_000.0


def a_run(total: int = 10, **said: Any) -> RedriveRun:
    how: dict[str, Any] = {"canary": 0, "pass_rate": 0.8, "rate": None, **said}
    groups = [Chosen("aaaa", "work", "RuntimeError", "broken", total)]
    return bulk_run.new_run("r1", NOW, who="ada", why="cured", chosen="task work", groups=groups, total=total, **how)


def a_job(state: State, **fields: Any) -> Job:
    return Job("j1", "q", "work", None, state, 2, NOW, 5, NOW, NOW, "{}", **fields)


def move(run: RedriveRun, number: int, now: float = NOW, status: str = "moved") -> RedriveRun:
    """The next items of the first chunk are taken."""
    before = tuple(RunItem(str(place), 0) for place in range(run.total))
    after = tuple(
        msgspec.structs.replace(item, status=status, why="no" if status == "skipped" else None)
        if run.position <= place < run.position + number
        else item
        for place, item in enumerate(before)
    )
    return bulk_progress.record_items(run, 0, before, after, now, took=number)


def end(run: RedriveRun, status: str, *places: int, now: float = NOW) -> RedriveRun:
    before = tuple(RunItem(str(place), 0, "moved", None, 1) for place in range(run.total))
    after = tuple(
        msgspec.structs.replace(item, status=status) if place in places else item for place, item in enumerate(before)
    )
    return bulk_progress.record_items(run, 0, before, after, now)


# ---- numbers


STATUSES = ("pending", "skipped", "moved", "succeeded", "failed_again", "discarded")


@settings(max_examples=30)
@given(st.integers(1, 3 * CHUNK), st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_scorecard_adds_up_whatever_happens(total: int, canary: int, chance: random.Random) -> None:
    """Items are taken in any portions and end in any order: the sums hold after every step."""
    groups = [Chosen(str(n), "work", None, None, 0) for n in range(3)]
    items = [RunItem(str(place), chance.randrange(3)) for place in range(total)]
    run = bulk_run.new_run("r", NOW, who="a", why=None, chosen="all", groups=groups, total=total, canary=canary,
                     pass_rate=0.5, rate=None)  # fmt: skip
    chunks = [items[start : start + CHUNK] for start in range(0, total, CHUNK)]
    while run.left:
        number, offset = divmod(run.position, CHUNK)
        before = list(chunks[number])
        took = chance.randint(1, len(before) - offset)
        for place in range(offset, offset + took):
            item, skips = before[place], chance.random() < 0.3
            chunks[number][place] = bulk_run.skipped(item, "no") if skips else bulk_run.taken(item, 1)
        run = bulk_progress.record_items(run, number, before, chunks[number], NOW, took=took)
        for number, chunk in enumerate(chunks):
            before = list(chunk)
            for place, item in enumerate(chunk):
                if item.status == "moved" and chance.random() < 0.3:
                    status = chance.choice(["succeeded", "failed_again", "discarded"])
                    chunk[place] = msgspec.structs.replace(item, status=status)
            run = bulk_progress.record_items(run, number, before, chunk, NOW)
        _adds_up(run, chunks)


def _adds_up(run: RedriveRun, chunks: list[list[RunItem]]) -> None:
    items = [item for chunk in chunks for item in chunk]
    seen = {status: sum(item.status == status for item in items) for status in STATUSES}
    assert run.left == seen["pending"] == run.total - run.position
    assert run.open == seen["moved"] == sum(run.open_in)
    assert run.open_in == tuple(sum(item.status == "moved" for item in chunk) for chunk in chunks)
    for name in ("skipped", "succeeded", "failed_again", "discarded"):
        assert getattr(run, name) == seen[name] == sum(getattr(group, name) for group in run.by_group)
    assert run.moved == run.succeeded + run.failed_again + run.discarded + run.open
    assert run.open == sum(group.open for group in run.by_group)
    assert sum(run.skipped_because.values()) == run.skipped


def test_many_reasons_are_kept_as_some_and_the_rest() -> None:
    counted = bulk_progress.reasons([f"reason {n}" for n in range(50)] + ["often"] * 3 + ["reason 0"])
    assert sum(counted.values()) == 54
    assert len(counted) == bulk_progress.REASONS_KEPT + 1
    assert counted[bulk_progress.OTHER_REASONS] == 33 and next(iter(counted)) == bulk_progress.OTHER_REASONS


def test_chunks_with_open_items_take_turns() -> None:
    run = msgspec.structs.replace(a_run(5 * CHUNK), open_in=(1, 0, 7, 2, 0))
    assert bulk_progress.turns(run, -1) == [0, 2, 3]
    assert bulk_progress.turns(run, 2) == [3, 0, 2]
    assert bulk_progress.turns(run, 3) == [0, 2, 3]


def test_no_error_is_kept_with_a_run() -> None:
    """It can be erased in one place; here it is only shown."""
    run = a_run(1)
    assert b"broken" not in msgspec.json.encode(run)
    assert bulk_run.with_errors(run, {"aaaa": "broken"}).by_group[0].error == "broken"
    item = bulk_run.settled(RunItem("j1", 0, "moved", None, 3), a_job(State.dead, error="secret", because="permanent"))
    assert "secret" not in (item.why or "")


def test_many_groups_are_kept_as_the_largest_and_the_rest() -> None:
    rows = bulk_run.largest([Chosen(str(n), "t", None, None, n) for n in range(1, 8)], kept=3)
    assert [(row.fingerprint, row.number) for row in rows] == [("7", 7), ("6", 6), ("5", 5), (None, 1 + 2 + 3 + 4)]
    assert bulk_run.largest([Chosen("a", "t", None, None, 1)], kept=3)[-1].fingerprint == "a"


# ---- choosing


def test_a_token_stands_for_exactly_these_ids() -> None:
    assert bulk_run.token_for(["a", "b"]) == bulk_run.token_for(["b", "a"])
    assert len({bulk_run.token_for(ids) for ids in (["a"], ["a", "b"], ["ab"], [], ["a", "c"])}) == 5


def test_a_canary_takes_from_every_group_in_turn() -> None:
    items = [("a1", 0), ("a2", 0), ("a3", 0), ("b1", 1), ("b2", 1), ("c1", 2)]
    assert [id for id, _ in bulk_run.spread(items, 4)] == ["a1", "b1", "c1", "a2", "a3", "b2"]
    assert bulk_run.spread(items, 0) == items
    assert sorted(bulk_run.spread(items, 50)) == sorted(items)


def test_an_estimate_is_the_mean_of_those_sampled() -> None:
    usages = [Usage(100, 50, 0.3), None, Usage(30, 20, 0.1), None]
    found = bulk_run.estimate_usage(usages, 1000)
    assert found is not None
    assert (found.tokens, found.sampled, found.reported) == (50_000, 4, 2)
    assert found.cost == pytest.approx(100.0)
    assert bulk_run.estimate_usage([None, None], 1000) is None and bulk_run.estimate_usage([], 0) is None
    unpriced = bulk_run.estimate_usage([Usage(10, 0)], 5)
    assert unpriced is not None and unpriced.cost is None


def test_what_a_job_used_is_what_its_latest_report_says() -> None:
    history = (Attempt(1, "failed", usage=Usage(1)), Attempt(2, "failed", usage=Usage(2)), Attempt(3, "lost"))
    assert bulk_run.last_usage(a_job(State.dead, history=history)) == Usage(2)
    assert bulk_run.last_usage(a_job(State.dead)) is None


# ---- what became of an item


@pytest.mark.parametrize(
    ("state", "fields", "status"),
    [
        (State.waiting, {}, "moved"),
        (State.running, {}, "moved"),
        (State.held, {"because": "approval"}, "moved"),
        (State.done, {}, "succeeded"),
        (State.dead, {"error": "broken"}, "failed_again"),
        (State.held, {"because": "deferred"}, "failed_again"),
        (State.waiting, {"fresh_from": 4}, "failed_again"),
        (State.discarded, {"because": "cancelled"}, "discarded"),
        (State.purged, {}, "discarded"),
    ],
)
def test_an_item_becomes_what_its_job_became(state: State, fields: dict[str, Any], status: str) -> None:
    """Dead, put off after it died, or brought back by somebody else since: all of them failed again."""
    moved = RunItem("j1", 0, "moved", None, 3)
    assert bulk_run.settled(moved, a_job(state, **{"fresh_from": 3, **fields})).status == status


def test_what_has_ended_stays_so() -> None:
    for status in ("pending", "skipped", "succeeded", "failed_again", "discarded"):
        item = RunItem("j1", 0, status, None, 3)
        assert bulk_run.settled(item, a_job(State.done)) is item
    assert bulk_run.settled(RunItem("j1", 0, "moved", None, 3), None).status == "discarded"


# ---- pace


def test_without_a_rate_a_chunk_at_a_time() -> None:
    assert bulk_progress.room(a_run(1000), NOW) == CHUNK
    assert bulk_progress.room(a_run(7), NOW) == 7


def test_the_rate_allows_so_many_a_second() -> None:
    run = a_run(100, rate=10.0)
    assert bulk_progress.room(run, NOW) == 1
    run = move(run, 1)
    moved = [1]
    for second in range(1, 6):
        now = NOW + second
        room = bulk_progress.room(run, now)
        run = move(run, room, now)
        assert bulk_progress.room(run, now) == 0
        moved.append(room)
    assert moved == [1, 10, 10, 10, 10, 10]


def test_a_slow_rate_moves_one_now_and_then() -> None:
    run = move(a_run(5, rate=0.1), 1)
    assert [bulk_progress.room(run, NOW + seconds) for seconds in (0, 5, 9.9, 10, 1000)] == [0, 0, 0, 1, 1]


def test_time_that_nobody_used_does_not_gather() -> None:
    """After a night without a worker, a redrive goes on at its rate, not with a night's worth at once."""
    run = move(a_run(10_000, rate=10.0), 1)
    assert bulk_progress.room(run, NOW + 86_400.0) == 10 * bulk_progress.BURST_SECONDS


def test_a_clock_that_goes_back_allows_nothing_more() -> None:
    run = move(a_run(100, rate=10.0), 1, NOW)
    assert bulk_progress.room(run, NOW - 3600.0) == 0
    run = bulk_progress.record_items(run, 0, (), (), NOW - 3600.0, took=0)
    assert bulk_progress.room(run, NOW - 3600.0) == 0


def test_what_was_skipped_costs_nothing_of_the_rate() -> None:
    run = move(a_run(100, rate=1.0), 1, NOW, status="skipped")
    assert bulk_progress.room(run, NOW) == 1 and run.moved_at is None


# ---- judging that is broken


def test_one_strange_item_is_skipped_and_many_stop_it() -> None:
    def strange(run: RedriveRun, number: int) -> RedriveRun:
        before = tuple(RunItem(str(place), 0) for place in range(run.total))
        after = tuple(
            bulk_run.skipped(item, "cannot be judged: KeyError") if place < number else item
            for place, item in enumerate(before)
        )
        return bulk_progress.record_items(run, 0, before, after, NOW, took=number)

    run = a_run(100)
    assert not bulk_progress.defective(run, strange(run, 9))
    assert bulk_progress.defective(run, strange(run, 10))
    assert not bulk_progress.defective(run, move(run, 50, status="skipped")), "skipped for a reason is another matter"
    moved = move(run, 30)
    assert not bulk_progress.defective(moved, strange(moved, 20)), "most of them were fine"


# ---- the canary


@pytest.mark.parametrize(
    ("succeeded", "failed", "left", "verdict"),
    [
        (0, 0, 90, None),
        (7, 0, 90, None),
        (8, 0, 90, "passed"),
        (8, 2, 90, "passed"),
        (7, 2, 90, None),
        (0, 2, 90, None),
        (0, 3, 90, "failed"),
        (7, 3, 90, "failed"),
    ],
)
def test_a_canary_is_judged_as_soon_as_nothing_can_change_it(
    succeeded: int, failed: int, left: int, verdict: str | None
) -> None:
    assert bulk_progress.judge_canary(Canary(10, 0.8, 0, 10, succeeded, failed), left) == verdict


def test_shares_are_exact() -> None:
    """0.7 of 10 is 7, whatever binary fractions say; and one of one must succeed at any rate above 0."""
    assert bulk_progress.judge_canary(Canary(10, 0.7, 0, 10, 7, 0), 5) == "passed"
    assert bulk_progress.judge_canary(Canary(10, 0.1 + 0.2, 0, 10, 3, 0), 5) == "passed"
    assert bulk_progress.judge_canary(Canary(1, 0.01, 0, 1, 0, 1), 5) == "failed"


def test_where_nothing_is_left_the_moved_ones_are_the_canary() -> None:
    assert bulk_progress.judge_canary(Canary(10, 1.0, 0, 2, 2, 0), 0) == "passed"
    assert bulk_progress.judge_canary(Canary(10, 1.0, 0, 0, 0, 0), 0) is None


def test_a_canary_moves_as_many_as_it_needs_and_then_waits() -> None:
    run = a_run(100, canary=3)
    assert (run.state, bulk_progress.room(run, NOW)) == ("canary", 3)
    run = move(run, 2, status="skipped")
    assert bulk_progress.room(run, NOW) == 3, "what was skipped shows nothing"
    run = move(run, 3)
    assert bulk_progress.room(run, NOW) == 0
    run = bulk_progress.advance(end(run, "discarded", 2), NOW)
    assert (run.state, bulk_progress.room(run, NOW)) == ("canary", 1), "what was let go shows nothing either"


def test_a_canary_that_passed_lets_the_rest_go() -> None:
    run = bulk_progress.advance(end(move(a_run(100, canary=2), 2), "succeeded", 0, 1), NOW)
    assert run.state == "moving" and bulk_progress.room(run, NOW) == 98
    assert run.canary is not None and run.canary.verdict == "passed"
    assert [said.what for said in run.story] == ["started", "canary passed"]


def test_a_canary_that_failed_stops_the_rest() -> None:
    run = bulk_progress.advance(end(move(a_run(100, canary=2), 2), "failed_again", 0), NOW)
    assert run.state == "paused" and bulk_progress.room(run, NOW) == 0
    assert run.reason == "the canary failed: 0 of 1 succeeded, 80% had to"
    assert bulk_progress.advance(run, NOW) is run


def test_after_a_failed_canary_another_one_goes_first() -> None:
    failed = bulk_progress.advance(end(move(a_run(100, canary=2), 2), "failed_again", 0), NOW)
    again = bulk_progress.resumed(failed, NOW, "ada", "fixed")
    assert again is not None and again.state == "canary" and again.reason is None
    assert again.canary == Canary(2, 0.8, start=2) and bulk_progress.room(again, NOW) == 2
    late = end(again, "failed_again", 1)
    assert late.canary == again.canary, "the first canary's stragglers are not evidence against the second"
    without = bulk_progress.resumed(failed, NOW, "ada", None, canary=0)
    assert without is not None and without.state == "moving"
    larger = bulk_progress.resumed(failed, NOW, "ada", None, canary=7)
    assert larger is not None and bulk_progress.room(larger, NOW) == 7


def test_a_canary_judged_while_paused_counts_when_resumed() -> None:
    paused = bulk_progress.paused(move(a_run(100, canary=2), 2), NOW, "ada", None)
    assert paused is not None
    judged = bulk_progress.advance(end(paused, "succeeded", 0, 1), NOW)
    assert judged.state == "paused"
    resumed = bulk_progress.resumed(judged, NOW, "ada", None)
    assert resumed is not None and resumed.state == "moving"


def test_a_pause_within_a_canary_goes_on_with_it() -> None:
    paused = bulk_progress.paused(move(a_run(100, canary=3), 1), NOW, "ada", "lunch")
    assert paused is not None and paused.reason == "paused by ada: lunch"
    resumed = bulk_progress.resumed(paused, NOW, "ada", None)
    assert resumed is not None and (resumed.state, bulk_progress.room(resumed, NOW)) == ("canary", 2)


# ---- how it ends


def test_it_settles_when_all_have_moved_and_finishes_when_all_have_ended() -> None:
    run = bulk_progress.advance(move(a_run(2), 2), NOW)
    assert run.state == "settling" and not run.over
    run = bulk_progress.advance(end(run, "succeeded", 0, 1), NOW + 5)
    assert (run.state, run.ended_at) == ("finished", NOW + 5)
    assert bulk_progress.advance(run, NOW + 9) is run


def test_where_nothing_moved_there_is_nothing_to_wait_for() -> None:
    assert bulk_progress.advance(move(a_run(2), 2, status="skipped"), NOW).state == "finished"


def test_what_is_open_after_a_day_is_told_as_open() -> None:
    run = bulk_progress.advance(move(a_run(2), 2), NOW)
    assert bulk_progress.advance(run, NOW + bulk_progress.SETTLES_SECONDS - 1).state == "settling"
    run = bulk_progress.advance(run, NOW + bulk_progress.SETTLES_SECONDS)
    assert (run.state, run.open) == ("finished", 2)
    assert run.story[-1].why == "2 still open"


def test_cancelled_is_over_when_what_was_moved_has_ended() -> None:
    run = bulk_progress.cancelled(move(a_run(3), 2), NOW, "ada", "enough")
    assert run is not None and (run.state, run.left, run.over) == ("cancelled", 1, False)
    run = bulk_progress.advance(end(run, "succeeded", 0, 1), NOW + 1)
    assert (run.state, run.over, run.succeeded) == ("cancelled", True, 2)
    at_once = bulk_progress.cancelled(a_run(3), NOW, "ada", None)
    assert at_once is not None and at_once.over


def test_steering_is_refused_where_it_means_nothing() -> None:
    finished = bulk_progress.advance(move(a_run(1), 1, status="skipped"), NOW)
    for decide in (bulk_progress.paused, bulk_progress.resumed, bulk_progress.cancelled):
        assert decide(finished, NOW, "ada", None) is None
    paused = bulk_progress.paused(a_run(1), NOW, "ada", None)
    assert paused is not None and bulk_progress.paused(paused, NOW, "ada", None) is None


def test_a_paused_one_gets_no_pace_for_the_time_it_stood() -> None:
    paused = bulk_progress.paused(move(a_run(1000, rate=10.0), 1), NOW, "ada", None)
    assert paused is not None
    resumed = bulk_progress.resumed(paused, NOW + 3600.0, "ada", None)
    assert resumed is not None and bulk_progress.room(resumed, NOW + 3600.0) == 1


# ---- flights


def test_a_group_is_held_while_something_of_it_may_still_move() -> None:
    flight = Flight(NOW, ("aaaa",), frozen=True)
    run = a_run(2)
    assert bulk_run.flight_of(run, flight) is flight
    paused = bulk_progress.paused(run, NOW, "ada", None)
    assert paused is not None and bulk_run.flight_of(paused, flight) is flight
    settling = bulk_progress.advance(move(run, 2), NOW)
    assert bulk_run.flight_of(settling, flight) == Flight(NOW, (), frozen=True)
    assert bulk_run.flight_of(bulk_progress.advance(end(settling, "succeeded", 0, 1), NOW), flight) is None


def test_who_is_in_the_way() -> None:
    flights = {"r1": Flight(NOW, ("aaaa", "bbbb")), "r2": Flight(NOW, ())}
    assert bulk_run.in_the_way(flights, ["bbbb", "cccc"]) == {"bbbb": "r1"}
    assert bulk_run.in_the_way(flights, ["cccc"]) == {}


# ---- outside


def test_the_public_form_has_no_bookkeeping_and_plain_values() -> None:
    run = bulk_progress.advance(end(move(a_run(100, canary=2, rate=5.0), 2), "succeeded", 0), NOW)
    body = msgspec.json.decode(msgspec.json.encode(run.public()))
    assert not {"position", "open_in", "pace", "paused_in"} & body.keys()
    assert body["at"] == "2027-01-15T08:00:00.000Z" and body["ended_at"] is None
    assert (body["total"], body["moved"], body["left"], body["open"]) == (100, 2, 98, 1)
    assert body["canary"]["text"].startswith("the canary of 2 is not judged yet: 1 of 1 succeeded")
    assert body["by_group"][0]["open"] == 1 and body["story"][0]["who"] == "ada"


def test_a_run_survives_being_written_down() -> None:
    run = bulk_progress.advance(end(move(a_run(100, canary=2, rate=5.0), 2), "failed_again", 0), NOW)
    assert msgspec.json.decode(msgspec.json.encode(run), type=RedriveRun) == run
    items = (RunItem("a", 0), bulk_run.skipped(RunItem("b", 1), "x" * 999), bulk_run.taken(RunItem("c", 2), 7))
    assert msgspec.json.decode(msgspec.json.encode(items), type=tuple[RunItem, ...]) == items
    assert len(items[1].why or "") == bulk_run.LONGEST_REASON
