"""The harness that users test with."""

from datetime import timedelta
from pathlib import Path

import pytest

import redrive
from redrive import State
from redrive.testing import harness


@pytest.fixture
def rd(tmp_path: Path) -> redrive.Redrive:
    return redrive.Redrive(tmp_path / "never-made.db")


async def test_a_failure_on_order_and_a_retry_when_time_has_passed(rd: redrive.Redrive) -> None:
    ran: list[str] = []

    @rd.task
    async def deliver(to: str) -> str:
        ran.append(to)
        return to

    async with harness(rd) as t:
        await deliver.enqueue("ada")
        t.fail_next(deliver, TimeoutError("slow"))
        assert await t.run() == 1
        assert ran == []
        with pytest.raises(AssertionError, match="waiting"):
            await t.assert_done(deliver)
        assert await t.advance(1.9) == 0, "the backoff is 2 s"
        assert await t.advance(timedelta(seconds=0.2)) == 1
        job = await t.assert_done(deliver, {"to": "ada"})
        assert [attempt.outcome for attempt in job.history] == ["failed", "done"]
    assert ran == ["ada"]
    assert not Path(rd.settings.url).exists(), "the real file is never touched"


async def test_a_whole_day_of_retries_passes_in_order(rd: redrive.Redrive) -> None:
    @rd.task(max_attempts=4, retry_on=(ValueError,))
    def fails() -> None:
        raise ValueError("again")

    async with harness(rd) as t:
        begun = t.clock.now()
        await fails.enqueue()
        assert await t.advance(86_400) == 4 + 3 * 2, "four tries, and two at each comeback of a day"
        job = await t.assert_dead(fails, because="attempts_exhausted")
        started = [(attempt.started_at or 0.0) - begun for attempt in job.history]
        assert started[:4] == pytest.approx([0, 2, 6, 14])
        first, second, third = started[4::2]
        waited = [back - died for back, died in zip((first, second, third), started[3::2], strict=False)]
        assert waited == pytest.approx([600, 3600, 6 * 3600], rel=0.1)
        with pytest.raises(AssertionError, match="terminated"):
            await t.assert_dead(fails, because="terminated")


async def test_what_has_waited_long_enough_goes_on_in_its_time(rd: redrive.Redrive) -> None:
    answered: list[float] = []

    @rd.task
    async def ask(ctx: redrive.Context) -> str:
        answer = await ctx.approval("Delete it?", expires=3600)
        answered.append(t.clock.now() - begun)
        return answer.answer

    @rd.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    @rd.task
    async def unsure() -> None:
        raise redrive.OutcomeUnknown("no answer")

    async with harness(rd) as t:
        begun = t.clock.now()
        question, failed, unknown = await ask.enqueue(), await fail.enqueue(), await unsure.enqueue()
        await t.run()
        await rd.dead.defer(failed.id, owner="ann", until=7200)
        await t.advance(7199)
        assert ((await question.refresh()).result, answered) == ("expired", [3600])
        assert (await failed.refresh()).state == "held"
        await t.advance(1)
        assert (await failed.refresh()).state == "dead"
        await rd.dead.move_lane(failed.id, lane="delayed")
        await t.advance(3601)
        assert (await failed.refresh()).lane == "manual", "it was looked at again, and has no tries left"
        await t.advance(timedelta(days=7))
        assert (await unknown.refresh()).state == "dead"


async def test_clock_store_and_functions_are_put_back(rd: redrive.Redrive) -> None:
    @rd.task
    async def work() -> None: ...

    before = (rd.clock, rd.registry.handlers["work"].function)
    async with harness(rd) as t:
        t.fail_next(work, ValueError())
        assert (rd.clock, rd.registry.handlers["work"].function) != before
        with pytest.raises(redrive.InvalidOption, match="nobody"):
            t.fail_next("nobody", ValueError())
    assert (rd.clock, rd.registry.handlers["work"].function) == before


async def test_killed_everywhere_an_effect_that_can_be_verified_lands_once(rd: redrive.Redrive) -> None:
    posted: dict[str, str] = {}

    @rd.task
    async def publish(ctx: redrive.Context, slug: str) -> str:
        draft = await ctx.step("draft", slug.upper)
        await ctx.once("post", lambda key: posted.setdefault(key, draft), verify=posted.get)
        return draft

    async with harness(rd) as t:
        points = await t.crash_everywhere(publish, {"slug": "q3"})
    assert len(points) == 8, "before and after: the step, the intent, the effect, the end"
    assert {point.state for point in points} == {State.done}
    assert all(point.effects == {"post": 1} for point in points)


