"""Effects with manifests: looked for before anything is repeated, on every path that may repeat it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Context, Effect, JobHandle, OutcomeUnknown, Redrive
from redrive.core.store import Commit, Wanted
from redrive.engine.inline_runs import InlineRunner
from redrive.errors import IllegalMove, InvalidInput, InvalidOption, StoreBusy
from redrive.reports.timeline import tell
from tests.support import FakeClock, eventually, soon


@pytest.fixture(autouse=True)
def no_pauses(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(self: InlineRunner, seconds: float) -> None:
        clock.advance(seconds)

    monkeypatch.setattr(InlineRunner, "_pause", pause)


class Half:
    def __repr__(self) -> str:
        return "half a character: \udcff"


class Vault:
    """Something outside that keeps notes: slow, forgetful in its answers, but it can be asked."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.looks: list[tuple[Any, Any]] = []
        self.blind = False

    def write(self, text: str) -> None:
        self.notes.append(text)

    def find(self, payload: dict[str, Any], witness: Any) -> bool | None:
        self.looks.append((payload, witness))
        if self.blind:
            return None
        return (witness or payload["text"]) in self.notes


@pytest.fixture
def vault() -> Vault:
    return Vault()


async def over(rd: Redrive, clock: FakeClock, handle: JobHandle[Any]) -> Any:
    """Run it, going on in time, until it waits no more."""
    for _ in range(20):
        await soon(rd.drain())
        job = await handle.refresh()
        if job.state != "waiting":
            return job
        clock.advance(max(0.0, job.run_at - clock.now()))
    raise AssertionError("it still waits")


# An uncertain write --------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-31", "003-32", "003-69", "003-70", "B25")
async def test_a_write_that_landed_without_an_answer_is_done_with_a_warning(rd: Redrive, vault: Vault) -> None:
    @rd.task(effects=[Effect("note", vault.find)])
    async def note(text: str) -> None:
        vault.write(text)
        raise OutcomeUnknown("no answer")

    outcome = await soon(note.call("hello"))
    assert outcome and outcome.recovered == 1
    shown = outcome.public()
    assert (shown["status"], shown["post_write_recovery"], shown["effects_verified"]) == ("ok", True, 1)
    assert "note verified" in shown["warning"]
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.state, job.error, job.run_at) == ("done", None, job.run_at)
    assert (vault.notes, len(vault.looks)) == (["hello"], 1)
    last = job.history[-1]
    assert last.outcome == "recovered" and last.failure is not None and last.failure.error_class == "OutcomeUnknown"
    assert not (await rd.jobs.list(state="waiting")).jobs


@pytest.mark.behaviour("003-33")
@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_write_that_is_not_there_is_done_again(rd: Redrive, vault: Vault, idempotent: bool) -> None:
    calls: list[str] = []

    @rd.task(effects=[Effect("note", vault.find)], idempotent=idempotent)
    async def note(text: str) -> str:
        calls.append(text)
        if len(calls) == 1:
            raise OutcomeUnknown("no answer")
        vault.write(text)
        return "written"

    outcome = await soon(note.call("hello"))
    assert outcome.result == "written" and not outcome.recovered
    assert vault.notes == ["hello"]


@pytest.mark.behaviour("003-33", "C29", "C38")
@pytest.mark.parametrize("idempotent", [False, True])
async def test_what_nobody_can_tell_is_repeated_only_where_that_is_harmless(
    rd: Redrive, clock: FakeClock, vault: Vault, idempotent: bool
) -> None:
    vault.blind = True
    calls: list[str] = []

    @rd.task(effects=[Effect("note", vault.find)], idempotent=idempotent)
    async def note(text: str) -> str:
        calls.append(text)
        if len(calls) == 1:
            raise OutcomeUnknown("no answer")
        return "written"

    job = await over(rd, clock, await note.enqueue("hello"))
    if idempotent:
        assert (job.state, len(calls)) == ("done", 2)
    else:
        assert (job.state, job.because, len(calls)) == ("held", "outcome_unknown", 1)
        assert "--landed" in str(job.recommendation) and "receiver" in str(job.recommendation)


@pytest.mark.behaviour("003-57", "003-34", "B28")
@pytest.mark.parametrize("path", ["call", "worker", "retry"])
async def test_a_replay_that_becomes_uncertain_is_looked_for_too(
    rd: Redrive, clock: FakeClock, vault: Vault, path: str
) -> None:
    """The first attempt failed plainly, a later one writes and loses the answer."""
    calls: list[int] = []

    @rd.task(effects=[Effect("a", vault.find), Effect("b", vault.find)], idempotent=True, backoff="none")
    async def note(text: str) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("cut")
        vault.write(text)
        raise OutcomeUnknown("no answer")

    if path == "call":
        outcome = await soon(note.call("hello"))
    else:
        handle = await note.options(delay=60).enqueue("hello")
        if path == "retry":
            outcome = await soon(rd.retry(handle.id))
        else:
            await over(rd, clock, handle)
            outcome = await rd.outcome(handle.id)
    assert (outcome.status, outcome.recovered, len(calls)) == ("ok", 2, 2)


@pytest.mark.behaviour("B2")
async def test_uncertain_goes_before_every_other_reading(rd: Redrive, vault: Vault) -> None:
    """It often is a timeout, too; and the task may even say that timeouts are to be retried."""

    class WriteTimedOut(OutcomeUnknown, TimeoutError):
        pass

    calls: list[int] = []

    @rd.task(retry_on=(TimeoutError,))
    async def plain(text: str) -> None:
        calls.append(1)
        raise WriteTimedOut("no answer")

    outcome = await soon(plain.call("hello"))
    assert (outcome.status, len(calls)) == ("held", 1)


