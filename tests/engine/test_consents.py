"""Sessions and consent: who agreed to what, what voids it, questions of running tasks, and whose costs they are."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import Agent, Approval, BlockingContext, Context, JobHandle, Redrive
from redrive.core.consent import covers, subject_of, wish_of
from redrive.core.job import Job
from redrive.core.store import Put
from redrive.engine.context import session_of
from redrive.errors import IllegalMove, InvalidInput
from tests.support import FakeClock, opened, soon


class WrongOutput(Exception):
    error_kind = "invalid_output"


class Desk:
    """Refunds that need a yes: every run is counted, the first may fail."""

    def __init__(self, rd: Redrive, clock: FakeClock, *, consent: bool | str = True) -> None:
        self.rd = rd
        self.clock = clock
        self.ran: list[tuple[int, str | None, str | None]] = []
        self.errors: list[BaseException] = []

        @rd.task("refund", consent=consent, backoff="none", rungs=9, max_attempts=9)
        async def refund(ctx: Context, amount: int) -> int:
            self.ran.append((amount, ctx.session_id, ctx.agent))
            if self.errors:
                raise self.errors.pop(0)
            return amount

        self.task = refund

    async def ask(self, amount: int = 900, *, session: str | None = "s1", agent: str | None = None) -> JobHandle[int]:
        handle = await self.task.options(session_id=session, agent=agent).enqueue(amount)
        await soon(self.rd.drain())
        return handle

    async def asks(self, handle: JobHandle[Any]) -> bool:
        """Whether the job is held, and somebody is asked. Otherwise it has run to its end."""
        job = await handle.refresh()
        if job.state == "held":
            assert job.because == "consent", job.because
            assert "redrive approve" in str(job.recommendation)
            return True
        assert job.state == "done", (job.state, job.error)
        return False


@pytest.fixture
def desk(rd: Redrive, clock: FakeClock) -> Desk:
    return Desk(rd, clock)


# The matrix: a first run ---------------------------------------------------------------------------------------------

Given = Callable[[Redrive, FakeClock], Awaitable[object]]


async def _expired(rd: Redrive, clock: FakeClock) -> None:
    await rd.sessions.grant("s1", "refund", by="ann", expires=60)
    clock.advance(60)


async def _revoked(rd: Redrive, clock: FakeClock) -> None:
    given = await rd.sessions.grant("s1", "refund", by="ann")
    await rd.sessions.revoke("s1", given.id)


FIRST_RUNS: dict[str, tuple[Given, bool]] = {
    "nothing": (lambda rd, clock: asyncio.sleep(0), True),
    "granted": (lambda rd, clock: rd.sessions.grant("s1", "refund", by="ann"), False),
    "granted until later": (lambda rd, clock: rd.sessions.grant("s1", "refund", by="ann", expires=60), False),
    "expired": (_expired, True),
    "revoked": (_revoked, True),
    "another session": (lambda rd, clock: rd.sessions.grant("s2", "refund", by="ann"), True),
    "a longer session": (lambda rd, clock: rd.sessions.grant("s10", "refund", by="ann"), True),
    "a shorter session": (lambda rd, clock: rd.sessions.grant("s", "refund", by="ann"), True),
    "another task": (lambda rd, clock: rd.sessions.grant("s1", "refunds", by="ann"), True),
    "its label": (lambda rd, clock: rd.sessions.grant("s1", "money", by="ann"), False),
    "another label": (lambda rd, clock: rd.sessions.grant("s1", "notes", by="ann"), True),
    "blanket": (lambda rd, clock: rd.sessions.grant("s1", "workflow", by="ann", blanket=True), False),
    "blanket elsewhere": (lambda rd, clock: rd.sessions.grant("s2", "workflow", by="ann", blanket=True), True),
    "its agent": (lambda rd, clock: rd.sessions.grant("s1", "refund", by="ann", agent="clerk"), False),
    "another agent": (lambda rd, clock: rd.sessions.grant("s1", "refund", by="ann", agent="boss"), True),
    "another input": (lambda rd, clock: rd.sessions.grant("s1", "refund", by="ann", subject="0" * 16), True),
}


@pytest.mark.behaviour("003-48", "003-49", "B12")
@pytest.mark.parametrize("cell", FIRST_RUNS)
async def test_a_first_run(rd: Redrive, clock: FakeClock, cell: str) -> None:
    desk = Desk(rd, clock, consent="money")
    given, asks = FIRST_RUNS[cell]
    await given(rd, clock)
    handle = await desk.ask(agent="clerk")
    assert await desk.asks(handle) is asks
    assert len(desk.ran) == (0 if asks else 1), "what is not agreed to does not run"


# The matrix: a replay ------------------------------------------------------------------------------------------------


async def _replayed(desk: Desk, handle: JobHandle[Any]) -> None:
    job = await handle.refresh()
    desk.clock.advance(max(0.0, job.run_at - desk.clock.now()) + 1)
    await soon(desk.rd.drain())


async def _edited(desk: Desk, job: Job) -> None:
    await desk.rd.dead.edit(job.id, {"amount": 9_000}, who="mallory")


async def _edited_and_taken_back(desk: Desk, job: Job) -> None:
    await _edited(desk, job)
    await desk.rd.dead.undo(job.id)
    await _redriven(desk, job)


async def _redriven(desk: Desk, job: Job) -> None:
    await desk.rd.dead.redrive(job.id)


async def _redriven_after_revoking(desk: Desk, job: Job) -> None:
    for grant in await desk.rd.sessions.grants("s1"):
        await desk.rd.sessions.revoke("s1", grant.id)
    await desk.rd.dead.redrive(job.id)


async def _redriven_late(desk: Desk, job: Job) -> None:
    desk.clock.advance(86_400)
    await desk.rd.dead.redrive(job.id)


async def _approve(desk: Desk, handle: JobHandle[Any]) -> None:
    assert await desk.asks(handle)
    await desk.rd.jobs.approve(handle.id, who="ann", why="it is fine")


REPLAYS: dict[str, tuple[dict[str, Any] | None, Callable[[Desk, Job], Awaitable[None]], bool]] = {
    "granted": ({}, _redriven, False),
    "granted, now expired": ({"expires": 3_600}, _redriven_late, True),
    "granted, still good": ({"expires": 100_000}, _redriven_late, False),
    "granted, now revoked": ({}, _redriven_after_revoking, True),
    "granted for the task, edited": ({}, _edited, False),
    "blanket": ({"blanket": True}, _redriven, True),
    "blanket, edited": ({"blanket": True}, _edited, True),
    "approved": (None, _redriven, False),
    "approved, now revoked": (None, _redriven_after_revoking, True),
    "approved, edited": (None, _edited, True),
    "approved, edited and taken back": (None, _edited_and_taken_back, False),
}


@pytest.mark.behaviour("003-48", "003-49", "B12")
@pytest.mark.parametrize("cell", REPLAYS)
async def test_a_replay(desk: Desk, cell: str) -> None:
    """It ran once with consent, failed, and comes back."""
    given, comes_back, asks = REPLAYS[cell]
    desk.errors.append(redrive.GiveUp("not today"))
    if given is not None:
        await desk.rd.sessions.grant("s1", "refund", by="ann", **given)
    handle = await desk.ask()
    if given is None:
        await _approve(desk, handle)
        await soon(desk.rd.drain())
    job = await handle.refresh()
    assert (job.state, len(desk.ran)) == ("dead", 1)
    await comes_back(desk, job)
    await soon(desk.rd.drain())
    assert await desk.asks(handle) is asks
    assert len(desk.ran) == (1 if asks else 2)


@pytest.mark.behaviour("B12")
@pytest.mark.parametrize(
    ("consent", "asks"), [("approved", True), ("granted to the agent", True), ("granted to anybody", False)]
)
async def test_a_strategy_that_hands_it_to_another_agent_voids_a_yes(
    clock: FakeClock, database: Path, consent: str, asks: bool
) -> None:
    agents = {"writer": Agent(("refund",)), "editor": Agent(("refund",))}
    async with opened(database, clock=clock, agents=agents) as rd:
        desk = Desk(rd, clock)
        desk.errors += [WrongOutput("no JSON") for _ in range(3)]
        if consent != "approved":
            agent = "writer" if consent == "granted to the agent" else None
            await rd.sessions.grant("s1", "refund", by="ann", agent=agent)
        handle = await desk.ask(agent="writer")
        if consent == "approved":
            await _approve(desk, handle)
            await soon(rd.drain())
        for _ in range(4):
            await _replayed(desk, handle)
        assert (await handle.refresh()).agent == "editor"
        assert await desk.asks(handle) is asks
        assert [ran[2] for ran in desk.ran] == ["writer"] * 3 + ([] if asks else ["editor"])


@pytest.mark.behaviour("B12")
async def test_a_yes_to_a_job_of_nobody_in_particular_is_no_yes_to_an_agent(
    clock: FakeClock, database: Path, desk: Desk
) -> None:
    handle = await desk.ask()
    await _approve(desk, handle)
    (grant,) = await desk.rd.sessions.grants("s1")
    job = await handle.refresh()
    assert covers(grant, wish_of(job, None), clock.now())
    assert not covers(grant, wish_of(msgspec.structs.replace(job, agent="mallory"), None), clock.now())


@pytest.mark.behaviour("B12")
async def test_a_yes_is_for_one_job(desk: Desk) -> None:
    """The same input again is another wish."""
    first = await desk.ask()
    await _approve(desk, first)
    await soon(desk.rd.drain())
    assert not await desk.asks(first)
    second = await desk.ask()
    assert await desk.asks(second)
    assert len(desk.ran) == 1


@pytest.mark.parametrize("session", ["s1/x", "s1", "-", None, "\N{SNOWMAN}"])
@pytest.mark.parametrize("other", ["s1/x", "s1", "-", None])
async def test_what_one_session_approves_is_nothing_to_another(
    desk: Desk, session: str | None, other: str | None
) -> None:
    first = await desk.ask(session=session)
    await _approve(desk, first)
    await soon(desk.rd.drain())
    assert not await desk.asks(first)
    second = await desk.ask(session=other)
    assert await desk.asks(second)


async def test_without_a_session_somebody_is_asked_too(desk: Desk) -> None:
    handle = await desk.ask(session=None)
    assert await desk.asks(handle)
    assert "anybody" in str((await desk.rd.jobs.story(handle.id))[-1].why)
    await desk.rd.jobs.approve(handle.id)
    await soon(desk.rd.drain())
    assert not await desk.asks(handle)


# Held and asked ------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-49", "B12")
async def test_a_call_without_consent_says_so(desk: Desk) -> None:
    outcome = await soon(desk.rd.call(desk.task, {"amount": 900}, session_id="s1"))
    assert (outcome.status, bool(outcome)) == ("needs_consent", False)
    shown = outcome.public()
    assert shown["status"] == "needs_consent" and "redrive approve" in shown["message"]
    job = await desk.rd.jobs.get(outcome.operation_id or "")
    assert (job.state, job.attempts, desk.ran) == ("held", 0, [])
    await desk.rd.jobs.approve(job.id)
    again = await soon(desk.rd.retry(job.id))
    assert again.result == 900


async def test_a_retry_of_what_waits_for_consent_asks_again(desk: Desk) -> None:
    handle = await desk.ask()
    assert (await soon(desk.rd.retry(handle.id))).status == "needs_consent"
    assert desk.ran == []


@pytest.mark.parametrize("blanket", [False, True])
async def test_consent_given_later_brings_back_what_waits_for_it(desk: Desk, blanket: bool) -> None:
    mine, theirs = await desk.ask(session="s1"), await desk.ask(session="s2")
    await desk.rd.sessions.grant("s1", "refund", by="ann", blanket=blanket)
    await soon(desk.rd.drain())
    assert not await desk.asks(mine)
    assert await desk.asks(theirs)


async def test_consent_brings_back_everything_that_waits_for_it(desk: Desk) -> None:
    await desk.rd.enqueue_many("refund", [{"amount": n} for n in range(1_100)], session_id="s1")
    await soon(desk.rd.drain())
    await soon(desk.rd.sessions.grant("s1", "refund", by="ann"))
    await soon(desk.rd.drain())
    assert len(desk.ran) == 1_100


async def test_consent_given_while_a_job_is_being_held_is_seen_a_little_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker had looked for a yes, the yes came and found nothing held, then the job was held: for ever, else."""
    real, given = desk.rd.store.docs, asyncio.Event()

    async def docs(kind: str, prefix: str = "") -> Any:
        found = await real(kind, prefix)
        if kind == "grant" and not given.is_set():
            given.set()
            await desk.rd.sessions.grant("s1", "refund", by="ann", expires=3_600)
        return found

    monkeypatch.setattr(desk.rd.store, "docs", docs, raising=False)
    handle, other = await desk.ask(), await desk.ask(session="s2")
    assert await desk.asks(handle)
    await desk.rd.make_scheduler(desk.rd.make_worker()).let_consented_go()
    await soon(desk.rd.drain())
    assert not await desk.asks(handle)
    assert await desk.asks(other)


