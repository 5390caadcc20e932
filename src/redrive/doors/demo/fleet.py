"""Runs `redrive demo --fleet`: a real NATS cluster, hubs and seven agents; a node and a worker are killed."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from rich.table import Table

import redrive
from redrive.doors.demo.cluster import NODES, Processes, clean_environment, find_server, write_nodes
from redrive.doors.demo.view import View, check_totals
from redrive.errors import StoreError
from redrive.reports.periods import Row, percent

HUBS: Final = 2
DEADLINE: Final = 150.0
"""Seconds after which the demo gives up. It takes about a minute, and longer on a busy machine."""
ARRIVAL: Final = 12.0
LOOK: Final = 0.25
TOLD: Final = "SIGTERM"


def run_fleet(*, jobs: int, plain: bool) -> int:
    """Run the demo; return 0 if everything adds up."""
    server = find_server()
    logging.getLogger("redrive").addHandler(logging.NullHandler())  # the view says what matters
    folder = Path(tempfile.mkdtemp(prefix="redrive-fleet-"))
    try:
        return asyncio.run(_run_until_told(server, folder, jobs, View(plain=plain)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run_until_told(server: str, folder: Path, jobs: int, view: View) -> int:
    """Run the demo until it ends or SIGTERM comes, which ends all its processes as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None and os.name == "posix":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, TOLD)
    try:
        return await FleetDemo(server, folder, jobs, view).run()
    except asyncio.CancelledError as error:
        if error.args != (TOLD,):
            raise
        return 128 + signal.SIGTERM