# The late commit -----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B3")
async def test_a_write_that_lands_after_the_look_is_found_before_the_replay(
    rd: Redrive, clock: FakeClock, vault: Vault
) -> None:
    calls: list[str] = []

    @rd.task(effects=[Effect("note", vault.find)], idempotent=True)
    async def note(text: str) -> None:
        calls.append(text)
        raise OutcomeUnknown("no answer", witness="receipt 7")

    handle = await note.enqueue("hello")
    await soon(rd.drain())
    assert (await handle.refresh()).state == "waiting", "not there yet: to be done again"
    vault.notes.append("receipt 7")  # lands while it waits
    job = await over(rd, clock, handle)
    assert (job.state, job.history[-1].outcome, len(calls)) == ("done", "recovered", 1)
    assert [witness for _, witness in vault.looks] == ["receipt 7", "receipt 7"], "the witness was kept"


@pytest.mark.behaviour("B3")
async def test_a_fresh_witness_takes_the_place_of_the_old_one(rd: Redrive, clock: FakeClock, vault: Vault) -> None:
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)], idempotent=True, backoff="none")
    async def note(text: str) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise OutcomeUnknown("no answer", witness=f"receipt {len(calls)}")
        vault.write("receipt 1")

    job = await over(rd, clock, await note.enqueue("hello"))
    assert job.state == "done"
    assert [witness for _, witness in vault.looks] == ["receipt 1", "receipt 1", "receipt 2", "receipt 2"]


async def test_a_witness_survives_the_process(database: Path, clock: FakeClock, vault: Vault) -> None:
    def app() -> Redrive:
        rd = Redrive(database, clock=clock)

        @rd.task("note", effects=[Effect("note", vault.find)], idempotent=True)
        async def note(text: str) -> None:
            raise OutcomeUnknown("no answer", witness={"path": "a.md", "hint": "hello"})

        return rd

    async with app() as rd:
        handle = await rd.enqueue("note", {"text": "hello"})
        await soon(rd.drain())
    async with app() as rd:
        clock.advance(600)
        await soon(rd.drain())
        assert vault.looks[-1] == ({"text": "hello"}, {"path": "a.md", "hint": "hello"})
        assert (await rd.jobs.get(handle.id)).attempts == 2


@pytest.mark.parametrize(
    "witness",
    [object(), {1, 2}, "x" * 200_000, float("nan"), {"\udcff": Half()}],
    ids=["object", "set", "long", "nan", "half"],
)
async def test_a_witness_that_cannot_be_kept_loses_no_job(
    rd: Redrive, clock: FakeClock, vault: Vault, caplog: pytest.LogCaptureFixture, witness: Any
) -> None:
    @rd.task(effects=[Effect("note", lambda payload, witness: False)], idempotent=True, max_attempts=2, backoff="none")
    async def note(text: str) -> None:
        raise OutcomeUnknown("no answer", witness=witness)

    job = await over(rd, clock, await note.enqueue("hello"))
    assert (job.state, job.attempts) == ("dead", 2)
    assert "settling failed" not in caplog.text
    if not isinstance(witness, set | float):
        assert "witness" in caplog.text


@pytest.mark.behaviour("B3")
@pytest.mark.parametrize("outcome", ["lost", "released", "failed"])
async def test_whatever_ended_the_attempt_the_next_one_looks_first(
    rd: Redrive, clock: FakeClock, vault: Vault, outcome: str
) -> None:
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)])
    async def note(text: str) -> None:
        calls.append(1)
        raise ConnectionError("cut")

    handle = await note.enqueue("hello")
    if outcome == "failed":
        await soon(rd.drain())
    else:
        (job,) = (await rd.store.claim(Wanted(slots=1), "another", clock.now())).jobs
        attempts = rd.make_worker()._attempts
        move = attempts.settle_lost(job, alone=False) if outcome == "lost" else attempts.settlement.released(job)
        await rd.store.apply([Commit((move,))])
    before = len(calls)
    vault.write("hello")
    job = await over(rd, clock, handle)
    assert (job.state, len(calls)) == ("done", before)
    assert job.history[-1].outcome == "recovered"


async def test_a_first_attempt_does_not_look(rd: Redrive, vault: Vault) -> None:
    """What stands there may be somebody else's: a first run runs."""
    vault.write("hello")

    @rd.task(effects=[Effect("note", vault.find)])
    async def note(text: str) -> str:
        return "written"

    assert (await soon(note.call("hello"))).result == "written"
    assert vault.looks == []