async def test_what_nobody_can_verify_is_held_rather_than_repeated(rd: redrive.Redrive) -> None:
    @rd.task
    async def charge(ctx: redrive.Context) -> None:
        await ctx.once("charge", lambda key: "charged")

    async with harness(rd) as t:
        points = await t.crash_everywhere(charge, {})
    assert {point.state for point in points} == {State.done, State.held}
    assert all(sum(point.effects.values()) <= 1 for point in points)


async def test_a_verifier_that_lies_is_found_out(rd: redrive.Redrive) -> None:
    """The control: with a verifier that never finds anything, the effect is repeated, and the harness says so."""

    @rd.task
    async def publish(ctx: redrive.Context) -> None:
        await ctx.once("post", lambda key: "posted", verify=lambda key: None)

    async with harness(rd) as t:
        with pytest.raises(AssertionError, match=r"post happened 2 times"):
            await t.crash_everywhere(publish, {})


async def test_the_writes_of_later_attempts_are_crashed_too(rd: redrive.Redrive) -> None:
    posted: dict[str, int] = {}

    @rd.task
    async def poll(ctx: redrive.Context) -> None:
        if ctx.attempt == 1:
            raise redrive.Retry("not ready", after=60)
        await ctx.step("draft", lambda: 1)
        await ctx.once("post", lambda key: posted.setdefault(key, 1), verify=posted.get)

    async with harness(rd) as t:
        points = await t.crash_everywhere(poll, {})
        assert {job.state for job in await t.jobs(poll)} == {State.done}, "none is left for later"
    assert len(points) == 10, "before and after: the retry, the step, the intent, the effect, the end"
    assert all(point.state is State.done and point.effects == {"post": 1} for point in points)


async def test_an_effect_that_a_later_attempt_repeats_is_found_out(rd: redrive.Redrive) -> None:
    @rd.task
    async def poll(ctx: redrive.Context) -> None:
        if ctx.attempt == 1:
            raise redrive.Retry("not ready", after=60)
        await ctx.once("post", lambda key: "posted", verify=lambda key: None)

    async with harness(rd) as t:
        with pytest.raises(AssertionError, match=r"post happened 2 times"):
            await t.crash_everywhere(poll, {})


async def test_other_jobs_stay_out_of_what_is_crashed(rd: redrive.Redrive) -> None:
    @rd.task
    async def post(ctx: redrive.Context) -> None:
        await ctx.once("post", lambda key: "posted")

    @rd.task
    async def plain() -> None: ...

    async with harness(rd) as t:
        await post.enqueue()
        points = await t.crash_everywhere(plain, {})
        assert [point.effects for point in points] == [{}, {}]
        assert [job.state for job in await t.jobs(post)] == [State.waiting]


async def test_a_job_that_waits_for_a_person_has_not_ended(rd: redrive.Redrive) -> None:
    @rd.task
    async def refund(ctx: redrive.Context) -> None:
        await ctx.approval("Refund 900 €?")

    async with harness(rd) as t:
        with pytest.raises(AssertionError, match=r"held \(approval\) and does not end"):
            await t.crash_everywhere(refund, {})


async def test_a_job_that_cancels_itself_has_ended(rd: redrive.Redrive) -> None:
    @rd.task
    async def late() -> None:
        raise redrive.Cancel("nobody wants it")

    async with harness(rd) as t:
        assert {point.state for point in await t.crash_everywhere(late, {})} == {State.discarded}


async def test_orders_that_make_no_sense_are_refused(rd: redrive.Redrive) -> None:
    @rd.task
    async def work() -> None: ...

    async with harness(rd) as t:
        with pytest.raises(redrive.InvalidOption, match="'wrok' is not a task"):
            await t.crash_everywhere("wrok", {})
        with pytest.raises(redrive.InvalidOption, match="'boom' is not an exception"):
            t.fail_next(work, "boom")  # type: ignore[arg-type]


async def test_a_task_with_a_key_of_its_own_is_crashed_at_every_point_too(tmp_path: Path) -> None:
    """Each point is a job of its own, and not the first one again."""
    rd = redrive.Redrive(tmp_path / "jobs.db")

    @rd.task(idempotency_key="pay_{x}")
    async def pay(ctx: redrive.Context, x: int) -> None:
        await ctx.step("one", lambda: 1)
        await ctx.step("two", lambda: 2)

    async with harness(rd) as t:
        keyed = await t.crash_everywhere(pay, {"x": 1})
    assert len(keyed) > 4


async def test_failures_at_several_instants_open_a_breaker(tmp_path: Path) -> None:
    """As they do in a worker, which lives on between them."""
    rd = redrive.Redrive(tmp_path / "never-made.db")

    @rd.task(downstream="crm", max_attempts=1)
    async def sync(number: int) -> None:
        raise ConnectionError("refused")

    async with harness(rd) as t:
        for number in range(10):
            await sync.enqueue(number)
            await t.advance(5)
        assert [(breaker.key, breaker.state) for breaker in await rd.breakers()] == [("crm", "open")]
