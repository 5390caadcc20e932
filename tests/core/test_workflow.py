"""What a workflow's jobs say about the whole, and what its outputs become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive.core.job import Job, State
from redrive.core.workflow import (
    MAX_STEPS,
    Flow,
    FlowStep,
    Output,
    StepState,
    check_references,
    fill_references,
    judge,
    order_steps,
    shape_of,
    status_of,
    step_id,
    store_references,
    workflow_id,
)
from redrive.errors import InvalidInput, InvalidPayload
from tests.stores.jobs import T0

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def flow_of(after: dict[str, tuple[str, ...]]) -> Flow:
    return Flow("f", "test", tuple(FlowStep(name, f"job-{name}", "task", each) for name, each in after.items()), "", T0)


def job(name: str, state: State, **said: Any) -> Job:
    return Job(f"job-{name}", "task", "task", None, state, 2, T0, 1, T0, T0, "{}", **said)


def waiting_for_others(name: str) -> Job:
    return job(name, State.held, because="blocked", held_for="workflow:f")


def jobs_of(**states: Job | str) -> dict[str, Job]:
    """By step: a job, or the name of its state; "blocked" is held for the steps before it."""
    made = [
        said if isinstance(said, Job) else waiting_for_others(name) if said == "blocked" else job(name, State(said))
        for name, said in states.items()
    ]
    return {each.id: each for each in made}


def words(status: Any) -> list[StepState]:
    return [step.state for step in status.steps]


# -- the order


def test_steps_come_after_those_they_wait_for() -> None:
    order = order_steps(DIAMOND)
    assert order[0] == "a" and order[-1] == "d" and len(order) == 4


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        ({}, "there are 0"),
        ({str(n): () for n in range(MAX_STEPS + 1)}, "there are 10001"),
        ({"a": ("x",)}, "no step 'x'"),
        ({"a": ("a",)}, "a → a"),
        ({"a": ("c",), "b": ("a",), "c": ("b",)}, "circle"),
    ],
    ids=["none", "too many", "unknown", "itself", "circle"],
)
def test_what_cannot_be_a_workflow_is_refused(after: dict[str, tuple[str, ...]], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        order_steps(after)


def test_near_and_far_relations() -> None:
    flow = flow_of({**DIAMOND, "alone": ()})
    assert {step.name for step in flow.before(flow.by_name["d"])} == {"a", "b", "c"}
    assert {step.name for step in flow.behind(flow.by_name["a"])} == {"b", "c", "d"}
    assert [step.name for step in flow.final] == ["d", "alone"]
    assert msgspec.json.decode(msgspec.json.encode(flow), type=Flow) == flow


def test_ids_and_shapes_follow_from_what_was_said() -> None:
    assert workflow_id("article", "k") == workflow_id("article", "k") != workflow_id("report", "k")
    assert step_id("f", "a") != step_id("f", "b")
    one = [("a", "t", "q", (), "hash"), ("b", "t", "q", ("a",), "hash")]
    assert shape_of(one) == shape_of(one[::-1])
    others = [("a", "t", "q", (), "other"), ("b", "t", "q", ("a",), "hash")], [*one, ("c", "t", "q", (), "hash")]
    assert len({shape_of(each) for each in (one, *others)}) == 3


# -- how it stands


@pytest.mark.behaviour("003-65")
def test_a_step_waiting_after_a_failure_is_retry_pending_and_its_dependents_are_not_available() -> None:
    failed_once = job("b", State.waiting, first_failed_at=T0, error="TimeoutError")
    status = status_of(flow_of(DIAMOND), jobs_of(a="done", b=failed_once, c="done", d="blocked"))
    assert words(status) == ["DONE", "RETRY_PENDING", "DONE", "PENDING"]
    assert status.state == "running" and not status.complete
    assert status.step("d").waits_for == ("b",) and not status.step("d").available
    assert "waiting after a failure: b" in status.text


@pytest.mark.behaviour("B18", "003-67")
def test_a_failed_step_blocks_everything_behind_it_and_nothing_to_do_is_not_complete() -> None:
    flow = flow_of({"a": (), "b": ("a",), "c": ("b",), "d": ()})
    dead = job("a", State.dead, because="attempts_exhausted", error="TimeoutError: slow", recommendation="Wait.")
    status = status_of(flow, jobs_of(a=dead, b="blocked", c="blocked", d="done"))
    assert words(status) == ["FAILED", "BLOCKED", "BLOCKED", "DONE"]
    assert status.state == "blocked" and not status.complete
    assert not any(step.available for step in status.steps), "nothing is available, and it is not complete either"
    assert [step.name for step in status.failed] == ["a"] and [step.name for step in status.blocked] == ["b", "c"]
    assert "step a failed (attempts_exhausted: TimeoutError: slow)" in status.text
    assert "blocked by that: b, c" in status.text and "redrive dead redrive" in status.text


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("done", "done", "done", "done"), "complete"),
        (("done", "dead", "done", "blocked"), "blocked"),
        (("done", "done", "running", "dead"), "blocked"),
        (("done", "done", "done", "dead"), "blocked"),
        (("waiting", "blocked", "blocked", "blocked"), "running"),
        (("done", "running", "done", "blocked"), "running"),
        (("done", "held", "done", "blocked"), "running"),
        (("done", "discarded", "running", "discarded"), "running"),
        (("done", "discarded", "done", "discarded"), "discarded"),
        (("discarded", "discarded", "discarded", "discarded"), "discarded"),
        (("done", "purged", "done", "discarded"), "discarded"),
    ],
)
def test_the_whole_from_its_parts(states: tuple[str, ...], expected: str) -> None:
    assert status_of(flow_of(DIAMOND), jobs_of(**dict(zip(DIAMOND, states, strict=True)))).state == expected


def test_a_hold_for_a_person_is_not_a_step_that_waits_for_others() -> None:
    asked = job("b", State.held, because="approval")
    status = status_of(flow_of(DIAMOND), jobs_of(a="done", b=asked, c="done", d="blocked"))
    assert words(status) == ["DONE", "HELD", "DONE", "PENDING"] and "held for a person or a circuit: b" in status.text


def test_a_forgotten_job_had_ended() -> None:
    status = status_of(flow_of(DIAMOND), jobs_of(b="done", c="done", d="done"))
    assert words(status)[0] == "FORGOTTEN" and status.complete


def test_long_lists_are_cut_in_words_only() -> None:
    flow = flow_of({f"s{n}": () for n in range(30)})
    status = status_of(flow, {step.job_id: job(step.name, State.waiting) for step in flow.steps})
    assert "s9 and 20 more" in status.text and len(status.steps) == 30


# -- what must move


def states(jobs: dict[str, Job]) -> dict[str, State]:
    return {each.id: each.state for each in jobs.values()}


@pytest.mark.parametrize(
    ("said", "ready", "doomed"),
    [
        ({"a": "running", "b": "blocked", "c": "blocked", "d": "blocked"}, [], []),
        ({"a": "done", "b": "blocked", "c": "blocked", "d": "blocked"}, ["b", "c"], []),
        ({"a": "done", "b": "done", "c": "waiting", "d": "blocked"}, [], []),
        ({"a": "done", "b": "done", "c": "done", "d": "blocked"}, ["d"], []),
        ({"a": "done", "b": "dead", "c": "done", "d": "blocked"}, [], []),
        ({"a": "discarded", "b": "blocked", "c": "blocked", "d": "blocked"}, [], ["b", "c", "d"]),
        ({"a": "done", "b": "purged", "c": "running", "d": "blocked"}, [], ["d"]),
        ({"b": "blocked", "c": "done", "d": "blocked"}, ["b"], []),
    ],
    ids=["not yet", "fan out", "one missing", "fan in", "dead", "let go", "removed", "forgotten"],
)
def test_who_need_wait_no_longer(said: dict[str, str], ready: list[str], doomed: list[str]) -> None:
    jobs = jobs_of(**said)
    found = judge(flow_of(DIAMOND), jobs.values(), states(jobs))
    assert [each.id for each in found.ready] == [f"job-{name}" for name in ready]
    assert sorted(each.id for each, _ in found.doomed) == [f"job-{name}" for name in doomed]


def test_a_step_held_for_something_else_is_left_alone() -> None:
    jobs = jobs_of(a="done", b=job("b", State.held, because="approval"), c="done", d="blocked")
    assert judge(flow_of(DIAMOND), jobs.values(), states(jobs)).ready == ()


# -- outputs


def test_outputs_are_stored_as_references_and_filled_in_later() -> None:
    draft = Output("write")
    used: list[str] = []
    kept = store_references({"text": draft, "parts": [draft["title"], {"n": draft.pages[0]}], "plain": (1, "x")}, used)
    assert used == ["write"] * 3
    assert msgspec.json.decode(msgspec.json.encode(kept)) == {
        "text": {"$output": "write", "path": []},
        "parts": [{"$output": "write", "path": ["title"]}, {"n": {"$output": "write", "path": ["pages", 0]}}],
        "plain": [1, "x"],
    }
    result = {"title": "T", "pages": [7]}
    assert fill_references(kept, {"write": result}) == {"text": result, "parts": ["T", {"n": 7}], "plain": [1, "x"]}


def test_data_that_looks_like_an_output_is_refused() -> None:
    with pytest.raises(InvalidPayload, match=r"\$output"):
        store_references({"text": {"$output": "secret", "path": []}}, [])
    with pytest.raises(InvalidPayload, match=r"\$output"):
        check_references({"text": {"$output": "secret", "path": []}}, 0)
    check_references({"text": {"$output": "mine", "path": []}}, 1)


def test_a_result_that_looks_like_an_output_stays_what_it_is() -> None:
    sly = {"$output": "other", "path": []}
    assert fill_references({"text": {"$output": "a", "path": []}}, {"a": sly, "other": "secret"}) == {"text": sly}


def test_a_reference_to_no_step_before_it_stays_what_it_is() -> None:
    assert fill_references({"$output": "x", "path": []}, {}) == {"$output": "x", "path": []}
    assert fill_references({"$output": 5, "path": []}, {}) == {"$output": 5, "path": []}


@pytest.mark.parametrize("value", [None, "text", {"other": 1}, []], ids=str)
def test_a_part_that_is_not_there_is_named(value: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"'a'.*no 'title'") as caught:
        fill_references({"$output": "a", "path": ["title"]}, {"a": value})
    assert caught.value.error_kind == "invalid_input"


def test_a_result_that_is_no_longer_kept_is_told_not_guessed() -> None:
    with pytest.raises(InvalidPayload, match="no longer kept"):
        fill_references({"$output": "a", "path": []}, {}, {"a"})


def test_an_output_can_be_passed_on_not_looked_into() -> None:
    draft = Output("write")
    for look in (bool, len, list):
        with pytest.raises(TypeError, match="not there yet"):
            look(draft)  # type: ignore[operator]
    with pytest.raises(InvalidPayload):
        draft[1.5]  # type: ignore[index]
    with pytest.raises(AttributeError):
        _ = draft._secret
    assert repr(draft["a"][0].b) == "<output of 'write'['a'][0]['b']>"


@pytest.mark.parametrize(
    "use",
    [str, "About {}".format, lambda output: f"About {output.title}",
     lambda output: output == "bees", lambda output: output != "bees"],
)  # fmt: skip
def test_an_output_is_no_text_yet(use: Callable[[Output], Any]) -> None:
    """The step would be given the words that stand for it, and would not even wait."""
    with pytest.raises(TypeError, match="not there yet"):
        use(Output("write"))