async def test_a_snooze_is_no_attempt_to_look_for(rd: Redrive, clock: FakeClock, vault: Vault) -> None:
    vault.write("hello")
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)])
    async def note(text: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise redrive.Snooze(60)
        return "written"

    handle = await note.enqueue("hello")
    job = await over(rd, clock, handle)
    assert (job.state, len(calls), vault.looks) == ("done", 2, [])


# Several effects -----------------------------------------------------------------------------------------------------


class Board:
    """`task_create`: a file and an index entry, two effects of one call."""

    def __init__(self, rd: Redrive, *, idempotent: bool = True, **options: Any) -> None:
        self.files: dict[str, int] = {}
        self.index: dict[str, int] = {}
        self.calls = 0
        self.stop_after: list[str] = []
        self.asked: list[str] = []
        effects = [Effect("file", self.has_file), Effect("index", self.has_entry)]

        @rd.task("task_create", effects=effects, idempotent=idempotent, **{"backoff": "none", **options})
        async def task_create(title: str) -> dict[str, Any]:
            self.calls += 1
            self.files.setdefault(title, self.calls)
            self._perhaps_stop("file")
            self.index.setdefault(title, self.calls)
            self._perhaps_stop("index")
            return {"title": title, "verified": {"file": True, "index": "verified"}}

        self.task = task_create

    def _perhaps_stop(self, after: str) -> None:
        if self.stop_after and self.stop_after[0] == after:
            self.stop_after.pop(0)
            raise OutcomeUnknown("no answer")

    async def has_file(self, payload: dict[str, Any], witness: Any) -> str:
        self.asked.append("file")
        return "verified" if payload["title"] in self.files else "absent"

    def has_entry(self, payload: dict[str, Any], witness: Any) -> bool:
        self.asked.append("index")
        return payload["title"] in self.index


@pytest.mark.behaviour("003-15", "003-35", "003-36", "003-37", "003-42", "B6", "004-48")
async def test_half_of_it_is_healed_by_doing_it_again(rd: Redrive) -> None:
    board = Board(rd)
    board.stop_after = ["file"]
    outcome = await soon(board.task.call("buy milk"))
    assert outcome and not outcome.recovered, "the first effect alone is no success"
    assert board.asked[:2] == ["file", "index"], "every effect is looked for"
    assert (board.files, board.index, board.calls) == ({"buy milk": 1}, {"buy milk": 2}, 2)


@pytest.mark.behaviour("003-15", "003-70")
async def test_all_of_it_is_seen_and_counted(rd: Redrive) -> None:
    board = Board(rd)
    board.stop_after = ["index"]
    outcome = await soon(board.task.call("buy milk"))
    assert (outcome.status, outcome.recovered, board.calls) == ("ok", 2, 1)
    assert outcome.public()["effects_verified"] == 2


@pytest.mark.behaviour("C29", "003-36")
async def test_half_of_it_is_a_person_s_where_it_must_not_be_repeated(rd: Redrive, clock: FakeClock) -> None:
    board = Board(rd, idempotent=False)
    board.stop_after = ["file"]
    job = await over(rd, clock, await board.task.enqueue("buy milk"))
    assert (job.state, job.because, board.calls) == ("held", "outcome_unknown", 1)


@pytest.mark.behaviour("003-42", "B25")
async def test_the_look_before_a_replay_ends_the_job_in_the_store(rd: Redrive, clock: FakeClock) -> None:
    board = Board(rd)
    board.stop_after = ["file"]
    handle = await board.task.enqueue("buy milk")
    board.index["buy milk"] = 0  # the rest lands late, by the first attempt itself
    job = await over(rd, clock, handle)
    assert (job.state, board.calls, job.history[-1].outcome) == ("done", 1, "recovered")
    assert job.history[-1].effects == {"file": "verified", "index": "verified"}


@pytest.mark.behaviour("C29", "B6")
async def test_one_effect_that_nobody_can_see_is_enough_to_ask(rd: Redrive, clock: FakeClock) -> None:
    """The other one surely is not there; this one may be, and must not be repeated."""
    calls: list[int] = []

    @rd.task(effects=[Effect("file", lambda payload, witness: False), Effect("mail", lambda payload, witness: None)])
    async def create() -> None:
        calls.append(1)
        raise OutcomeUnknown("no answer")

    job = await over(rd, clock, await create.enqueue())
    assert (job.state, job.because, len(calls)) == ("held", "outcome_unknown", 1)


async def test_names_do_not_count(rd: Redrive) -> None:
    @rd.task(effects=[Effect("mail verified", lambda payload, witness: True)])
    async def send() -> None:
        raise OutcomeUnknown("no answer")

    assert (await soon(send.call())).recovered == 1


# What the result says ------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-12", "003-14", "003-41", "003-42", "B8")
@pytest.mark.parametrize(
    ("verified", "enough"),
    [
        ({"a": True, "b": True}, True),
        ({"a": True, "b": "verified"}, True),
        ({}, True),
        (None, True),
        ({"a": True, "b": "absent"}, False),
        ({"a": True, "b": False}, False),
        ({"a": "verified", "b": "indeterminate"}, False),
        ({"a": "partial"}, False),
        ({"a": None}, False),
        ({"a": 1}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["call", "worker"])
async def test_a_result_that_admits_that_something_is_missing_is_tried_again(
    rd: Redrive, clock: FakeClock, verified: Any, enough: bool, path: str
) -> None:
    calls: list[int] = []

    @rd.task(idempotent=True, backoff="none")
    async def create() -> dict[str, Any]:
        calls.append(1)
        done = {"success": True, "id": 7}
        if len(calls) == 1:
            return done if verified is None else done | {"verified": verified}
        return done

    if path == "call":
        await soon(create.call())
    else:
        await create.enqueue()
    await soon(rd.drain())
    assert len(calls) == (1 if enough else 2)
    (job,) = (await rd.jobs.list()).jobs
    assert job.state == "done"


@pytest.mark.behaviour("003-12", "C29")
async def test_without_leave_to_repeat_it_a_missing_part_goes_to_a_person(rd: Redrive, clock: FakeClock) -> None:
    calls: list[int] = []

    @rd.task(effects=[Effect("a", lambda payload, witness: None)])
    async def create() -> dict[str, Any]:
        calls.append(1)
        return {"verified": {"a": True, "b": "absent"}}

    job = await over(rd, clock, await create.enqueue())
    assert (job.state, len(calls)) == ("dead", 1)
    assert "not verified: b" in str(job.error)


# Verifiers -----------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B4")
@pytest.mark.parametrize(("gone", "calls"), [(True, 1), (False, 2)])
async def test_an_effect_that_removes_has_landed_when_it_is_gone(rd: Redrive, gone: bool, calls: int) -> None:
    notes, made = {"a.md"}, []

    def there(payload: dict[str, Any], witness: Any) -> bool:
        return payload["path"] in notes

    @rd.task(effects=[Effect("note", there, mode="absent")])
    async def delete(path: str) -> None:
        made.append(1)
        if gone or len(made) == 2:
            notes.discard(path)
        if len(made) == 1:
            raise OutcomeUnknown("no answer")

    outcome = await soon(delete.call("a.md"))
    assert outcome and notes == set()
    assert (len(made), outcome.recovered) == (calls, 1 if gone else 0)


async def test_a_verifier_that_fails_cannot_tell(
    rd: Redrive, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def look(payload: dict[str, Any], witness: Any) -> bool:
        raise ConnectionError("the search is down")

    @rd.task(effects=[Effect("note", look)])
    async def note() -> None:
        raise OutcomeUnknown("no answer")

    job = await over(rd, clock, await note.enqueue())
    assert (job.state, job.because) == ("held", "outcome_unknown")
    assert "cannot be verified" in caplog.text and "the search is down" in caplog.text


async def test_a_verifier_whose_code_has_not_run_cannot_tell(rd: Redrive, clock: FakeClock) -> None:
    def look(payload: dict[str, Any], witness: Any) -> Any:
        yield False

    @rd.task(effects=[Effect("note", look)])
    async def note() -> None:
        raise OutcomeUnknown("no answer")

    job = await over(rd, clock, await note.enqueue())
    assert (job.state, job.because) == ("held", "outcome_unknown")


async def test_a_plain_verifier_stops_nobody_else(rd: Redrive) -> None:
    here, elsewhere = threading.get_ident(), []

    def look(payload: dict[str, Any], witness: Any) -> bool:
        elsewhere.append(threading.get_ident() != here)
        return True

    @rd.task(effects=[Effect("note", look)])
    async def note() -> None:
        raise OutcomeUnknown("no answer")

    assert await soon(note.call())
    assert elsewhere == [True]


async def test_a_verifier_that_hangs_cannot_tell(rd: Redrive, clock: FakeClock) -> None:
    async def look(payload: dict[str, Any], witness: Any) -> bool:
        await asyncio.Event().wait()
        return True

    @rd.task(effects=[Effect("note", look)], timeout=0.05)
    async def note() -> None:
        raise OutcomeUnknown("no answer")

    job = await over(rd, clock, await note.enqueue())
    assert (job.state, job.because) == ("held", "outcome_unknown")


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_store_that_hiccups_during_the_look_strands_no_job(
    rd: Redrive, clock: FakeClock, vault: Vault, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)], idempotent=idempotent, backoff="none")
    async def note(text: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise OutcomeUnknown("no answer")
        return "written"

    read, hiccups = rd.store.doc, [1]

    async def doc(kind: str, key: str) -> Any:
        if kind == "witness" and hiccups:
            hiccups.pop()
            raise StoreBusy("another process holds the store")
        return await read(kind, key)

    handle = await note.enqueue("hello")
    monkeypatch.setattr(rd.store, "doc", doc)
    job = await over(rd, clock, handle)
    assert not hiccups
    assert job.state == "done" or (job.state, job.because) == ("held", "outcome_unknown")


async def test_a_verifier_sees_the_input_and_cannot_change_it(rd: Redrive, clock: FakeClock) -> None:
    seen: list[Any] = []

    async def look(payload: dict[str, Any], witness: Any) -> bool:
        seen.append(dict(payload))
        payload["text"] = "changed"
        return False

    inputs: list[str] = []

    @rd.task(effects=[Effect("one", look), Effect("two", look)], idempotent=True, max_attempts=2, backoff="none")
    async def note(text: str) -> None:
        inputs.append(text)
        raise OutcomeUnknown("no answer")

    await over(rd, clock, await note.enqueue("hello"))
    assert inputs == ["hello", "hello"]
    assert all(payload == {"text": "hello"} for payload in seen)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"effects": ["note"]}, "effects"), ({"effects": [lambda payload, witness: True]}, "effects"),
        ({"retry_policy": "sometimes"}, "retry_policy"), ({"retry_policy": None}, "retry_policy"),
    ],
)  # fmt: skip
async def test_what_a_task_cannot_say_of_its_effects_is_refused(rd: Redrive, options: Any, field: str) -> None:
    with pytest.raises(InvalidOption, match=field):

        @rd.task("note", **options)
        async def note() -> None: ...