@pytest.mark.behaviour("003-4")
async def test_a_call_that_had_to_ask_is_told_when_it_ends(desk: Desk) -> None:
    outcome = await soon(desk.rd.call(desk.task, {"amount": 900}, session_id="s1"))
    assert outcome.status == "needs_consent"
    await desk.rd.jobs.approve(outcome.operation_id or "")
    await soon(desk.rd.drain())
    kinds = [notice.kind for notice in await desk.rd.sessions.inbox("s1", unread=False)]
    assert kinds == ["needs_consent", "retry_success"]


async def test_a_grant_for_something_else_brings_back_nothing(desk: Desk) -> None:
    handle = await desk.ask()
    await desk.rd.sessions.grant("s1", "other", by="ann")
    await soon(desk.rd.drain())
    assert await desk.asks(handle) and desk.ran == []


async def test_waiting_for_consent_costs_no_attempt_and_no_age(desk: Desk) -> None:
    handle = await desk.ask()
    desk.clock.advance(30 * 86_400)
    await desk.rd.jobs.approve(handle.id)
    desk.errors.append(ConnectionError("cut"))
    await soon(desk.rd.drain())
    job = await handle.refresh()
    assert (job.state, job.attempts) == ("done", 2)


async def test_rejecting_ends_it(desk: Desk) -> None:
    handle = await desk.ask()
    job = await desk.rd.jobs.reject(handle.id, who="ann", why="too much")
    assert (job.state, desk.ran) == ("discarded", [])
    last = (await desk.rd.jobs.story(handle.id))[-1]
    assert (last.who, last.why) == ("ann", "too much")
    outcome = await desk.rd.outcome(handle.id)
    assert outcome.status == "failed"


