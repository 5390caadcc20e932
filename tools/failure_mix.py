"""What ends without a person when a fleet's jobs fail as 118 published dead letters did, and what it costs.

python -m tools.failure_mix            prints what the worlds assume, then runs them and prints the table
python -m tools.failure_mix --write    also writes the table into docs/strategies.md

Every run is redrive itself on a SQLite file with a clock that is moved: enqueued, failed, retried, brought back.
Calls and effects are counted outside of it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redrive
from redrive.core.job import Job, State
from redrive.testing import Harness, harness
from tools.voices import StandIns, Voices
from tools.world import (
    AGENTS,
    DAY,
    HARSH,
    LARGE,
    LIMIT,
    MIX,
    SMALL,
    USUAL,
    Category,
    Errand,
    Rates,
    World,
    messages_of,
    tokens_of,
    windows_in_words,
)

PAGE: Final = Path(__file__).parents[1] / "docs" / "strategies.md"
BEGIN, END = "<!-- failure mix -->\n", "<!-- failure mix ends -->"
MODELS: Final = {SMALL: {"larger": LARGE, "other": LARGE}}
"""The second model of the fleet. redrive takes none that is not named."""
ARMS: Final[dict[str, dict[str, Any]]] = {
    "redrive": {},
    "redrive, breakers off": {"breaker_after": 0},
    "comebacks off": {"comebacks": ()},
    "plain backoff": {"strategy": "plain", "comebacks": ()},
    "plain backoff, breakers off": {"strategy": "plain", "comebacks": (), "breaker_after": 0},
}
"""Policies of the tasks, over the defaults of an agent's queue (`preset="seven_agents"`)."""
FIRST, SECOND = 2026, 118
PLANS: Final = (
    *((USUAL, FIRST, arm) for arm in ARMS),
    *((USUAL, SECOND, arm) for arm in ("redrive", "plain backoff")),
    *((HARSH, FIRST, arm) for arm in ("redrive", "redrive, breakers off", "plain backoff")),
)
"""Every run of the table."""
AFTER: Final = 3 * DAY
"""So long nothing new comes, and what can heal may."""
PAGES: Final = frozenset({"page", "dead_letters"})
"""Messages that call a person."""


@dataclass(frozen=True)
class Lived:
    """What one run came to."""

    world: str
    seed: int
    arm: str
    done: Counter[str]
    """Jobs that ended well without a person, by cause."""
    calls_by_cause: Counter[str]
    doubled: int
    missing: int
    """Jobs that are done, and whose effect was not seen outside."""
    healthy_done: int
    died: int
    auto: int
    auto_minutes: float
    """From death to success, in the mean, of what died and came back by itself."""
    pages: tuple[str, ...]
    """Calls to a person about jobs that came back by themselves."""
    stuck: tuple[str, ...]
    """Jobs that neither ended nor wait for a person."""

    def resolved(self, category: Category | None = None) -> int:
        return sum(number for cause, number in self.done.items() if category in (None, MIX[cause][0]))

    def share(self, category: Category | None = None) -> float:
        total = sum(number for kind, number in MIX.values() if category in (None, kind))
        return self.resolved(category) / total

    @property
    def calls(self) -> int:
        return self.calls_by_cause.total()

    @property
    def permanent_repeats(self) -> int:
        causes = [(cause, number) for cause, (kind, number) in MIX.items() if kind == "permanent"]
        return sum(self.calls_by_cause[cause] - number for cause, number in causes)


def make_app(world: World, policy: dict[str, Any], path: str = "failure-mix.db") -> redrive.Redrive:
    """A fleet of seven agents whose tasks call the world."""
    rd = redrive.Redrive(path, preset="seven_agents", models=MODELS)
    for work in AGENTS:
        rd.task(work, **policy)(_task_of(world))
    return rd


def _task_of(world: World) -> Callable[..., Any]:
    async def work(
        ctx: redrive.Context, key: str, late: bool, messages: list[dict[str, str]], model: str, max_tokens: int
    ) -> str:
        def call() -> None:
            text = messages[0]["content"]
            tokens = tokens_of(messages)
            world.call(key, tokens=tokens, model=model, agent=ctx.agent, limit=max_tokens, text=text)

        if not late:
            call()
        answer = await ctx.once("publish", lambda _: world.perform(key))
        if late:
            call()
        return answer

    return work