# Verify first --------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-28", "003-31")
async def test_verify_first_looks_after_any_failure(rd: Redrive, vault: Vault) -> None:
    @rd.task(effects=[Effect("note", vault.find)], retry_policy="verify_first")
    async def note(text: str) -> None:
        vault.write(text)
        raise ConnectionResetError("cut off")

    outcome = await soon(note.call("hello"))
    assert (outcome.status, outcome.recovered, vault.notes) == ("ok", 1, ["hello"])


@pytest.mark.behaviour("B27")
@pytest.mark.parametrize(
    "error", [PermissionError("no"), AttributeError("a bug"), redrive.GiveUp("hopeless")], ids=repr
)
@pytest.mark.parametrize("idempotent", [False, True])
async def test_verify_first_makes_nothing_permanent_transient(
    rd: Redrive, clock: FakeClock, vault: Vault, error: BaseException, idempotent: bool
) -> None:
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)], retry_policy="verify_first", idempotent=idempotent)
    async def note(text: str) -> None:
        calls.append(1)
        raise error

    job = await over(rd, clock, await note.enqueue("hello"))
    assert (job.state, len(calls)) == ("dead", 1)


@pytest.mark.behaviour("003-28")
async def test_manual_leaves_an_uncertain_write_to_people(rd: Redrive, vault: Vault) -> None:
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)], retry_policy="manual")
    async def note(text: str) -> None:
        calls.append(1)
        raise OutcomeUnknown("no answer")

    outcome = await soon(note.call("hello"))
    assert outcome.status in ("failed", "held") and len(calls) == 1