class FleetDemo:
    """Runs the demo once, from the first server to the summary."""

    def __init__(self, server: str, folder: Path, jobs: int, view: View) -> None:
        self._server = server
        self._folder = folder
        self._jobs = jobs
        self._view = view
        ports = write_nodes(folder)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"nats://{hosts}/demo?replicas=3&synced=true&max_bytes=128MB&snapshot_bytes=256MB"
        ledger = folder / "ledger"
        ledger.mkdir()
        ours = {
            "REDRIVE_URL": url,
            "REDRIVE_REPLICA_FOLDER": str(folder / "replicas"),
            "REDRIVE_DEMO_LEDGER": str(ledger),
        }
        os.environ.update(ours)
        from redrive.doors.demo.fleet_tasks import SKILLS, rd  # made for the fleet that the lines above name

        self._rd, self._skills, self._ledger = rd, SKILLS, ledger
        self._processes = Processes(clean_environment() | ours, folder)
        self._killed: dict[str, str] = {}
        self._reassigned = 0

    async def run(self) -> int:
        try:
            with self._view:
                async with asyncio.timeout(DEADLINE):
                    await self._start()
                    async with self._rd:
                        await self._enqueue()
                        await self._live()
                        await self._processes.end("agent-")
                        return await self._conclude()
        except TimeoutError:
            self._view.say(f"it did not end within {DEADLINE:.0f} s: this machine is too busy", "red")
            return 1
        finally:
            for prefix in ("agent-", "hub-", "node-"):
                await self._processes.end(prefix)

    # -- starting

    async def _start(self) -> None:
        for number in range(1, NODES + 1):
            name = f"node-{number}"
            await self._processes.start(name, [self._server, "-c", str(self._folder / f"{name}.conf")])
        self._view.say(f"{NODES} NATS servers form a cluster on 127.0.0.1; every message is synced on two of them")
        for number in range(1, HUBS + 1):
            await self._processes.redrive(f"hub-{number}", "hub")
        await self._wait_for_hubs()
        self._view.say(f"{HUBS} hubs replay the log and answer all others")
        for agent in self._skills:
            await self._start_agent(agent)
        self._view.say(f"{len(self._skills)} agents start, a process each: {', '.join(self._skills)}")

    async def _wait_for_hubs(self) -> None:
        while True:
            for name in self._processes.ended:
                raise StoreError(f"{name} ended: {self._processes.read_log(name)[-400:]}")
            try:
                await self._rd.open()
            except StoreError:
                await asyncio.sleep(LOOK)
            else:
                return

    async def _start_agent(self, agent: str) -> None:
        arguments = ("worker", "redrive.doors.demo.fleet_tasks:rd", "--agents", agent, "--concurrency", "4")
        await self._processes.redrive(f"agent-{agent}", *arguments)

    async def _enqueue(self) -> None:
        share = max(10, self._jobs // len(self._skills))
        for agent, skill in self._skills.items():
            items = [redrive.Item({"number": n}, delay=ARRIVAL * n / share) for n in range(share)]
            await self._rd.enqueue_many(skill, items, agent=agent)
        self._view.say(f"{(await self._rd.stats())['accepted']} tasks accepted, for {len(self._skills)} agents")

    # -- while it runs

    async def _live(self) -> None:
        while True:
            stats = await self._rd.stats()
            self._view.show(stats)
            await self._interfere(stats["totals"]["done"] / stats["accepted"], stats["totals"]["running"])
            await self._triage()
            if not any(stats["totals"][state] for state in ("waiting", "running", "held")) and await self._is_settled():
                return
            await asyncio.sleep(LOOK)

    async def _interfere(self, share: float, running: int) -> None:
        if share > 0.25 and "node" not in self._killed:
            pid = await self._processes.kill("node-1")
            self._killed["node"] = f"node-1 (process {pid})"
            self._view.say(f"kill -9 {pid}: node-1 of the cluster dies; the other two go on", "red")
        elif share > 0.5 and running and "worker" not in self._killed:
            pid = await self._processes.kill("agent-backend")
            self._killed["worker"] = f"backend (process {pid})"
            self._view.say(f"kill -9 {pid}: backend dies; its lease shows that, and a new process goes on", "red")
            await self._start_agent("backend")

    async def _triage(self) -> None:
        """Reassign to backend, as the ceo, the dead letters that frontend and marketing may not do."""
        if self._reassigned:
            return
        denied = [job for job in (await self._rd.dead.list(limit=50)).jobs if job.because == "permanent"]
        if len(denied) < 2:
            return
        self._reassigned = len(denied)
        for job in denied:
            await self._rd.dead.reassign(job.id, agent="backend", who="ceo", why="backend may push to this repository")
        self._view.say(f"the ceo reassigns {self._reassigned} dead letters to backend", "yellow")

    async def _is_settled(self) -> bool:
        """Tell whether every dead letter has come back and both kills have happened."""
        return len(self._killed) == 2 and self._reassigned > 0 and not (await self._rd.dead.list(limit=1)).jobs

    # -- the end

    async def _conclude(self) -> int:
        stats = await self._rd.stats()
        finished = Counter((self._ledger / "finished").read_text("ascii").split())
        repeated = finished.total() - len(finished)
        counted = f"{len(finished)} ({repeated} cut off by a kill, run again)"
        self._view.console.print(await self._table())
        checks = [
            *await check_totals(self._rd, stats),
            ("finished, by a ledger outside", counted, len(finished) == stats["totals"]["done"]),
            ("killed with kill -9", " and ".join(self._killed.values()), len(self._killed) == 2),
        ]
        return self._view.sum_up(checks, [], ["", "How to run a fleet of your own: docs/howto/fleet.md"])

    async def _table(self) -> Table:
        """Make the monthly table of the fleet, a row for each agent."""
        names = ("agent", "processed", "DLQ entries", "DLQ rate", "auto-resolved", "human required")
        table = Table(title=f"{time.strftime('%B %Y')}, by agent", title_justify="left")
        for name in names:
            table.add_column(name, justify="left" if name == "agent" else "right")
        for agent in self._skills:
            table.add_row(agent, *_cells((await self._rd.reports.monthly(1, agent=agent)).total))
        table.add_section()
        table.add_row("Total", *_cells((await self._rd.reports.monthly(1)).total))
        return table


def _cells(row: Row) -> list[Any]:
    return [f"{row.processed:,}", str(row.died), percent(row.rate, 2), str(row.auto), str(row.human)]
