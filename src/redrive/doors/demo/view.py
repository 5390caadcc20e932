"""How the demo looks: one live table, the last few things that happened, and a summary that adds up."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from redrive.core.job import State
from redrive.doors.cli.text import fold_text

COLUMNS = ("waiting", "running", "held", "done", "dead", "all")
"""They add up to what was accepted: no job is ever in none of them."""


class View:
    """A live view on a terminal, plain lines elsewhere."""

    def __init__(self, *, plain: bool) -> None:
        self.console = Console(highlight=False)
        self.plain = plain or not self.console.is_terminal
        self._began = time.monotonic()
        self._said: deque[Text] = deque(maxlen=7)
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
        self._said.append(line)
        if self.plain:
            self.console.print(line)
        else:
            self.show(self._stats, self._waits_for)

    def show(self, stats: dict[str, Any], waits_for: str = "") -> None:
        """The numbers, and what they stand still for, if they do."""
        self._stats, self._waits_for = stats, waits_for
        if self._live is not None and stats:
            self._live.update(self.picture())

    def picture(self) -> Group:
        now = [Text(self._waits_for, style="yellow")] if self._waits_for else []
        return Group(self._table(self._stats), self._bar(self._stats), *now, *self._said)

    def _bar(self, stats: dict[str, Any]) -> Table:
        totals, row = stats["totals"], Table.grid(padding=(0, 1))
        ended = totals["done"] + totals["dead"]
        row.add_row(
            ProgressBar(total=stats["accepted"] or 1, completed=ended, width=50), f"{ended} of {stats['accepted']}"
        )
        return row

    def _table(self, stats: dict[str, Any]) -> Table:
        title = "redrive demo: nothing may be lost"
        table = Table(
            title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
        )
        table.add_column("queue", min_width=10)
        for name in COLUMNS:
            table.add_column(name, justify="right", min_width=5)
        for queue in stats["queues"]:
            table.add_row(queue["name"], *_numbers(queue))
        table.add_section()
        table.add_row("all", *_numbers(stats["totals"]))
        return table

    def summary(self, lines: list[tuple[str, str, bool]], letters: list[str], commands: list[str]) -> None:
        """What it came to. On a terminal texts end at words; what is there to be copied stays whole."""
        grid = Table.grid(padding=(0, 2))
        for label, value, good in lines:
            grid.add_row("✓" if good else "✗", label, Text(value, style="bold green" if good else "bold red"))
        self.console.print(Panel(grid, title="It adds up" if all(g for *_, g in lines) else "Something is wrong"))
        width = self.console.width if self.console.is_terminal else sys.maxsize
        for line in letters:
            self.console.print(fold_text(line, width), soft_wrap=True)
        for line in commands:
            self.console.print(line, soft_wrap=True)


def _numbers(counts: dict[str, Any]) -> list[Text]:
    """One row: each state, and their sum."""
    shown: dict[str, int] = {state.value: counts[state] for state in State}
    shown["all"] = sum(shown.values())
    return [Text(str(shown[name]), style=_STYLES.get(name, "") if shown[name] else "dim") for name in COLUMNS]


_STYLES = {"dead": "red", "done": "green", "running": "cyan", "held": "yellow"}