@pytest.mark.behaviour("003-28")
async def test_manual_is_manual_also_when_the_worker_dies(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(retry_policy="manual")
    async def note() -> None: ...

    handle = await note.enqueue()
    (job,) = (await rd.store.claim(Wanted(slots=1), "another", clock.now())).jobs
    move = rd.make_worker()._attempts.settle_lost(job, alone=False)
    assert move.to == "dead", "nobody knows how far it came"
    assert handle.id == move.job.id


# A task that does another operation again ----------------------------------------------------------------------------


class Wrapped:
    """An operation with two effects, and a task that does it again by its id."""

    def __init__(self, rd: Redrive, *, own: tuple[Effect, ...] = ()) -> None:
        self.rd = rd
        self.landed: set[str] = set()
        self.reruns = 0
        self.lands: list[set[str]] = []
        effects = [Effect(name, self._look(name)) for name in ("file", "index")]

        @rd.task("inner", effects=effects, idempotent=True, max_attempts=1)
        async def inner(title: str) -> None:
            self.landed.add(f"file {title}")
            raise OutcomeUnknown("no answer")

        @rd.task("again", wraps="operation_id", effects=own, idempotent=True, backoff="none", max_attempts=3)
        async def again(operation_id: str) -> str:
            self.reruns += 1
            self.landed |= self.lands.pop(0) if self.lands else set()
            if self.lands:
                raise OutcomeUnknown("no answer")
            return "done again"

        self.inner, self.again = inner, again

    def _look(self, name: str) -> Any:
        return lambda payload, witness: f"{name} {payload['title']}" in self.landed


@pytest.mark.behaviour("003-39", "B7")
async def test_a_wrapper_is_verified_by_what_it_wraps(rd: Redrive, clock: FakeClock) -> None:
    wrapped = Wrapped(rd)
    inner = await over(rd, clock, await wrapped.inner.enqueue("milk"))
    assert inner.state == "dead"
    wrapped.lands = [set(), {"index milk"}, set()]
    job = await over(rd, clock, await wrapped.again.enqueue(inner.id))
    assert (job.state, wrapped.reruns) == ("done", 2), "the first effect alone was not enough, both were"
    assert job.history[-1].effects == {"file": "verified", "index": "verified"}


@pytest.mark.behaviour("003-39", "B7")
async def test_a_wrapper_with_effects_of_its_own_is_still_verified_by_what_it_wraps(
    rd: Redrive, clock: FakeClock
) -> None:
    wrapped = Wrapped(rd, own=(Effect("carrier", lambda payload, witness: True),))
    inner = await over(rd, clock, await wrapped.inner.enqueue("milk"))
    wrapped.lands = [set(), set()]
    job = await over(rd, clock, await wrapped.again.enqueue(inner.id))
    assert (job.state, wrapped.reruns) == ("done", 2), "the carrier's own word is not enough"


@pytest.mark.behaviour("003-40", "B34")
async def test_only_without_the_inner_record_its_own_effect_counts(rd: Redrive, clock: FakeClock) -> None:
    looked: list[Any] = []

    def look(payload: dict[str, Any], witness: Any) -> bool:
        looked.append(payload)
        return True

    wrapped = Wrapped(rd, own=(Effect("carrier", look),))
    wrapped.lands = [set(), set()]
    job = await over(rd, clock, await wrapped.again.enqueue("0" * 32))
    assert (job.state, wrapped.reruns) == ("done", 1)
    assert looked == [{"operation_id": "0" * 32}]


@pytest.mark.behaviour("B34", "003-40")
async def test_an_inner_record_is_there_however_old_it_is(rd: Redrive, clock: FakeClock) -> None:
    wrapped = Wrapped(rd)
    inner = await over(rd, clock, await wrapped.inner.enqueue("milk"))
    clock.advance(100 * 86_400)
    await rd.make_scheduler(rd.make_worker()).prune()
    wrapped.lands = [{"index milk"}, set()]
    job = await over(rd, clock, await wrapped.again.enqueue(inner.id))
    assert (job.state, wrapped.reruns) == ("done", 1)


# A person's word -----------------------------------------------------------------------------------------------------


async def test_a_person_s_word_is_about_any_number_of_effects(rd: Redrive, clock: FakeClock) -> None:
    sent: list[str] = []

    @rd.task(max_attempts=1)
    async def send_all(ctx: Context) -> None:
        async def send(key: str) -> None:
            sent.append(key)
            if len(sent) <= 300:
                raise TimeoutError("no answer")

        mails = [ctx.once("mail", send, key=str(number)) for number in range(300)]
        for problem in await asyncio.gather(*mails, return_exceptions=True):
            if problem is not None:
                raise OutcomeUnknown("some mails")

    handle = await send_all.enqueue()
    job = await over(rd, clock, handle)
    assert job.because == "outcome_unknown"
    await rd.jobs.resolve(job.id, landed=False, why="the server never saw one")
    assert {effect.status for effect in await rd.jobs.effects(job.id)} == {"absent"}
    assert ((await over(rd, clock, handle)).state, len(sent)) == ("done", 600)
    with pytest.raises(IllegalMove):
        await rd.jobs.resolve(job.id, landed=False, why="again")


@pytest.mark.parametrize("landed", [True, False])
async def test_a_person_s_word_ends_the_uncertainty(rd: Redrive, clock: FakeClock, vault: Vault, landed: bool) -> None:
    vault.blind = True
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)])
    async def note(text: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise OutcomeUnknown("no answer")
        return "written"

    handle = await note.enqueue("hello")
    assert (await over(rd, clock, handle)).because == "outcome_unknown"
    await rd.jobs.resolve(handle.id, why="looked myself", who="ann", landed=landed)
    job = await over(rd, clock, handle)
    assert (job.state, len(calls)) == ("done", 1 if landed else 2)


async def test_a_person_s_word_is_about_what_was_not_about_what_comes(
    rd: Redrive, clock: FakeClock, vault: Vault
) -> None:
    vault.blind = True
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)])
    async def note(text: str) -> None:
        calls.append(1)
        raise OutcomeUnknown("no answer")

    handle = await note.enqueue("hello")
    for tries in (1, 2):
        job = await over(rd, clock, handle)
        assert (job.state, job.because, len(calls)) == ("held", "outcome_unknown", tries)
        await rd.jobs.resolve(handle.id, why="not there", landed=False)


