"""The same patch for many dead letters: what it would mean, a few first, and taking it back."""

import json
from typing import Any

import pytest

import redrive
from redrive import Redrive
from redrive.core.job import State
from redrive.deadletters import edit
from redrive.deadletters.input_edits import apply_patch, fields_of, patch_between
from redrive.errors import InvalidInput
from tests.stores.jobs import a_dead_job
from tests.support import FakeClock, soon


def press(rd: Redrive) -> list[dict[str, Any]]:
    """A task that fails where its input has an old address; what it was given is kept."""
    given: list[dict[str, Any]] = []

    @rd.task("press", max_attempts=1, comebacks=())
    async def press(order: int, to: dict[str, str], note: str = "") -> None:
        given.append({"order": order, "to": to, "note": note})
        if to["host"] == "old":
            raise RuntimeError("no such host")

    return given


async def letters(rd: Redrive, number: int = 3) -> list[str]:
    inputs = [{"order": n, "to": {"host": "old", "path": f"/{n}"}, "note": "n"} for n in range(number)]
    ids = [(await rd.enqueue("press", one)).id for one in inputs]
    await soon(rd.drain())
    assert {job.state for job in await rd.store.get(ids)} == {State.dead}
    return ids


NEW: dict[str, Any] = {"to": {"host": "new"}, "note": None}


@pytest.mark.behaviour("V-4")
async def test_the_same_fields_change_in_each_and_what_was_enqueued_stays(rd: Redrive, clock: FakeClock) -> None:
    given = press(rd)
    ids = await letters(rd)
    clock.advance(1)
    run = await rd.dead.edit_many(NEW, task="press", who="ada", why="it has moved")
    given.clear()
    await soon(rd.drain())
    assert given == [{"order": n, "to": {"host": "new", "path": f"/{n}"}, "note": ""} for n in range(3)]
    done = await rd.redrives.get(run.id)
    assert (done.verb, done.said, done.succeeded, done.state) == (
        "edit",
        {"fields": ["to.host", "note"]},
        3,
        "finished",
    )
    for number, job in enumerate(await rd.store.get(ids)):
        assert job.arguments == {"order": number, "to": {"host": "old", "path": f"/{number}"}, "note": "n"}
        assert [change["who"] for change in job.changes] == ["ada"]
    (act,) = await rd.dead.acts()
    assert (act.verb, act.who, act.why, act.moved) == ("edit", "ada", "it has moved", 3)


@pytest.mark.behaviour("V-4")
async def test_an_edit_of_many_is_taken_back_with_what_each_remembered(rd: Redrive, clock: FakeClock) -> None:
    @rd.task("walk", max_attempts=1, comebacks=())
    async def walk(ctx: redrive.Context, way: str) -> None:
        await ctx.step("first", lambda: way)
        raise RuntimeError("lost")

    ids = [(await rd.enqueue("walk", {"way": "west"})).id for _ in range(2)]
    await soon(rd.drain())
    steps = await rd.store.docs("step")
    before = await rd.store.get(ids)
    assert len(steps) == 2
    clock.advance(1)
    run = await rd.dead.edit_many({"way": "east"}, ids=ids)
    await rd.redrives.advance()
    assert await rd.store.docs("step") == [], "what was remembered for the old input is forgotten"
    clock.advance(1)
    undone = await rd.dead.undo(run.id)
    assert (undone.moved, undone.refused) == (2, [])
    assert [(one.key, one.value) for one in await rd.store.docs("step")] == [(one.key, one.value) for one in steps]
    for old, new in zip(before, await rd.store.get(ids), strict=True):
        names = ("state", "changes_json", "payload", "error", "recommendation", "grants", "allowed", "attempts")
        assert [getattr(new, name) for name in names] == [getattr(old, name) for name in names]


@pytest.mark.behaviour("V-4")
async def test_a_preview_counts_samples_and_says_what_does_not_fit(rd: Redrive, clock: FakeClock) -> None:
    press(rd)
    ids = await letters(rd)
    waiting = await rd.enqueue("press", {"order": 7, "to": {"host": "old"}}, delay=3600)
    preview = await rd.dead.preview_edit_many(NEW, ids=[*ids, waiting.id])
    assert (preview.number, preview.changing, preview.text) == (4, 3, "3 of 4 would change; 1 would not")
    assert preview.fields == ["to.host", "note"] and preview.errors == []
    assert list(preview.refused.values()) == [1] and "dead" in next(iter(preview.refused))
    assert {sample.job_id for sample in preview.samples} == set(ids)
    assert any("old" in line and "new" in line for line in preview.samples[0].difference)
    wrong = await rd.dead.preview_edit_many({"order": "many", "colour": "red"}, task="press")
    assert wrong.changing == 0
    assert {(error.field, error.number) for error in wrong.errors} >= {("order", 3)}
    same = await rd.dead.preview_edit_many({"note": "n"}, task="press")
    assert same.changing == 0 and same.refused == {"is the same as before: redrive it as it is": 3}
    assert {job.state for job in await rd.store.get(ids)} == {State.dead}
    assert await rd.dead.acts() == []