async def live(rates: Rates, seed: int, arm: str, voices: Voices | None = None, path: str = "failure-mix.db") -> Lived:
    """Let a world happen to redrive, from the first job to three days after the last."""
    world = World(rates, seed, voices or StandIns())
    rd = make_app(world, ARMS[arm], path)
    async with harness(rd) as t:
        told = await _live_through(world, rd, t)
        jobs = {job.key or "": job for job in await t.jobs()}
        report = (await rd.reports.monthly(2)).total
    return _summed_up(world, arm, jobs, told, report)


async def _live_through(world: World, rd: redrive.Redrive, t: Harness) -> list[tuple[str, frozenset[str]]]:
    """Every message that calls a person, with the keys of the jobs that were dead when it was written."""
    start, looks = t.clock.now(), _Looks(rd, t)
    _follow(world, t, start)
    for errand in world.errands:
        await t.advance(max(0.0, start + errand.at - t.clock.now()))
        await _enqueue(rd, errand, t)
    await t.advance(AFTER)
    return looks.told


def _follow(world: World, t: Harness, start: float) -> None:
    """The world goes by the harness's clock."""
    tell = t.clock.now

    def now() -> float:
        at = tell()
        world.now, world.voices.now = at - start, at
        return at

    t.clock.now = now  # type: ignore[method-assign]


async def _enqueue(rd: redrive.Redrive, errand: Errand, t: Harness) -> None:
    payload = {"key": errand.key, "late": errand.late, "messages": messages_of(errand), "model": SMALL,
               "max_tokens": LIMIT}  # fmt: skip
    handle = await rd.enqueue(errand.work, payload, agent=AGENTS[errand.work], idempotency_key=errand.key)
    if errand.cause == "gke_node_preemption":
        await _claim_and_vanish(rd, handle.id, t)


async def _claim_and_vanish(rd: redrive.Redrive, job_id: str, t: Harness) -> None:
    """A worker takes the job and is gone with its node."""
    from redrive.core.store import Wanted

    await rd.store.claim(Wanted(slots=1, ids=(job_id,)), "spot-node", t.clock.now())


class _Looks:
    """Looks for what people must be told, as a scheduler does every few seconds: whenever a job has died."""

    def __init__(self, rd: redrive.Redrive, t: Harness) -> None:
        self.told: list[tuple[str, frozenset[str]]] = []
        self._known: set[str] = set()
        self._rd = rd
        self._died = False
        self._run = t.run
        rd.subscribe("dead_letter", self._hear)
        t.run = self.run  # type: ignore[method-assign]

    def _hear(self, event: object) -> None:
        self._died = True

    async def run(self) -> int:
        made = await self._run()
        if self._died:
            await self._rd._duties.look()
            self.told += await _new_pages(self._rd, self._known)
            self._died = False
        return made


async def _new_pages(rd: redrive.Redrive, known: set[str]) -> list[tuple[str, frozenset[str]]]:
    calls = [notice for notice in await rd.notices.waiting() if notice.kind in PAGES and notice.id not in known]
    known.update(notice.id for notice in calls)
    dead = frozenset(job.key or "" for job in (await rd.dead.list(limit=1000)).jobs) if calls else frozenset[str]()
    return [(f"{notice.kind}: {notice.title}", dead) for notice in calls]


def _summed_up(
    world: World, arm: str, jobs: dict[str, Job], told: Iterable[tuple[str, frozenset[str]]], report: Any
) -> Lived:
    failing = [errand for errand in world.errands if errand.cause]
    done = {errand.key for errand in world.errands if jobs[errand.key].state is State.done}
    effects, calls = world.ledger.effects, world.ledger.calls
    auto_seconds = report.auto_seconds / report.auto if report.auto else 0.0
    return Lived(
        world.rates.name, world.seed, arm,
        done=Counter(errand.cause for errand in failing if errand.key in done and errand.cause),
        calls_by_cause=Counter(errand.cause for errand in failing for _ in range(calls[errand.key]) if errand.cause),
        doubled=sum(number > 1 for number in effects.values()),
        missing=sum(effects[key] == 0 for key in done),
        healthy_done=sum(errand.key in done for errand in world.errands if errand.cause is None),
        died=report.died, auto=report.auto, auto_minutes=auto_seconds / 60,
        pages=tuple(title for title, dead in told if dead and dead <= done),
        stuck=tuple(sorted(key for key, job in jobs.items() if _is_stuck(job))),
    )  # fmt: skip