@pytest.mark.parametrize("blind", [False, True])
async def test_an_edited_job_does_not_take_the_old_write_for_its_own(
    rd: Redrive, clock: FakeClock, vault: Vault, blind: bool
) -> None:
    calls: list[str] = []

    @rd.task(effects=[Effect("note", vault.find)], idempotent=True, max_attempts=1)
    async def note(text: str) -> str:
        calls.append(text)
        if text == "old":
            raise OutcomeUnknown("no answer", witness="old")
        return text

    handle = await note.enqueue("old")
    assert (await over(rd, clock, handle)).state == "dead"
    vault.write("old")
    vault.blind = blind
    await rd.dead.edit(handle.id, {"text": "new"})
    job = await over(rd, clock, handle)
    assert (job.state, calls) == ("done", ["old", "new"])


# The log of effects --------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("004-53", "004-54")
async def test_effects_are_found_by_job_and_by_agent(rd: Redrive, clock: FakeClock) -> None:
    posted: list[str] = []

    @rd.task(backoff="none")
    async def publish(ctx: Context, slug: str) -> Any:
        async def post(key: str) -> dict[str, str]:
            posted.append(key)
            return {"type": "post", "slug": slug}

        found = await ctx.once("post", post)
        if ctx.attempt == 1:
            raise ConnectionError("cut")
        return found

    jobs = {
        agent: await publish.options(agent=agent, idempotency_key=f"k-{agent}").enqueue(f"by-{agent}")
        for agent in ("ann", "bob")
    }
    for _ in range(3):
        await soon(rd.drain())
        clock.advance(400)
    assert await jobs["ann"].result(5) == {"type": "post", "slug": "by-ann"}, "skipped, and answered with what it was"
    assert sorted(posted) == ["k-ann:post", "k-bob:post"]
    (mine,) = await rd.jobs.effects(jobs["ann"].id)
    assert (mine.key, mine.agent, mine.name, mine.status, mine.result) == (
        "k-ann:post", "ann", "post", "landed", {"type": "post", "slug": "by-ann"},
    )  # fmt: skip
    assert mine.at > 0
    assert [effect.key for effect in await rd.jobs.effects(agent="bob")] == ["k-bob:post"]
    assert len(await rd.jobs.effects()) == 2
    assert list(await rd.jobs.effects(agent="nobody")) == []


@pytest.mark.behaviour("C34")
async def test_an_effect_s_key_is_stable_over_retries_and_new_after_an_edit(rd: Redrive, clock: FakeClock) -> None:
    keys: list[str] = []
    stop: list[BaseException] = [ConnectionRefusedError("x"), ConnectionRefusedError("x"), redrive.GiveUp("no")]

    @rd.task(backoff="none")
    async def publish(ctx: Context, slug: str) -> None:
        def post(key: str) -> None:
            keys.append(key)
            if stop:
                raise stop.pop(0)

        await ctx.once("post", post)

    handle = await publish.options(idempotency_key="k").enqueue("a")
    assert (await over(rd, clock, handle)).state == "dead"
    assert keys == ["k:post"] * 3
    await rd.dead.edit(handle.id, {"slug": "b"})
    assert (await over(rd, clock, handle)).state in ("done", "held")
    assert len(set(keys[3:])) <= 1 and "k:post" not in keys[3:]


@pytest.mark.behaviour("C34")
@pytest.mark.parametrize("repeat", [(), ("post",), ("mail",), ("post", "mail")], ids=str)
async def test_who_edits_chooses_what_is_done_again(rd: Redrive, clock: FakeClock, repeat: tuple[str, ...]) -> None:
    done: list[tuple[str, str]] = []

    @rd.task
    async def publish(ctx: Context, slug: str) -> None:
        await ctx.once("post", lambda key: done.append(("post", slug)))
        await ctx.once("mail", lambda key: done.append(("mail", slug)))
        if slug == "a":
            raise redrive.GiveUp("wrong slug")

    handle = await publish.enqueue("a")
    assert (await over(rd, clock, handle)).state == "dead"
    await rd.dead.edit(handle.id, {"slug": "b"}, repeat=repeat)
    assert (await over(rd, clock, handle)).state == "done"
    assert done == [("post", "a"), ("mail", "a"), *((name, "b") for name in ("post", "mail") if name in repeat)]