@pytest.mark.behaviour("V-4")
async def test_a_few_go_first_and_the_rest_waits_where_they_fail(rd: Redrive, clock: FakeClock) -> None:
    press(rd)
    ids = await letters(rd, 5)
    run = await rd.dead.edit_many({"note": "urgent"}, task="press", canary=2)
    await soon(rd.drain())
    paused = await rd.redrives.get(run.id)
    assert (paused.state, paused.moved, paused.failed_again) == ("paused", 2, 2)
    await rd.redrives.cancel(run.id)
    await soon(rd.drain())
    assert sum("urgent" in (job.changes_json or "") for job in await rd.store.get(ids)) == 2


async def test_a_preview_of_thousands_reads_the_first_of_them(rd: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is counted by an index; the token stands for all of them all the same."""
    press(rd)
    number = 3_000
    inputs = [{"order": n, "to": {"host": "old"}, "note": "n"} for n in range(number)]
    dead = [a_dead_job(queue="press", task="press", payload=json.dumps(one), fingerprint="f" * 16) for one in inputs]
    await rd.store.insert(dead)
    read = 0
    judge = edit._Tally.judge

    def counted(tally: edit._Tally, job: redrive.Job) -> None:
        nonlocal read
        read += 1
        judge(tally, job)

    monkeypatch.setattr(edit._Tally, "judge", counted)
    preview = await rd.dead.preview_edit_many(NEW, task="press")
    assert (preview.number, preview.looked_at, preview.changing, read) == (number, 50, 50, 50)
    assert preview.text == "50 of the first 50 would change (first 50 of 3,000 shown)"
    assert len(preview.samples) == 5 and preview.running == []
    await rd.store.insert([a_dead_job(queue="press", task="press", payload='{"order":1,"to":{"host":"old"}}')])
    with pytest.raises(InvalidInput, match="plan again"):
        await rd.dead.edit_many(NEW, task="press", token=preview.token)
    again = await rd.dead.preview_edit_many(NEW, task="press")
    run = await rd.dead.edit_many(NEW, task="press", token=again.token)
    assert run.total == number + 1
    during = await rd.dead.preview_edit_many(NEW, task="press")
    assert during.running == [run.id]


async def test_a_token_is_for_exactly_what_was_previewed(rd: Redrive) -> None:
    press(rd)
    await letters(rd)
    preview = await rd.dead.preview_edit_many(NEW, task="press")
    await letters(rd, 1)
    with pytest.raises(InvalidInput, match="plan again"):
        await rd.dead.edit_many(NEW, task="press", token=preview.token)


@pytest.mark.parametrize("patch", [{}, [], "x", None, {"order": float("nan")}])
async def test_a_patch_that_is_none_is_refused(rd: Redrive, patch: Any) -> None:
    press(rd)
    await letters(rd, 1)
    for call in (rd.dead.edit_many(patch, task="press"), rd.dead.preview_edit_many(patch, task="press")):
        with pytest.raises(InvalidInput) as refused:
            await call
        assert refused.value.field == "patch"


async def test_the_words_of_a_patch_go_when_the_last_was_taken(rd: Redrive) -> None:
    """They may tell of jobs, and a run is not erased with them."""
    press(rd)
    await letters(rd)
    await rd.dead.edit_many({"note": "canary-4711"}, task="press")
    await rd.redrives.advance()
    written = [*await rd.store.docs("redrive"), *await rd.store.docs("redrive_items")]
    assert written and not any(b"canary-4711" in one.value for one in written)


RFC = [  # the cases of RFC 7396, appendix A, as far as both are objects
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC)
def test_a_merge_patch_is_that_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert apply_patch(target, patch) == result


def test_the_patch_between_two_inputs() -> None:
    before = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}
    after = {"a": 1, "b": {"c": 2, "d": 4}, "f": True}
    patch = patch_between(before, after)
    assert patch == {"b": {"d": 4}, "e": None, "f": True} and apply_patch(before, patch) == after
    assert fields_of(patch) == ["e", "b.d", "f"]
    assert patch_between({"a": 1}, {"a": None}) is None, "a merge patch cannot set a field to null"
    assert patch_between(before, before) == {}