def _is_stuck(job: Job) -> bool:
    return job.state in (State.waiting, State.running, State.held) or (
        job.state is State.dead and job.lane == "delayed"
    )


# ---- telling


def assumptions(rates: Rates) -> list[str]:
    """What a world takes for granted, in words."""
    fits = ", ".join(
        f"{number} fit when cut to {share:.0%}" if share else f"{number} never fit"
        for share, number in rates.overflow_windows
    )
    flapping = f"; for 20 min after an incident {rates.flapping:.0%} of the calls fail" if rates.flapping else ""
    waits = ", ".join(f"{wait:g}" for wait in rates.limit_waits)
    silent = f"{rates.limit_silent:.0%} name no time and last 20 to 90 s"
    return [
        f"the provider's failures: {rates.burst_share:.0%} are overloads of 10 to 120 s, the others fall into "
        f"incidents of {rates.incident_median / 60:.0f} min in the median (log-normal, sigma {rates.incident_sigma:g}),"
        f" {rates.jobs_per_incident} jobs in each, {rates.batch:.0%} of them in its first minute{flapping}",
        f"its rate limits ask for {waits} s, 3 jobs in each; {silent}",
        "GitHub's limits name their end, {:.0f} to {:.0f} min ahead".format(*(at / 60 for at in rates.github_reset)),
        f"network failures last {rates.blip[0]:g} to {rates.blip[1]:g} s; a preempted node is gone with its job",
        f"prompts that are too long: {fits}",
        f"a loop ends with another model or agent in {rates.loop_heals:.0%} of the tries, never with the same; "
        f"a smaller output suffices in {rates.budget_heals:.0%}, the same limit never; "
        f"a confused model is right in {rates.confusion_heals:.0%} of all further tries",
        "permanent causes never heal",
    ]


HEAD: Final = (
    "world", "seed", "policy", "without a person", "transient", "conditional", "permanent repeated", "calls",
    "effects doubled", "died, back by itself", "minutes to that", "pages for it",
)  # fmt: skip


def row(lived: Lived) -> list[str]:
    return [
        lived.world, str(lived.seed), lived.arm, _of(lived, None), _of(lived, "transient"), _of(lived, "conditional"),
        str(lived.permanent_repeats), str(lived.calls), str(lived.doubled), f"{lived.auto} of {lived.died}",
        f"{lived.auto_minutes:.0f}" if lived.auto else "", str(len(lived.pages)),
    ]  # fmt: skip


def _of(lived: Lived, category: Category | None) -> str:
    return f"{lived.share(category):.1%}"


def table(runs: Iterable[Lived]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *(row(one) for one in runs)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(runs: Iterable[Lived]) -> str:
    """The generated part of docs/strategies.md."""
    said = [f"The {rates.name} world:\n\n" + "\n".join(f"- {line}" for line in assumptions(rates))
            for rates in (USUAL, HARSH)]  # fmt: skip
    return "\n\n".join(["", table(runs), *said]).lstrip("\n") + "\n"


def written(page: str) -> str:
    """What the page says between its two marks."""
    return page.partition(BEGIN)[2].partition(END)[0]


def rewritten(page: str, runs: Iterable[Lived]) -> str:
    """The page with this table between its two marks, whatever stood there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{section(runs)}\n{end}{after}"


def row_in(page: str, plan: tuple[Rates, int, str]) -> list[str]:
    """The row of a run in the page's table; empty where it has none."""
    start = f"| {plan[0].name} | {plan[1]} | {plan[2]} |"
    line = next((line for line in written(page).splitlines() if line.startswith(start)), "")
    return [cell.strip() for cell in line.split("|")[1:-1]]


async def every_run() -> list[Lived]:
    return [await live(*plan) for plan in PLANS]


def main() -> None:
    logging.getLogger("redrive").setLevel(logging.CRITICAL)
    for rates in (USUAL, HARSH):
        print(f"{rates.name} world:", *assumptions(rates), sep="\n  ")
        for seed in (FIRST, SECOND):
            print(f"  seed {seed}: {windows_in_words(World(rates, seed, StandIns()))}")
    runs = asyncio.run(every_run())
    print(table(runs))
    if "--write" in sys.argv[1:]:
        PAGE.write_text(rewritten(PAGE.read_text("utf-8"), runs), "utf-8")


if __name__ == "__main__":
    main()