async def test_a_no_that_comes_after_a_yes_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = await desk.ask()
    rejected = desk.rd.sessions.make_rejection

    async def after_ann(job: Job, who: str, why: str | None) -> list[Put]:
        puts = await rejected(job, who, why)
        await desk.rd.jobs.approve(handle.id, who="ann")
        return puts

    monkeypatch.setattr(desk.rd.sessions, "make_rejection", after_ann)
    with pytest.raises(IllegalMove, match="asks for nothing"):
        await desk.rd.jobs.reject(handle.id, who="bob")
    await soon(desk.rd.drain())
    assert ((await handle.refresh()).state, len(desk.ran)) == ("done", 1)


@pytest.mark.parametrize("wrong", [{"why": 5}, {"agent": 5}, {"subject": ""}, {"why": "x" * 1001}])
async def test_a_grant_that_could_not_be_read_back_is_refused(rd: Redrive, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await rd.sessions.grant("s1", "refund", by="ann", **wrong)
    assert await rd.sessions.grants("s1") == []


async def test_who_said_yes_and_why_is_kept(desk: Desk) -> None:
    handle = await desk.ask()
    await _approve(desk, handle)
    (grant,) = await desk.rd.sessions.grants("s1")
    assert (grant.by, grant.why, grant.job_id) == ("ann", "it is fine", handle.id)
    assert grant.subject == subject_of(await handle.refresh())
    last = (await desk.rd.jobs.story(handle.id))[-1]
    assert (last.move, last.who, last.why) == ("unblocked", "ann", "it is fine")


@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_only_what_asks_can_be_answered(rd: Redrive, verb: str) -> None:
    @rd.task
    async def work(ctx: Context) -> None:
        raise redrive.OutcomeUnknown("no answer")

    handle = await work.enqueue()
    answer = getattr(rd.jobs, verb)
    with pytest.raises(IllegalMove, match="asks for nothing"):
        await answer(handle.id)
    await soon(rd.drain())
    assert (await handle.refresh()).because == "outcome_unknown"
    with pytest.raises(IllegalMove, match="outcome_unknown"):
        await answer(handle.id)
    assert (await handle.refresh()).state == "held"


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"session_id": ""}, "session_id"), ({"scope": ""}, "scope"), ({"by": ""}, "by"),
        ({"session_id": "x" * 201}, "session_id"), ({"expires": -1}, "expires"), ({"expires": "soon"}, "expires"),
    ],
)  # fmt: skip
async def test_a_grant_that_says_nothing_is_refused(rd: Redrive, said: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        await rd.sessions.grant(**{"session_id": "s1", "scope": "refund", "by": "ann"} | said)
    assert await rd.sessions.grants("s1") == []


async def test_every_session_that_can_enqueue_can_grant(desk: Desk) -> None:
    """Whatever a job may be called for, somebody can agree to."""
    handle = await desk.ask(session="team/7")
    await desk.rd.sessions.grant("team/7", "refund", by="ann")
    await soon(desk.rd.drain())
    assert not await desk.asks(handle)


async def test_revoking_what_is_not_there_is_refused(rd: Redrive) -> None:
    given = await rd.sessions.grant("s1", "refund", by="ann")
    with pytest.raises(InvalidInput, match="grant"):
        await rd.sessions.revoke("s2", given.id)
    revoked = await rd.sessions.revoke("s1", given.id)
    assert revoked.revoked_at is not None
    assert await rd.sessions.grants("s1") == [revoked], "what was agreed to stays known"


# Questions -----------------------------------------------------------------------------------------------------------


class Asker:
    """A task that asks, and writes down what it heard."""

    def __init__(self, rd: Redrive, clock: FakeClock) -> None:
        self.rd = rd
        self.clock = clock
        self.heard: list[Approval] = []
        self.expires: float | None = None
        self.details: dict[str, Any] = {}
        self.errors: list[BaseException] = []

        @rd.task("ask", backoff="none", rungs=9)
        async def ask(ctx: Context, amount: int) -> bool:
            said = await ctx.approval(f"Refund {amount}?", details=self.details, expires=self.expires)
            self.heard.append(said)
            if self.errors:
                raise self.errors.pop(0)
            return bool(said)

        self.task = ask

    async def enqueue(self, amount: int = 900) -> JobHandle[bool]:
        handle = await self.task.options(session_id="s1").enqueue(amount)
        await soon(self.rd.drain())
        return handle


@pytest.fixture
def asker(rd: Redrive, clock: FakeClock) -> Asker:
    return Asker(rd, clock)


async def test_a_question_holds_the_job_and_costs_nothing(asker: Asker) -> None:
    handle = await asker.enqueue()
    job = await handle.refresh()
    assert (job.state, job.because, job.attempts) == ("held", "approval", 0)
    assert "Refund 900?" in str(job.history[-1].decision)
    assert job.short_id in str(job.recommendation)
    assert (await asker.rd.outcome(handle.id)).status == "held"
    (asked,) = await asker.rd.sessions.questions(job)
    assert (asked.question, asked.answer) == ("Refund 900?", "open")


@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_the_answer_reaches_the_task(asker: Asker, verb: str) -> None:
    handle = await asker.enqueue()
    await getattr(asker.rd.jobs, verb)(handle.id, who="ann", why="because")
    await soon(asker.rd.drain())
    (heard,) = asker.heard
    assert (heard.answer, heard.by, heard.why) == (f"{verb}d" if verb == "approve" else "rejected", "ann", "because")
    assert await handle.result(5) is (verb == "approve")


async def test_an_answer_is_remembered_over_retries(asker: Asker) -> None:
    asker.errors = [ConnectionError("cut"), ConnectionError("cut")]
    handle = await asker.enqueue()
    await asker.rd.jobs.approve(handle.id)
    await soon(asker.rd.drain())
    assert await handle.result(5) is True
    assert [said.answer for said in asker.heard] == ["approved"] * 3


async def test_nobody_in_time_is_not_a_yes(asker: Asker) -> None:
    asker.expires = 60
    handle = await asker.enqueue()
    scheduler = asker.rd.make_scheduler(asker.rd.make_worker())
    asker.clock.advance(59)
    await scheduler.expire_questions()
    assert (await handle.refresh()).state == "held"
    asker.clock.advance(1)
    await scheduler.expire_questions()
    await soon(asker.rd.drain())
    assert await handle.result(5) is False
    assert [said.answer for said in asker.heard] == ["expired"]


async def test_an_old_question_expires_behind_many_new_ones(asker: Asker) -> None:
    asker.expires = 60
    old = await asker.enqueue()
    asker.expires = 86_400
    await asker.rd.enqueue_many("ask", [{"amount": n} for n in range(1_050)])
    await soon(asker.rd.drain())
    asker.clock.advance(61)
    await soon(asker.rd.make_scheduler(asker.rd.make_worker()).expire_questions())
    await soon(asker.rd.drain())
    assert await old.result(5) is False


async def test_a_yes_that_comes_too_late_is_refused(asker: Asker) -> None:
    asker.expires = 60
    handle = await asker.enqueue()
    asker.clock.advance(60)
    with pytest.raises(IllegalMove, match="expired"):
        await asker.rd.jobs.approve(handle.id)
    await asker.rd.make_scheduler(asker.rd.make_worker()).expire_questions()
    await soon(asker.rd.drain())
    assert await handle.result(5) is False


async def test_a_yes_in_time_counts_when_the_task_comes_to_it_later(asker: Asker) -> None:
    asker.expires = 60
    handle = await asker.enqueue()
    asker.clock.advance(59)
    await asker.rd.jobs.approve(handle.id)
    asker.clock.advance(3_600)
    await soon(asker.rd.drain())
    assert await handle.result(5) is True


async def test_an_edited_job_is_asked_again(asker: Asker) -> None:
    asker.errors = [redrive.GiveUp("no")]
    handle = await asker.enqueue()
    await asker.rd.jobs.approve(handle.id)
    await soon(asker.rd.drain())
    await asker.rd.dead.edit(handle.id, {"amount": 9_000})
    await soon(asker.rd.drain())
    job = await handle.refresh()
    assert (job.state, job.because, len(asker.heard)) == ("held", "approval", 1)


async def test_an_edit_asks_again_also_where_the_words_are_the_same(rd: Redrive) -> None:
    heard: list[str] = []

    @rd.task("ask", backoff="none")
    async def ask(ctx: Context, amount: int) -> None:
        heard.append((await ctx.approval("Refund it?")).answer)
        if len(heard) == 1:
            raise redrive.GiveUp("no")

    handle = await ask.enqueue(900)
    await soon(rd.drain())
    await rd.jobs.approve(handle.id)
    await soon(rd.drain())
    await rd.dead.edit(handle.id, {"amount": 9_000})
    await soon(rd.drain())
    assert (await handle.refresh()).because == "approval" and heard == ["approved"]
    await rd.jobs.reject(handle.id)
    await soon(rd.drain())
    assert heard == ["approved", "rejected"]


async def test_other_details_are_another_question(asker: Asker) -> None:
    asker.details = {"to": "ann"}
    handle = await asker.enqueue()
    await asker.rd.jobs.approve(handle.id)
    asker.details = {"to": "mallory"}
    await soon(asker.rd.drain())
    job = await handle.refresh()
    assert (job.state, asker.heard) == ("held", [])


@pytest.mark.parametrize("answers", [("approve", "approve"), ("approve", "reject"), ("reject", "approve")])
async def test_two_questions_have_two_answers(rd: Redrive, answers: tuple[str, str]) -> None:
    heard: list[tuple[str, str]] = []

    @rd.task
    async def ask(ctx: Context) -> None:
        one = await ctx.approval("Delete the old ones?")
        two = await ctx.approval("Publish the new ones?")
        heard.append((one.answer, two.answer))

    handle = await ask.enqueue()
    for verb, question in zip(answers, ("Delete", "Publish"), strict=True):
        await soon(rd.drain())
        job = await handle.refresh()
        assert job.because == "approval" and question in str(job.history[-1].decision)
        await getattr(rd.jobs, verb)(handle.id)
    await soon(rd.drain())
    words = {"approve": "approved", "reject": "rejected"}
    assert heard == [(words[answers[0]], words[answers[1]])]


async def test_a_question_that_expired_is_not_answered_by_the_next_one(rd: Redrive, clock: FakeClock) -> None:
    heard: list[tuple[str, ...]] = []

    @rd.task
    async def ask(ctx: Context) -> None:
        one = await ctx.approval("Delete everything?", expires=60)
        two = await ctx.approval("Archive it instead?")
        heard.append((one.answer, two.answer))

    handle = await ask.enqueue()
    await soon(rd.drain())
    clock.advance(60)
    await rd.make_scheduler(rd.make_worker()).expire_questions()
    await soon(rd.drain())
    assert "Archive" in str((await handle.refresh()).history[-1].decision)
    await rd.jobs.approve(handle.id)
    await soon(rd.drain())
    assert heard == [("expired", "approved")]


async def test_a_question_that_is_not_asked_any_more_does_not_end_the_next_one(rd: Redrive, clock: FakeClock) -> None:
    """Its words may follow a price of the day: the one that expired stands open for ever, and nobody waits for it."""
    prices = [900, 901]

    @rd.task
    async def ask(ctx: Context) -> str:
        return (await ctx.approval(f"Refund {prices[0]}?", expires=60 if len(prices) > 1 else None)).answer

    handle = await ask.options(session_id="s1").enqueue()
    await soon(rd.drain())
    scheduler = rd.make_scheduler(rd.make_worker())
    for _ in range(5):
        clock.advance(60)
        del prices[:-1]
        await scheduler.expire_questions()
        await soon(rd.drain())
    assert (await handle.refresh()).run == 2, "it waits for the answer instead of asking again and again"
    await rd.jobs.approve(handle.id)
    await soon(rd.drain())
    assert await handle.result(5) == "approved"


async def test_the_same_question_twice_in_one_run_is_a_mistake(rd: Redrive) -> None:
    @rd.task(max_attempts=1)
    async def ask(ctx: Context) -> None:
        await ctx.approval("Really?")
        await ctx.approval("Really?")

    handle = await ask.enqueue()
    await soon(rd.drain())
    await rd.jobs.approve(handle.id)
    await soon(rd.drain())
    assert "used twice" in str((await handle.refresh()).error)


@pytest.mark.parametrize("question", ["", "  "])
async def test_a_question_has_words(rd: Redrive, question: str) -> None:
    @rd.task(max_attempts=1)
    async def ask(ctx: Context) -> None:
        await ctx.approval(question)

    handle = await ask.enqueue()
    await soon(rd.drain())
    assert "needs a question" in str((await handle.refresh()).error)


@pytest.mark.parametrize("expires", [-1, float("nan"), float("inf"), "soon", True])
async def test_a_question_has_a_time_or_none(rd: Redrive, expires: Any) -> None:
    """NaN is never over, and minus a second always: neither is what somebody meant."""

    @rd.task(max_attempts=1)
    async def ask(ctx: Context) -> None:
        await ctx.approval("Really?", expires=expires)

    handle = await ask.enqueue()
    await soon(rd.drain())
    job = await handle.refresh()
    assert job.state == "dead" and "expires" in str(job.error)
    assert await rd.sessions.questions(job) == []


async def test_the_time_of_a_question_may_be_a_timedelta(rd: Redrive, clock: FakeClock) -> None:
    @rd.task
    async def ask(ctx: Context) -> str:
        return (await ctx.approval("Really?", expires=timedelta(hours=1))).answer

    handle = await ask.enqueue()
    await soon(rd.drain())
    (question,) = await rd.sessions.questions(await handle.refresh())
    assert question.expires_at == clock.now() + 3600


async def test_a_sync_task_asks_without_await(rd: Redrive) -> None:
    @rd.task
    def ask(ctx: BlockingContext) -> str:
        return ctx.approval("Really?").answer

    handle = await ask.enqueue()
    await soon(rd.drain())
    assert (await handle.refresh()).because == "approval"
    await rd.jobs.approve(handle.id)
    await soon(rd.drain())
    assert await handle.result(5) == "approved"


async def test_what_was_done_before_the_question_is_not_done_again(rd: Redrive) -> None:
    done: list[str] = []

    @rd.task
    async def ask(ctx: Context) -> bool:
        await ctx.step("draft", lambda: done.append("draft"))
        await ctx.once("hold", lambda key: done.append("hold"))
        return bool(await ctx.approval("Send it?"))

    handle = await ask.enqueue()
    await soon(rd.drain())
    await rd.jobs.approve(handle.id)
    await soon(rd.drain())
    assert await handle.result(5) is True
    assert done == ["draft", "hold"]


async def test_a_cancelled_question_is_over(asker: Asker) -> None:
    handle = await asker.enqueue()
    await handle.cancel("not wanted")
    with pytest.raises(IllegalMove):
        await asker.rd.jobs.approve(handle.id)
    await soon(asker.rd.drain())
    assert asker.heard == []


# Sessions ------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-47", "003-19")
@pytest.mark.parametrize("session", ["s1", None])
async def test_the_session_is_there_during_a_replay_and_gone_afterwards(rd: Redrive, session: str | None) -> None:
    seen: list[Any] = []

    async def deep() -> str | None:
        return session_of.get() or None

    @rd.task(backoff="none")
    async def work(ctx: Context) -> None:
        seen.append(
            (
                ctx.session_id,
                await deep(),
                await asyncio.create_task(deep()),
                await asyncio.to_thread(session_of.get) or None,
            )
        )
        if ctx.attempt == 1:
            raise ConnectionError("cut")

    token = session_of.set("the worker's own")
    try:
        await work.options(session_id=session).enqueue() if session else await _without_session(work)
        await soon(rd.drain())
        assert session_of.get() == "the worker's own"
    finally:
        session_of.reset(token)
    assert seen == [(session, session, session, session)] * 2
    assert session_of.get() is None


async def _without_session(task: Any) -> Any:
    token = session_of.set(None)
    try:
        return await task.enqueue()
    finally:
        session_of.reset(token)


@pytest.mark.behaviour("003-47")
async def test_sync_tasks_run_in_threads_for_their_own_sessions(live: Redrive) -> None:
    """Side by side, and each sees its own."""
    together = threading.Barrier(3)
    seen: list[tuple[str | None, str | None]] = []

    @live.task
    def work(ctx: BlockingContext) -> None:
        together.wait(20)
        seen.append((ctx.session_id, session_of.get()))

    async with live.worker():
        jobs = [await work.options(session_id=f"s{n}").enqueue() for n in range(3)]
        for job in jobs:
            await job.result(20)
    assert sorted(seen) == [(f"s{n}", f"s{n}") for n in range(3)]


@pytest.mark.behaviour("B13", "003-19")
@pytest.mark.parametrize("how", ["enqueue", "many", "submit", "call"])
async def test_what_a_task_hands_in_belongs_to_its_session(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    @rd.task
    async def child() -> None: ...

    @rd.task
    async def parent() -> str | None:
        match how:
            case "enqueue":
                return (await child.enqueue()).id
            case "many":
                return (await rd.enqueue_many("child", [{}])).ids[0]
            case "submit":
                return (await rd.submit(child)).operation_id
            case _:
                return (await rd.call(child)).operation_id

    first = await parent.options(session_id="asked").enqueue()
    nobody = await parent.enqueue()
    monkeypatch.setenv("REDRIVE_SESSION_ID", "server")
    await soon(rd.drain())
    assert (await rd.jobs.get(await first.result(5) or "")).session_id == "asked"
    assert (await rd.jobs.get(await nobody.result(5) or "")).session_id is None, "not the server's"


@pytest.mark.behaviour("B13")
async def test_who_asks_is_the_context_first_and_the_process_second(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_SESSION_ID", "process")
    assert (await rd.enqueue("work", {})).job.session_id == "process"
    token = session_of.set("context")
    try:
        assert (await rd.enqueue("work", {})).job.session_id == "context"
        assert (await rd.submit("work", {})).operation_id
        assert (await rd.enqueue("work", {}, session_id="said")).job.session_id == "said"
    finally:
        session_of.reset(token)
    sessions = {job.session_id for job in (await rd.jobs.list(session_id="context")).jobs}
    assert sessions == {"context"}


@pytest.mark.behaviour("003-50")
async def test_costs_are_booked_to_the_session_that_asked(
    rd: Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rd.task(backoff="none")
    async def think(ctx: Context, fails: int) -> None:
        ctx.usage(input_tokens=10, output_tokens=1, cost=0.5)
        if ctx.attempt <= fails:
            raise ConnectionError("cut")

    await think.options(session_id="s1").enqueue(2)
    await think.options(session_id="s1").enqueue(0)
    await think.options(session_id="s2").enqueue(0)
    monkeypatch.setenv("REDRIVE_SESSION_ID", "server")
    await soon(rd.drain())
    costs = await rd.sessions.costs("s1")
    assert (costs.input_tokens, costs.output_tokens, costs.cost) == (40, 4, 2.0)
    assert (await rd.sessions.costs("s2")).cost == 0.5
    assert (await rd.sessions.costs("server")).cost == 0.0


@pytest.mark.behaviour("003-50")
async def test_costs_of_more_jobs_than_fit_a_page(rd: Redrive) -> None:
    @rd.task
    async def think(ctx: Context) -> None:
        ctx.usage(cost=1.0)

    await rd.enqueue_many("think", [{}] * 1_050, session_id="s1")
    await soon(rd.drain())
    assert (await rd.sessions.costs("s1")).cost == 1_050.0


@pytest.mark.behaviour("003-48")
async def test_consent_is_that_of_the_session_that_asked_not_of_the_worker(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.rd.sessions.grant("server", "refund", by="ann")
    handle = await desk.task.options(session_id="s1").enqueue(900)
    monkeypatch.setenv("REDRIVE_SESSION_ID", "server")
    await soon(desk.rd.drain())
    assert await desk.asks(handle)
