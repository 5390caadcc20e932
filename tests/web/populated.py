"""A store with something behind every number of the dashboard, and the pages that show them."""

import redrive
from redrive import Context
from tests.support import eventually

PAGES = (
    "/", "/jobs", "/dead", "/held", "/acts", "/redrives", "/queues", "/workers", "/tasks", "/schedules", "/breakers",
    "/morning", "/agents", "/workflows", "/fleet", "/inbox", "/moves",
)  # fmt: skip


def make_tasks(rd: redrive.Redrive) -> None:
    @rd.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    @rd.task(max_attempts=1, comebacks=())
    async def broken(text: str) -> None:
        if not text.startswith("mended"):
            raise RuntimeError(text)

    @rd.task(base=3600, cap=3600, max_attempts=5)
    async def flaky() -> None:
        raise ConnectionError("reset")

    @rd.task
    async def ask(ctx: Context) -> None:
        await ctx.approval("May I?")

    @rd.task(downstream="press", breaker_after=1)
    async def printed() -> None:
        raise ConnectionRefusedError("refused")

    @rd.task(schedule="0 3 * * *")
    async def nightly() -> None: ...


async def fill(rd: redrive.Redrive) -> None:
    """Jobs of every kind that a page counts: due, for later, held, retrying, parked, dead, done, of agents."""
    for number in range(3):
        await rd.enqueue("greet", {"name": str(number)}, agent="editor", session_id="s1")
    await rd.enqueue("greet", {"name": "later"}, delay=86400, agent="editor")
    for error in ("wheel stuck", "wheel stuck", "stone cracked"):
        await rd.enqueue("broken", {"text": error}, agent="editor")
    await rd.enqueue("ask", {})
    await rd.enqueue("flaky", {})
    await rd.submit("greet", {"name": "told"}, session_id="s1")


async def settle(rd: redrive.Redrive, **wanted: int) -> None:
    """Waits until so many jobs are in these states."""

    async def settled() -> bool:
        totals = (await rd.stats())["totals"]
        return all(totals[name] == number for name, number in wanted.items())

    await eventually(settled, f"{wanted}")


async def triage(rd: redrive.Redrive) -> None:
    """What people do: a redrive that partly fails again, jobs that are discarded, a group that is ignored, a flow."""
    for error in ("gear jammed", "gear jammed", "gear jammed"):
        await rd.enqueue("broken", {"text": error})
    await settle(rd, dead=6)
    jammed = [job.id for job in (await rd.dead.list()).jobs if "gear" in (job.error or "")]
    await rd.dead.edit(jammed[0], {"text": "mended"}, who="eva")
    await settle(rd, dead=5, done=5)
    run = await rd.redrives.start(jammed, who="eva", why="the gear is oiled")
    async for _ in rd.redrives.follow(run.id):
        pass
    for error in ("lamp out", "lamp out"):
        await rd.enqueue("broken", {"text": error})
    await settle(rd, dead=7)
    await rd.dead.do("discard", where={"error_class": "RuntimeError", "agent": "editor"}, who="eva", why="not needed")
    (lamp,) = {job.fingerprint for job in (await rd.dead.list()).jobs if "lamp" in (job.error or "")}
    assert lamp is not None
    await rd.groups.ignore(lamp, who="eva", why="known")
    flow = rd.workflow("hall")
    first = flow.add("broken", text="mended hall")
    flow.add("broken", text="hall dark", after=[first])
    await flow.start()
    await settle(rd, done=6, dead=5)


async def stop_queue(rd: redrive.Redrive) -> None:
    await rd.queues.pause("stopped", who="eva", new=True)
    await rd.enqueue_many("greet", [{"name": "due"}] * 2, queue="stopped")