async def test_only_effects_that_were_there_can_be_repeated(rd: Redrive, clock: FakeClock) -> None:
    @rd.task
    async def publish(ctx: Context, slug: str) -> None:
        await ctx.once("post", lambda key: None)
        raise redrive.GiveUp("no")

    handle = await publish.enqueue("a")
    await over(rd, clock, handle)
    with pytest.raises(InvalidInput, match=r"repeat: 'mail' is no effect of this job; there are post"):
        await rd.dead.edit(handle.id, {"slug": "b"}, repeat=["mail"])
    assert (await handle.refresh()).state == "dead"


async def test_an_open_effect_is_looked_for_under_the_key_it_was_given(rd: Redrive, clock: FakeClock) -> None:
    """Edited while nobody knows whether the first post landed: the receiver knows it by its old key."""
    posts: dict[str, str] = {}

    @rd.task(max_attempts=1)
    async def publish(ctx: Context, slug: str) -> Any:
        def post(key: str) -> str:
            posts[key] = slug
            raise TimeoutError("no answer")

        return await ctx.once("post", post, verify=posts.get)

    handle = await publish.options(idempotency_key="k").enqueue("a")
    assert (await over(rd, clock, handle)).state == "dead"
    await rd.dead.edit(handle.id, {"slug": "b"})
    job = await over(rd, clock, handle)
    assert (job.state, posts) == ("done", {"k:post": "a"})


async def test_effects_at_once_in_one_attempt_do_not_mix(rd: Redrive) -> None:
    @rd.task
    async def publish(ctx: Context) -> list[Any]:
        async def post(key: str) -> str:
            await asyncio.sleep(0)
            return key

        return list(await asyncio.gather(*(ctx.once("post", post, key=str(n)) for n in range(10))))

    handle = await publish.options(idempotency_key="k").enqueue()
    await soon(rd.drain())
    assert await handle.result(5) == [f"k:post:{n}" for n in range(10)]
    assert {effect.status for effect in await rd.jobs.effects(handle.id)} == {"landed"}


async def test_a_worker_that_stops_while_an_effect_is_looked_for_keeps_what_to_look_for(live: Redrive) -> None:
    posted: list[int] = []
    looks: list[Any] = []

    async def find(payload: dict[str, Any], witness: Any) -> bool:
        looks.append(witness)
        if len(looks) == 1:
            await asyncio.sleep(20)  # a slow service
        return witness is not None and witness["id"] in posted

    @live.task(effects=[Effect("note", find)])
    async def post() -> None:
        posted.append(len(posted) + 1)
        raise OutcomeUnknown("no answer", witness={"id": posted[-1]})

    async with live.worker(grace=0.1):
        job = await post.enqueue()
        await eventually(lambda: bool(looks))
    async with live.worker(grace=0.1):
        await eventually(lambda: len(looks) > 1)
        await job.result(15)
    assert (posted, looks) == ([1], [{"id": 1}, {"id": 1}])


# What was seen is kept, whoever looked --------------------------------------------------------------------------------


def _note_and_mail(note: bool | None, mail: bool | None, **options: Any) -> dict[str, Any]:
    effects = [Effect("note", lambda payload, witness: note), Effect("mail", lambda payload, witness: mail)]
    return {"effects": effects, **options}


