"""Shows a demo: a live table, the latest events, and at the end whether the numbers add up."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from redrive.core.job import State
from redrive.doors.cli.text import fold_text

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

Check = tuple[str, str, bool]
"""What was checked, what came out, and whether that is good."""
PAGE = 1_000
COLUMNS = ("waiting", "running", "held", "done", "dead", "all")
"""The states of a job and their sum: at every moment they add up to the accepted jobs."""


class View:
    """Shows a live view on a terminal, plain lines elsewhere."""

    def __init__(self, *, plain: bool) -> None:
        self.console = Console(highlight=False)
        self.plain = plain or not self.console.is_terminal
        self._began = time.monotonic()
        self._events: deque[Text] = deque(maxlen=7)
        self._stats: dict[str, Any] = {}
        self._waits_for = ""
        self._live = None if self.plain else Live(console=self.console, refresh_per_second=10, transient=True)

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        line = Text(f"{time.monotonic() - self._began:5.1f} s  {text}", style=style)
        self._events.append(line)
        if self.plain:
            self.console.print(line)
        else:
            self.show(self._stats, self._waits_for)

    def show(self, stats: dict[str, Any], waits_for: str = "") -> None:
        """Show the numbers, and what parked jobs wait for."""
        self._stats, self._waits_for = stats, waits_for
        if self._live is not None and stats:
            self._live.update(self.picture())

    def picture(self) -> Group:
        now = [Text(self._waits_for, style="yellow")] if self._waits_for else []
        return Group(self._table(self._stats), self._bar(self._stats), *now, *self._events)

    def _bar(self, stats: dict[str, Any]) -> Table:
        accepted, row = stats["accepted"], Table.grid(padding=(0, 1))
        ended = stats["totals"]["done"] + stats["totals"]["dead"]
        row.add_row(ProgressBar(total=accepted or 1, completed=ended, width=50), f"{ended} of {accepted}")
        return row

    def _table(self, stats: dict[str, Any]) -> Table:
        look: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "collapse_padding": True}
        table = Table(title="redrive demo: nothing may be lost", title_justify="left", **look)
        table.add_column("queue", min_width=10)
        for name in COLUMNS:
            table.add_column(name, justify="right", min_width=5)
        for queue in stats["queues"]:
            table.add_row(queue["name"], *_numbers(queue))
        table.add_section()
        table.add_row("all", *_numbers(stats["totals"]))
        return table

    def sum_up(self, checks: Sequence[Check], texts: Sequence[str], commands: Sequence[str]) -> int:
        """Print the checks, texts that are folded at words, and commands that stay whole; return the exit status."""
        self.__exit__()
        grid = Table.grid(padding=(0, 2))
        for label, value, good in checks:
            grid.add_row("✓" if good else "✗", label, Text(value, style="bold green" if good else "bold red"))
        ok = all(good for *_, good in checks)
        self.console.print(Panel(grid, title="It adds up" if ok else "Something is wrong"))
        width = self.console.width if self.console.is_terminal else sys.maxsize
        for line in (*(fold_text(text, width) for text in texts), *commands):
            self.console.print(line, soft_wrap=True)
        return 0 if ok else 1


def _numbers(counts: dict[str, Any]) -> list[Text]:
    """Format the number of each state, and their sum."""
    numbers: dict[str, int] = {state.value: counts[state] for state in State}
    numbers["all"] = sum(numbers.values())
    return [Text(str(numbers[name]), style=_STYLES.get(name, "") if numbers[name] else "dim") for name in COLUMNS]


_STYLES = {"dead": "red", "done": "green", "running": "cyan", "held": "yellow"}


async def check_totals(rd: Redrive, stats: dict[str, Any]) -> list[Check]:
    """Check that every accepted job has ended, that none is lost, and that none was completed twice."""
    totals, accepted = stats["totals"], stats["accepted"]
    ended, known = totals["done"] + totals["dead"], sum(totals[state] for state in State)
    late = (("not ended in time", f"{known - ended}, and still there: see `redrive queues`", False),)
    twice = await _count_completed_twice(rd)
    return [
        ("accepted = done + dead", f"{accepted} = {totals['done']} + {totals['dead']}", accepted == ended),
        *(late if known > ended else ()),
        ("lost", str(accepted - known), accepted == known),
        ("completed twice", str(twice), twice == 0),
    ]


async def _count_completed_twice(rd: Redrive) -> int:
    number, page = 0, await rd.jobs.list(limit=PAGE)
    while True:
        number += sum(max(0, sum(run.outcome == "done" for run in job.history) - 1) for job in page.jobs)
        if page.cursor is None:
            return number
        page = await rd.jobs.list(limit=PAGE, cursor=page.cursor)
