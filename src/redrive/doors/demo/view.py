"""How the demo looks: one live table, the last few things that happened, and a summary that adds up."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

COLUMNS = ("waiting", "running", "done", "dead")


class View:
    """A live view on a terminal, plain lines elsewhere."""

    def __init__(self, *, plain: bool) -> None:
        self.console = Console(highlight=False)
        self.plain = plain or not self.console.is_terminal
        self._began = time.monotonic()
        self._said: deque[Text] = deque(maxlen=7)
        self._stats: dict[str, Any] = {}
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
            self.show(self._stats)

    def show(self, stats: dict[str, Any]) -> None:
        self._stats = stats
        if self._live is not None and stats:
            self._live.update(Group(self._table(stats), self._bar(stats), *self._said))

    def _bar(self, stats: dict[str, Any]) -> Table:
        totals, row = stats["totals"], Table.grid(padding=(0, 1))
        ended = totals["done"] + totals["dead"]
        row.add_row(
            ProgressBar(total=stats["accepted"] or 1, completed=ended, width=50), f"{ended} of {stats['accepted']}"
        )
        return row

    def _table(self, stats: dict[str, Any]) -> Table:
        table = Table(title="redrive demo: nothing may be lost", title_justify="left")
        table.add_column("queue")
        for name in COLUMNS:
            table.add_column(name, justify="right", width=8)
        for queue in stats["queues"]:
            table.add_row(queue["name"], *(_number(name, queue[name]) for name in COLUMNS))
        return table

    def summary(self, lines: list[tuple[str, str, bool]], after: list[str]) -> None:
        grid = Table.grid(padding=(0, 2))
        for label, value, good in lines:
            grid.add_row("✓" if good else "✗", label, Text(value, style="bold green" if good else "bold red"))
        self.console.print(Panel(grid, title="It adds up" if all(g for *_, g in lines) else "Something is wrong"))
        for line in after:
            self.console.print(line, soft_wrap=True)


def _number(name: str, value: int) -> Text:
    style = {"dead": "red", "done": "green", "running": "cyan"}.get(name, "") if value else "dim"
    return Text(str(value), style=style)
