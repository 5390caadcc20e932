"""`redrive top` shows what happens now on one screen; 80 columns and 24 lines are enough."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from textwrap import wrap
from typing import Final, NamedTuple

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from redrive.api.redrive import Redrive
from redrive.core.words import span
from redrive.deadletters.new_groups import in_lines
from redrive.doors.cli import output
from redrive.doors.cli.invocation import command, use_app
from redrive.doors.cli.text import ago, clean, format_number, one_line, sparkline
from redrive.errors import StoreError
from redrive.reports.top_screen import Glance

EVERY: Final = 1.0
FULL_FRAME: Final = 60
"""How many lines a frame may have if it is printed once."""
WIDE: Final = 100
"""A terminal with at least this many columns shows more."""
QUIT: Final = b"qQ\x04"
"""The keys that quit: q, Q and Ctrl-D."""


@command()
@click.option("--once", is_flag=True, help="Print one frame and exit. Always so without a terminal.")
def top(once: bool) -> None:
    """Show live what happens now: health, queues, running jobs, latest error groups, what is down. q quits."""
    if output.wants_json():
        output.print_json(use_app(lambda rd: rd.reports.glance()).public())
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()) or _console().is_dumb_terminal:
        glance, console = use_app(lambda rd: rd.reports.glance()), _console()
        console.print(*frame(glance, console.width, FULL_FRAME), sep="\n")
    else:
        use_app(_live)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=False)


# ---- live


async def _live(rd: Redrive) -> None:
    """Draw a frame each second until the user quits."""
    console, quit = _console(), asyncio.Event()
    with _keys(quit), Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        while not quit.is_set():
            live.update(await _frame_now(rd, console), refresh=True)
            try:
                await asyncio.wait_for(quit.wait(), EVERY)
            except TimeoutError:
                continue


async def _frame_now(rd: Redrive, console: Console) -> Group:
    """Read and draw a frame; if the store cannot be read now, say so in its place."""
    try:
        return Group(*frame(await rd.reports.glance(), console.width, console.height))
    except StoreError as error:
        return Group(Text(f"cannot read the store: {one_line(error)}", style="bold red", overflow="fold"))


@contextmanager
def _keys(quit: asyncio.Event) -> Iterator[None]:
    """React to keys without Enter while the block runs, and restore the terminal afterwards."""
    import termios
    import tty

    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, lambda: _read_keys(terminal, quit))
    for ending in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(ending, quit.set)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _read_keys(terminal: int, quit: asyncio.Event) -> None:
    """Quit on the right key, or if the terminal is gone."""
    try:
        keys = os.read(terminal, 64)
    except OSError:
        keys = b""
    if not keys or any(key in QUIT for key in keys):
        quit.set()


# ---- a frame


class Section(NamedTuple):
    """A part of the frame: its head, and a line for each item."""

    head: Text
    lines: list[Text]


def frame(found: Glance, width: int, height: int) -> list[Text]:
    """Draw at most `height` lines of `width` columns. Short sections leave their room to long ones."""
    top = [_title(found), *_sentence(found, width), *_new(found)]
    parts = (_queues(found, width), _breakers(found, width), _running(found, width), _groups(found, width))
    sections = [section for section in parts if section.lines]
    room = height - len(top) - 2 * len(sections)
    lines = list(top)
    for section, share in zip(sections, shares([len(section.lines) for section in sections], room), strict=True):
        if share > 0:
            lines += [Text(""), section.head, *_cut_lines(section.lines, share)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide the room: each section gets one line in turn until all have enough or no room is left."""
    given = [0] * len(wanted)
    while room > 0 and given != list(wanted):
        for place, number in enumerate(wanted):
            if room > 0 and given[place] < number:
                given[place] += 1
                room -= 1
    return given


def _cut_lines(lines: list[Text], share: int) -> list[Text]:
    """Cut the lines; the last one counts those left out."""
    if len(lines) <= share:
        return lines
    left = len(lines) - share + 1
    return [*lines[: share - 1], Text(f"  and {left} more", style="dim")]


def _title(found: Glance) -> Text:
    at = datetime.fromtimestamp(found.at).astimezone()
    rates = {flow: format_number(found.activity.rate(None, flow)) for flow in ("enqueued", "succeeded", "buried")}
    flows = f"in {rates['enqueued']}/min · done {rates['succeeded']}/min · buried {rates['buried']}/min"
    return Text.assemble(("redrive top", "bold"), f"  {at:%H:%M:%S}  {flows}", ("  q quits", "dim"))