@pytest.mark.behaviour("R-6a", "R-6b")
async def test_a_held_job_keeps_and_names_what_was_seen_of_each_effect(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(**_note_and_mail(True, False))
    async def announce() -> None:
        raise OutcomeUnknown("no answer", witness={"path": "a.md"})

    job = await over(rd, clock, await announce.enqueue())
    assert (job.state, job.because) == ("held", "outcome_unknown")
    last = job.history[-1]
    assert (last.effects, last.looked) == ({"note": "verified", "mail": "absent"}, "after")
    assert last.witness == {"path": "a.md"}
    assert job.recommendation.startswith("Seen outside: note: there; mail: missing. Look at the receiver.")
    assert "give the task a verifier" not in job.recommendation


@pytest.mark.behaviour("R-6b")
async def test_only_a_task_without_a_verifier_is_advised_to_have_one(rd: Redrive, clock: FakeClock) -> None:
    @rd.task
    async def plain() -> None:
        raise OutcomeUnknown("no answer")

    job = await over(rd, clock, await plain.enqueue())
    assert "Or give the task a verifier." in job.recommendation and job.history[-1].effects is None


@pytest.mark.behaviour("R-6b")
async def test_what_was_to_be_removed_is_gone_or_still_there(rd: Redrive, clock: FakeClock) -> None:
    def effect(name: str, there: bool | None) -> Effect:
        return Effect(name, lambda payload, witness: there, mode="absent")

    @rd.task(effects=[effect("file", False), effect("index", True), effect("cache", None)])
    async def remove() -> None:
        raise OutcomeUnknown("no answer")

    job = await over(rd, clock, await remove.enqueue())
    assert "file: gone; index: still there; cache: cannot be told" in job.recommendation


@pytest.mark.behaviour("R-6a")
async def test_what_was_seen_before_a_replay_is_kept_with_the_attempt_that_ran(
    rd: Redrive, clock: FakeClock, vault: Vault
) -> None:
    calls: list[int] = []

    @rd.task(effects=[Effect("note", vault.find)], backoff="none")
    async def note(text: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("cut")
        return "written"

    job = await over(rd, clock, await note.enqueue("hello"))
    first, second = job.history
    assert (first.effects, first.looked) == (None, None), "nobody looked"
    assert (second.outcome, second.effects, second.looked) == ("done", {"note": "absent"}, "before")


@pytest.mark.behaviour("R-6a", "R-6b")
async def test_a_replay_that_is_held_keeps_what_was_seen(rd: Redrive, clock: FakeClock, vault: Vault) -> None:
    @rd.task(effects=[Effect("note", vault.find)])
    async def note(text: str) -> None:
        raise ConnectionError("cut")

    handle = await note.enqueue("hello")
    await soon(rd.drain())
    vault.blind = True
    job = await over(rd, clock, handle)
    last = job.history[-1]
    assert (job.state, last.outcome, last.effects, last.looked) == (
        "held", "held", {"note": "indeterminate"}, "before",
    )  # fmt: skip
    assert job.recommendation.startswith("Seen outside: note: cannot be told.")


@pytest.mark.behaviour("R-6b")
async def test_an_unknown_error_with_effects_names_what_was_seen(rd: Redrive, clock: FakeClock) -> None:
    class Odd(Exception):
        pass

    @rd.task(**_note_and_mail(True, False, retry_policy="verify_first"))
    async def announce() -> None:
        raise Odd("what is this?")

    job = await over(rd, clock, await announce.enqueue())
    assert job.state == "dead" and job.history[-1].effects == {"note": "verified", "mail": "absent"}
    assert job.recommendation.startswith("Seen outside: note: there; mail: missing.")


@pytest.mark.behaviour("R-6a", "R-6c")
async def test_the_story_tells_what_was_seen(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(**_note_and_mail(True, None))
    async def announce() -> None:
        raise OutcomeUnknown("no answer", witness={"path": "a.md", "token": "sk-live-0123456789abcdef0123456789"})

    job = await over(rd, clock, await announce.enqueue())
    told = tell(job, await rd.jobs.story(job.id), clock.now())
    facts = {fact.name: fact for entry in told.entries for fact in entry.facts}
    assert facts["effects"].text == "note verified, mail indeterminate"
    assert "a.md" in facts["witness"].text and "sk-live" not in facts["witness"].text and facts["witness"].outside


@pytest.mark.behaviour("R-6c", "003-69")
@pytest.mark.parametrize("by", ["call", "worker"])
async def test_the_path_of_what_was_found_is_told_whoever_ran_it(
    rd: Redrive, clock: FakeClock, vault: Vault, by: str
) -> None:
    @rd.task(effects=[Effect("note", lambda payload, witness: True)])
    async def note(text: str) -> None:
        raise OutcomeUnknown("no answer", witness={"path": "notes/a.md", "hint": "x" * 5000})

    if by == "call":
        outcome = await soon(note.call("hello"))
    else:
        handle = await note.enqueue("hello")
        await over(rd, clock, handle)
        outcome = await rd.outcome(handle.id)
    shown = outcome.public()
    assert (shown["status"], shown["path"], shown["effects_verified"]) == ("ok", "notes/a.md", 1)
    job = await rd.jobs.get(outcome.operation_id or "")
    assert job.history[-1].witness == {"path": "notes/a.md"}, "a long witness is kept beside the job"


@pytest.mark.behaviour("R-6c", "003-46")
async def test_that_something_was_back_is_kept_also_when_a_worker_found_it(rd: Redrive, clock: FakeClock) -> None:
    up = False

    @rd.task(requires=[redrive.Probe("vault", lambda: up)], idempotent=True)
    async def note() -> str:
        return "noted"

    handle = await note.enqueue()
    await soon(rd.drain())
    up = True
    job = await over(rd, clock, handle)
    assert [attempt.registry_auto_recovered for attempt in job.history] == [False, True]
    assert (await rd.outcome(handle.id)).public()["registry_auto_recovered"] is True
    other = await note.enqueue()
    assert not (await over(rd, clock, other)).history[-1].registry_auto_recovered, "told once"


@pytest.mark.behaviour("R-6b")
async def test_an_unknown_outcome_of_once_with_a_verifier_is_verified_by_the_next_attempt(
    rd: Redrive, clock: FakeClock
) -> None:
    sent: list[str] = []

    def send(key: str) -> None:
        sent.append(key)
        raise OutcomeUnknown("no answer")

    @rd.task(backoff="none")
    async def mail(ctx: Context) -> Any:
        return await ctx.once("mail", send, verify=lambda key: "there" if key in sent else None)

    job = await over(rd, clock, await mail.enqueue())
    assert (job.state, len(sent)) == ("done", 1)


@pytest.mark.behaviour("R-6b")
async def test_an_unknown_outcome_outside_of_that_once_is_left_to_a_person(rd: Redrive, clock: FakeClock) -> None:
    def send(key: str) -> None:
        raise OutcomeUnknown("no answer")

    @rd.task
    async def mail(ctx: Context) -> Any:
        try:
            await ctx.once("mail", send, verify=lambda key: None)
        except OutcomeUnknown:
            raise OutcomeUnknown("something else, that no verifier sees") from None

    job = await over(rd, clock, await mail.enqueue())
    assert (job.state, job.because) == ("held", "outcome_unknown")
