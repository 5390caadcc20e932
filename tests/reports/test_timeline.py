"""A job's story: attempts and moves in one order, what can be done now, and two inputs side by side."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import Attempt, Cause, Failure, Job, State, Usage
from redrive.core.lifecycle import MAX_GRANTS, MOVES
from redrive.core.store import Event
from redrive.deadletters.verbs import Note
from redrive.reports.run_diff import LONGEST, MOST, Part, compare, words
from redrive.reports.timeline import Story, span, tell
from redrive.retries.changes.difference import same

NOW = 1_800_000_000.0


def job(state: str = "dead", **fields: Any) -> Job:
    known = {"because": "attempts_exhausted", "lane": "manual"} if state == "dead" else {}
    return msgspec.structs.replace(
        Job("a" * 32, "mail", "send", None, State(state), 2, NOW - 50, 7, NOW - 100, NOW - 10, '{"to": "ada"}'),
        **(known | fields),
    )


def move(name: str, at: float, run: int = 1, **said: Any) -> Event:
    return Event("1.1", name, at, "a" * 32, "mail", "send", State.waiting, run, run, **said)


def failed(run: int, at: float, **said: Any) -> Attempt:
    failure = Failure(types=("builtins.TimeoutError",), message="too slow", body="busy", frames=("app:send:3",))
    cause = Cause("transient", "timeout", "at_once", "class_table")
    return Attempt(
        run, "failed", at - 3, at, "w1", failure=failure, cause=cause, decision="again in 2 s", **said
    )  # fmt: skip


def verbs(told: Story) -> list[str]:
    return [choice.verb for choice in told.choices]


# ---- the order of things


def test_attempts_and_moves_are_one_story_in_order_and_nothing_is_told_twice() -> None:
    moves = [
        move("enqueued", NOW - 100, 0),
        move("retried", NOW - 80, 1, why="again in 2 s"),
        move("buried", NOW - 60, 2, why="no more"),
        move("redriven", NOW - 40, 2, who="ada", why="token renewed"),
        move("buried", NOW - 10, 3),
    ]
    history = (failed(1, NOW - 80), failed(2, NOW - 60), failed(3, NOW - 10))
    told = tell(job(history=history), moves, NOW, [Note(NOW - 20, "bob", "waiting for the provider")])
    assert [(entry.kind, entry.title, entry.run) for entry in told.entries] == [
        ("born", "enqueued", None),
        ("attempt", "failed", 1),
        ("attempt", "failed", 2),
        ("move", "redriven", None),
        ("note", "noted", None),
        ("attempt", "failed", 3),
    ]
    redriven = told.entries[3]
    assert (redriven.who, redriven.why, redriven.tone) == ("ada", "token renewed", "person")


def test_an_attempt_says_cause_rule_with_its_note_decision_changes_and_usage() -> None:
    changes = [{"change": "compress_context", "max_tokens": 80_000}, {"change": "set_model", "model": "large"}]
    usage = Usage(1_200, 30, 0.25)
    attempt = failed(1, NOW - 20, changes=changes, usage=usage, agent="writer", model="m", effects={"post": "absent"})
    (entry,) = [entry for entry in tell(job(history=(attempt,)), [], NOW).entries if entry.kind == "attempt"]
    assert entry.seconds == 3 and entry.worker == "w1" and entry.tone == "bad"
    expected = {
        "by": "writer, m",
        "changed": "context compressed to 80,000 tokens; model large",
        "failure": "TimeoutError: too slow",
        "answer": "busy",
        "where": "app:3 in send",
        "cause": "transient, timeout",
        "effects": "post absent",
        "decision": "again in 2 s",
        "usage": "1,200 tokens read, 30 written, 0.25 spent",
    }
    assert {name: entry.fact(name) for name in expected} == expected
    rule = entry.fact("rule")
    assert rule is not None and rule.startswith("class_table: ") and len(rule) > len("class_table: ")
    assert {fact.name for fact in entry.facts if fact.outside} == {"failure", "answer"}


def test_what_a_retry_was_told_is_marked_when_some_of_it_came_from_a_failure() -> None:
    change = {"change": "add_instruction", "text": "Do better.\n" + "x" * 1000, "tainted": True}
    told = tell(job(history=(failed(1, NOW, changes=[change]),)), [], NOW)
    said = told.entries[-1].fact("changed")
    assert said is not None and "some of it from a failure" in said and len(said) < 400 and "\n" not in said


def test_a_birth_that_was_pruned_is_told_by_the_record_and_a_run_that_goes_on_is_there() -> None:
    running = job("running", run=2, started_at=NOW - 5, worker="w9", history=(failed(1, NOW - 60),))
    told = tell(running, [], NOW)
    assert [(entry.title, entry.at) for entry in told.entries] == [
        ("enqueued", NOW - 100), ("failed", NOW - 60), ("running", NOW - 5),
    ]  # fmt: skip
    assert told.standing == "Running for 5 s: run 2 on w9."


def test_a_burial_without_an_attempt_is_an_entry_of_its_own() -> None:
    told = tell(job(), [move("enqueued", NOW - 100, 0), move("buried", NOW - 9, 0, why="too old")], NOW)
    assert [(entry.title, entry.why, entry.tone) for entry in told.entries[1:]] == [("buried", "too old", "bad")]


def test_secrets_that_people_wrote_are_masked() -> None:
    moves = [move("redriven", NOW, who="ada", why="set token=abcdef123456 and try")]
    told = tell(job(), moves, NOW, [Note(NOW, "bob", "the password: hunter2222")])
    said = msgspec.json.encode(told.public()).decode()
    assert "abcdef123456" not in said and "hunter2222" not in said and said.count("[redacted]") == 2


def test_what_all_attempts_spent_is_added_up_and_unknown_where_nobody_said() -> None:
    history = (failed(1, NOW - 5, usage=Usage(1, 2, 0.5)), failed(2, NOW - 4), failed(3, NOW, usage=Usage(1, 1, 0.25)))
    assert tell(job(history=history), [], NOW).spent == Usage(2, 3, 0.75)
    assert tell(job(history=(failed(1, NOW),)), [], NOW).spent is None


# ---- what can be done


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (job("waiting"), ["cancel"]),
        (job("running"), ["cancel"]),
        (job("done"), []),
        (job("purged"), []),
        (job("discarded"), ["restore"]),
        (job("held", because="approval"), ["approve", "reject", "cancel"]),
        (job("held", because="consent"), ["approve", "reject", "cancel"]),
        (job("held", because="blocked"), ["cancel"]),
        (job("held", because="circuit_open", held_for="host:x"), ["close_breaker", "cancel"]),
        (job("held", because="outcome_unknown"), ["landed", "not_landed", "cancel"]),
        (job("held", because="deferred"), ["recall", "redrive", "edit", "reassign", "cancel"]),
        (job(), ["redrive", "edit", "reassign", "defer", "move_lane", "landed", "discard"]),
        (job(detail="invalid_input"), ["edit", "redrive", "reassign", "defer", "move_lane", "landed", "discard"]),
        (job(because="outcome_unknown"), ["landed", "not_landed", "defer", "move_lane", "discard"]),
        (job(grants=MAX_GRANTS, attempts=9, allowed=9), ["defer", "move_lane", "landed", "discard"]),
    ],
)
def test_what_can_be_done_now_is_what_is_legal_now(found: Job, expected: list[str]) -> None:
    told = tell(found, [], NOW)
    assert verbs(told) == expected
    assert all(choice.when and choice.label and choice.command for choice in told.choices)
    assert told.next == (told.choices[0] if found.state in (State.held, State.dead) else None)


def test_the_other_lane_is_offered() -> None:
    for lane, other in (("manual", "delayed"), ("delayed", "manual")):
        choice = tell(job(lane=lane), [], NOW).choice("move_lane")
        assert choice is not None and choice.command == f"redrive dead lane aaaaaaaa {other} --why TEXT"


@pytest.mark.parametrize(
    ("found", "standing"),
    [
        (job("waiting", run_at=NOW + 90), "Runs in 2 min."),
        (job("waiting"), "Waits for a free worker that knows send."),
        (job("waiting", attempts=1, error_class="E", run_at=NOW + 5), "Failed once; runs again in 5 s."),
        (job("waiting", attempts=3, error_class="E"), "Failed 3 times; waits for a free worker that knows send."),
        (job("done", attempts=1), "Done 10 s ago after 1 attempt."),
        (
            job(died_at=NOW - 7200, owner="ceo"),
            "Dead for 2 h: every attempt was used up. It waits for a person, ceo.",
        ),
        (job(lane="delayed", owner="ceo"), "Dead for 10 s: every attempt was used up. It comes back by itself."),
        (job(because="never_heard_of"), "Dead for 10 s: never heard of. It waits for a person."),
        (
            job("held", because="deferred", owner="bob", run_at=NOW + 3600),
            "Deferred to bob; it is back among the dead letters in 1 h.",
        ),
        (
            job("held", because="approval", held_at=NOW - 60),
            "It asked a question 1 min ago and waits for the answer.",
        ),
        (job("discarded", because="discarded"), "Let go 10 s ago: a person let it go."),
        (job("purged"), "Purged: its contents are gone for good; its key stays remembered."),
    ],
)
def test_where_it_stands_is_one_sentence(found: Job, standing: str) -> None:
    assert tell(found, [], NOW).standing == standing


def test_every_move_of_the_lifecycle_can_be_told() -> None:
    told = tell(job(), [move(name, NOW, who="ada", why="so") for name in MOVES], NOW)
    assert len(told.entries) == len(MOVES)
    assert all("_" not in entry.title for entry in told.entries)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "1 h"), (7200, "2 h"), (1e6, "12 d")]
)
def test_spans(seconds: float, said: str) -> None:
    assert span(seconds) == said


# ---- two inputs side by side


def side(parts: tuple[Part, ...] | None) -> str:
    """One side, with what differs in brackets."""
    return "".join(f"[{part.text}]" if part.differs else part.text for part in parts or ())


def test_a_comparison_goes_by_path_and_by_word() -> None:
    before = {"to": "ada", "gone": 1, "ask": {"text": "write a long poem", "n": 1}, "list": ["a", "b", "c"]}
    after = {"to": "ada", "ask": {"text": "write a short poem", "n": 2}, "list": ["a", "c"], "new": True}
    found = [(item.path, item.kind, side(item.before), side(item.after)) for item in compare(before, after).differences]
    assert found == [
        ("gone", "removed", "[1]", ""),
        ("ask.text", "changed", "write a [long] poem", "write a [short] poem"),
        ("ask.n", "changed", "[1]", "[2]"),
        ("list[1]", "removed", "[b]", ""),
        ("new", "added", "", "[true]"),
    ]


def test_an_entry_in_the_middle_of_a_long_list_is_found() -> None:
    """However long what stands before and behind it, and although all entries begin alike."""
    before = [f"{'the same beginning of every entry ' * 2}{number}" for number in range(5000)]
    after = [*before[:2500], *before[2501:]]
    assert [(found.path, found.kind) for found in compare(before, after).differences] == [("[2500]", "removed")]
    changed = [*before[:2500], "another", *before[2501:]]
    assert [(found.path, found.kind) for found in compare(before, changed).differences] == [("[2500]", "changed")]


def test_an_entry_that_was_cut_is_the_same_entry() -> None:
    head = "the beginning of a very long message that goes on "
    (one,) = compare({"m": ["x", head + "and on and on"]}, {"m": ["x", head + "[…]"]}).differences
    assert one.path == "m[1]" and one.kind == "changed"


def test_what_is_the_same_on_both_sides_is_left_out_but_for_its_ends() -> None:
    long = "word " * 500
    before, after = words(f"{long}old {long}", f"{long}new {long}")
    assert len(side(before)) < 200 and "[old]" in side(before) and "[new]" in side(after)


def test_a_long_input_is_compared_in_bounds() -> None:
    before = {"text": "a " * 50_000, "list": list(range(10_000)), **{str(number): 1 for number in range(500)}}
    after = {"text": "b c " * 50_000, "list": [0, *range(10_000)], **{str(number): 2 for number in range(500)}}
    found = compare(before, after)
    assert len(found.differences) == MOST and found.more
    assert all(len(side(item.before)) < LONGEST + 100 for item in found.differences)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab <", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_a_comparison_is_empty_exactly_where_both_are_the_same(before: Any, after: Any) -> None:
    assert compare(before, after).equal is same(before, after)


@given(st.text("ab \n.", max_size=20), st.text("ab \n.", max_size=20))
def test_both_sides_can_be_read_whole(before: str, after: str) -> None:
    old, new = words(before, after)
    assert ("".join(part.text for part in old), "".join(part.text for part in new)) == (before, after)