def _sentence(found: Glance, width: int) -> list[Text]:
    """Describe health in words, on two lines at most."""
    style = "green" if found.health.status == "healthy" else "bold red"
    first, *rest = wrap(clean(found.sentence), width, break_long_words=False, break_on_hyphens=False) or [""]
    return [Text(line, style=style) for line in (first, *([" ".join(rest)] if rest else []))]


def _new(found: Glance) -> list[Text]:
    """Describe new groups, if there are any."""
    some = found.new.since_deploy or found.new.last_hour
    return [Text(clean(line), style="bold red", no_wrap=True) for line in in_lines(found.new)] if some else []


class ScreenColumn(NamedTuple):
    """A column of a section. Its style is not used for zeros, which are dim."""

    name: str
    width: int
    style: str = ""
    right: bool = False

    def cell(self, text: str, style: str) -> Text:
        """Fit a text into the column."""
        cell = Text(text, style=style)
        cell.truncate(self.width, overflow="ellipsis")
        cell.align("right" if self.right else "left", self.width)
        return cell


def _make_section(columns: Sequence[ScreenColumn], rows: Iterable[Sequence[str]]) -> Section:
    head = [column.cell(column.name[: column.width], "bold") for column in columns]
    return Section(_join_cells(head), [_make_line(columns, row) for row in rows])


def _make_line(columns: Sequence[ScreenColumn], row: Sequence[str]) -> Text:
    texts = zip(columns, map(clean, row), strict=True)
    return _join_cells([column.cell(text, "dim" if text == "0" else column.style) for column, text in texts])


def _join_cells(cells: Sequence[Text]) -> Text:
    line = Text(" ", no_wrap=True).join(cells)
    line.rstrip()
    return line


NUMBERS: Final = (
    ("due", ScreenColumn("due", 6, right=True)),
    ("later", ScreenColumn("later", 6, right=True)),
    ("running", ScreenColumn("run", 5, "cyan", right=True)),
    ("held", ScreenColumn("held", 5, "yellow", right=True)),
    ("dead", ScreenColumn("dead", 5, "bold red", right=True)),
    ("coming", ScreenColumn("in/min", 6, right=True)),
    ("done", ScreenColumn("done/m", 6, right=True)),
    ("failing", ScreenColumn("fail/m", 6, "bold red", right=True)),
)
"""The numbers of a queue and their columns; `later` is for wide terminals."""


def _queues(found: Glance, width: int) -> Section:
    wide = width >= WIDE
    numbers = [(name, column) for name, column in NUMBERS if wide or name != "later"]
    queue = ScreenColumn("queue", 28 if wide else 18)
    room = width - queue.width - 1 - sum(column.width + 1 for _, column in numbers)
    backlog = ScreenColumn("backlog", max(0, min(40, room)))
    rows = [
        [
            f"(paused) {view.name}" if view.paused else view.name,
            *(format_number(getattr(view, name)) for name, _ in numbers),
            sparkline(view.backlog, backlog.width) if backlog.width else "",
        ]
        for view in found.queues
    ]
    return _make_section([queue, *(column for _, column in numbers), backlog], rows)


def _breakers(found: Glance, width: int) -> Section:
    texts = [
        f"{breaker.key} ({breaker.cause}), {ago(breaker.since, found.at)}: {one_line(breaker.error)}"
        for breaker in found.breakers
    ]
    return _make_section([ScreenColumn("down", width - 1, "red")], [[text] for text in texts])


def _running(found: Glance, width: int) -> Section:
    half = max(10, (width - 27) // 2)
    columns = [
        ScreenColumn(f"running {format_number(found.running_number)}", 13),
        ScreenColumn("for", 7, right=True),
        ScreenColumn("run", 4, right=True),
        ScreenColumn("task", half),
        ScreenColumn("agent, worker", half - 2),
    ]
    rows = [
        [job.id[-8:], span(job.seconds), str(job.run), job.task, " ".join(filter(None, (job.agent, job.worker)))]
        for job in found.running
    ]
    return _make_section(columns, rows)


def _groups(found: Glance, width: int) -> Section:
    task = 16 if width < WIDE else 24
    columns = [
        ScreenColumn("group", 8),
        ScreenColumn("dead", 5, "bold red", right=True),
        ScreenColumn("last", 10, right=True),
        ScreenColumn("task", task),
        ScreenColumn("what", max(10, width - task - 28)),
    ]
    rows = [
        [group.short, format_number(group.dead), ago(group.last_at, found.at), group.task, one_line(group.what)]
        for group in found.troubles
    ]
    return _make_section(columns, rows)
