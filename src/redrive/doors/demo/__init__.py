"""`redrive demo`: a person's first minute. Real processes, a real outage, a real kill -9, and numbers that add up."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.markup import escape

import redrive
from redrive.core.job import State
from redrive.doors.cli.text import plural
from redrive.doors.demo.receiver import Receiver
from redrive.doors.demo.view import View

WORKERS = 2
DEADLINE = 120.0
"""It takes ten to fifteen seconds; on a machine that is busy with other things, longer."""
ARRIVAL = 8.0
"""The work arrives over so many seconds."""
OUTAGE = (3.0, 4.0)
"""The receiver goes down so many seconds after the start, for so long."""
BRIEFS = 12
"""So many jobs go to an agent that may not do them."""
POISON = ("a bug", "a frozen deploy", "kills its worker")


def run(*, file: Path | None = None, jobs: int = 300, plain: bool = False) -> int:
    """Run the demo; 0 when everything adds up."""
    folder = Path(tempfile.mkdtemp(prefix="redrive-demo-")) if file is None else file.absolute().parent
    database = folder / "jobs.db" if file is None else file.absolute()
    if database.exists():
        raise redrive.InvalidInput(field="file", problem=f"{database} exists already; the demo wants a new one")
    return asyncio.run(Demo(database, jobs, View(plain=plain)).run())


def _arriving(payloads: Iterable[dict[str, Any]]) -> list[redrive.Item]:
    """The work does not come all at once."""
    listed = list(payloads)
    return [redrive.Item(payload, delay=ARRIVAL * n / len(listed)) for n, payload in enumerate(listed)]


def parked(number: int) -> str:
    """What stands still, and until when; nothing if nothing does."""
    if not number:
        return ""
    return f"{'1 delivery is' if number == 1 else f'{number} deliveries are'} parked until a probe gets through"


class Demo:
    """One run, from the first enqueue to the summary."""

    def __init__(self, database: Path, jobs: int, view: View) -> None:
        self._database = database
        self._jobs = jobs
        self._view = view
        self._receiver, self._press = Receiver(), Receiver()
        os.environ["REDRIVE_URL"] = str(database)
        from redrive.doors.demo.tasks import rd  # made for the file that the line above names

        self._rd = rd
        self._workers: list[asyncio.subprocess.Process] = []
        self._killed = 0
        self._parked = 0
        self._open = False

    async def run(self) -> int:
        await self._receiver.start()
        await self._press.start()
        try:
            with self._view as view:
                view.say(f"a new database: {self._database}")
                async with self._rd:
                    await self._enqueue()
                    await self._live()
                    return await self._conclude()
        finally:
            await self._end_workers()
            await self._receiver.stop()
            await self._press.stop()

    async def _enqueue(self) -> None:
        hook = f"http://127.0.0.1:{self._receiver.port}/hook"
        poison, articles, research = len(POISON), self._jobs * 3 // 10, self._jobs * 3 // 10
        deliveries = max(1, self._jobs - articles - research - BRIEFS - poison - 1)
        for number in range(deliveries):
            await self._rd.enqueue_http(
                "POST",
                hook,
                json={"event": number},
                queue="deliveries",
                idempotency_key=f"event_{number}",
                delay=ARRIVAL * number / deliveries,
            )
        await self._rd.enqueue_http("POST", hook + "/typo", json={}, queue="deliveries")
        await self._rd.enqueue_many("publish", _arriving({"slug": f"article-{n}"} for n in range(articles)))
        await self._rd.enqueue_many("research", _arriving({"topic": n} for n in range(research)))
        await self._rd.enqueue_many(
            "brief", _arriving({"topic": f"quarter {n + 1}"} for n in range(BRIEFS)), agent="intern"
        )
        await self._rd.enqueue_many("poison", _arriving({"kind": kind} for kind in POISON))
        self._view.say(
            f"{(await self._rd.stats())['accepted']} jobs accepted; each was on disk before its call returned"
        )

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
                self._view.show(stats, parked(self._parked))
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
        waits = f"; {parked(self._parked)}" if self._parked else ""
        self._view.say(f"the receiver is back{waits}", "green")

    async def _watch_breaker(self, held: int) -> None:
        """Say when the outage's breaker begins to park deliveries, and when what it parked has come back."""
        self._parked = held
        if held and not self._open:
            self._open = True
            self._view.say(f"its breaker opens: {parked(held)}", "yellow")
        elif self._open and not held and all(one.state == "closed" for one in await self._rd.breakers()):
            self._open = False
            self._view.say("a probe got through, and the parked deliveries are back", "green")

    async def _interfere(self, stats: dict[str, Any]) -> None:
        """Kill one worker midway, and start another for each that died."""
        totals = stats["totals"]
        done, accepted = totals["done"], stats["accepted"]
        midway = done * 2 > accepted or (done * 3 > accepted and totals["running"])
        victim = next((worker for worker in self._workers if worker.returncode is None), None)
        if midway and victim is not None and not self._killed and not await self._suspects():
            victim.send_signal(signal.SIGKILL)
            self._killed = victim.pid
            around = plural(totals["running"], "job")
            self._view.say(f"kill -9 {victim.pid}: a worker dies with {around} running around it", "red")
            await victim.wait()
        for worker in [worker for worker in self._workers if worker.returncode is not None]:
            self._workers.remove(worker)
            if worker.pid != self._killed:
                self._view.say(f"worker {worker.pid} was killed by a poisonous job", "red")
            await self._start_worker()

    async def _suspects(self) -> bool:
        """Whether a job has its worker to itself, to see whether it kills it: a kill of ours would speak against it."""
        running = (await self._rd.jobs.list(state="running")).jobs
        return any(job.crashes > 1 for job in running)

    async def _start_worker(self) -> None:
        environ = os.environ | {"REDRIVE_DEMO_PORT": str(self._press.port)}
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "redrive",
            "worker",
            "redrive.doors.demo.tasks:rd",
            "--concurrency",
            "10",
            env=environ,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._workers.append(worker)
        self._view.say(f"worker {worker.pid} starts")

    async def _end_workers(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                worker.terminate()
        for worker in self._workers:
            try:
                await asyncio.wait_for(worker.wait(), 5)
            except TimeoutError:
                worker.kill()

    # -- the end

    async def _conclude(self) -> int:
        await self._end_workers()
        stats = await self._rd.stats()
        totals, accepted = stats["totals"], stats["accepted"]
        twice = 0
        async for job in self._rd.store.scan():
            twice += max(0, sum(attempt.outcome == "done" for attempt in job.history) - 1)
        ended, known = totals["done"] + totals["dead"], sum(totals[state] for state in State)
        posts, seen = self._press.posts, self._receiver.deliveries
        repeats = seen.total() - len(seen)
        lines = [
            ("accepted = done + dead", f"{accepted} = {totals['done']} + {totals['dead']}", accepted == ended),
            ("lost", str(accepted - known), accepted == known),
            ("completed twice", str(twice), twice == 0),
            ("articles posted, each once", f"{len(posts)}", set(posts.values()) <= {1}),
            ("deliveries received", f"{len(seen)} ({repeats} repeated, recognised by key)", True),
            ("killed with kill -9", f"worker {self._killed}", bool(self._killed)),
        ]
        if known > ended:
            lines.insert(1, ("not ended in time", f"{known - ended}, and still there: see `redrive queues`", False))
        self._view.__exit__()
        self._view.summary(lines, await self._letters(), self._what_next())
        return 0 if all(good for *_, good in lines) else 1

    async def _letters(self) -> list[str]:
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
            "  # one by one; `dead show ID` tells a whole story:",
            f"  {program} dead list",
        ]


def _program() -> str:
    """How to call redrive from here: by its name where that works, else by its path."""
    if shutil.which("redrive"):
        return "redrive"
    script = Path(sys.executable).with_name("redrive")
    if not script.exists():
        return f"{sys.executable} -m redrive"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)
