"""`redrive top` shows what happens now on one screen; 80 columns and 24 lines are enough."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Generic, NamedTuple, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from redrive.api.redrive import Redrive
from redrive.deadletters.new_groups import in_lines
from redrive.doors.cli import output
from redrive.doors.cli.invocation import shared_options, use_app
from redrive.doors.cli.text import ago, clean, format_number, format_span, one_line, sparkline
from redrive.errors import StoreError
from redrive.reports.top_screen import Glance, QueueGlance, RunningGlance, TroubleGlance
from redrive.retries.breaker import Breaker

EVERY: Final = 1.0
FULL_FRAME: Final = 60
"""How many lines a frame may have if it is printed once."""
WIDE: Final = 100
"""A terminal with at least this many columns shows more."""
QUIT: Final = b"qQ\x04"
"""Ctrl-D, too."""


@click.command()
@click.option("--once", is_flag=True, help="Print one frame and exit. Always so without a terminal.")
@shared_options
def top(once: bool) -> None:
    """Show live what happens now: health, queues, running jobs, latest error groups, what is down. q quits."""
    if output.wants_json():
        output.print_json(use_app(lambda rd: rd.reports.glance()).public())
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()) or _console().is_dumb_terminal:
        _print(use_app(lambda rd: rd.reports.glance()))
    else:
        use_app(_live)


def _print(found: Glance) -> None:
    console = _console()
    for line in frame(found, console.width, FULL_FRAME):
        console.print(line)


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
    sections = [section for section in _sections(found, width) if section.lines]
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


def _sections(found: Glance, width: int) -> list[Section]:
    return [_queues(found, width), _breakers(found, width), _running(found, width), _troubles(found, width)]


def _title(found: Glance) -> Text:
    at = datetime.fromtimestamp(found.at).astimezone()
    rates = {flow: format_number(found.activity.rate(None, flow)) for flow in ("enqueued", "succeeded", "buried")}
    said = f"in {rates['enqueued']}/min · done {rates['succeeded']}/min · buried {rates['buried']}/min"
    return Text.assemble(("redrive top", "bold"), f"  {at:%H:%M:%S}  {said}", ("  q quits", "dim"))


def _sentence(found: Glance, width: int) -> list[Text]:
    """Describe health in words, on two lines at most."""
    style = "green" if found.health.status == "healthy" else "bold red"
    words, lines = clean(found.sentence).split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    if len(lines) > 2:
        lines = [lines[0], " ".join(lines[1:])]
    return [Text(line, style=style) for line in lines]


def _new(found: Glance) -> list[Text]:
    """Describe new groups, if there are any."""
    some = found.new.since_deploy or found.new.last_hour
    return [Text(clean(line), style="bold red", no_wrap=True) for line in in_lines(found.new)] if some else []


T = TypeVar("T")


class ScreenColumn(NamedTuple, Generic[T]):
    """A column: its width, how to format and style an item, and whether to align it to the right."""

    name: str
    width: int
    format: Callable[[T], str]
    style: Callable[[str], str] = lambda _: ""
    right: bool = False


def _section(columns: Sequence[ScreenColumn[T]], items: Sequence[T]) -> Section:
    head = Text(style="bold", no_wrap=True)
    for column in columns:
        name = column.name[: column.width]
        head.append((name.rjust(column.width) if column.right else name.ljust(column.width)) + " ")
    head.rstrip()
    return Section(head, [_line(columns, item) for item in items])


def _line(columns: Sequence[ScreenColumn[T]], item: T) -> Text:
    line = Text(no_wrap=True)
    for column in columns:
        said = clean(column.format(item))
        cell = Text(said, style=column.style(said))
        cell.truncate(column.width, overflow="ellipsis")
        cell.align("right" if column.right else "left", column.width)
        line.append_text(cell)
        line.append(" ")
    line.rstrip()
    return line


def _style_number(style: str = "") -> Callable[[str], str]:
    return lambda text: "dim" if text == "0" else style


def _queues(found: Glance, width: int) -> Section:
    def number(name: str, title: str, style: str = "", wide: int = 6) -> ScreenColumn[QueueGlance]:
        cell = _style_number(style)
        return ScreenColumn(title, wide, lambda queue: format_number(getattr(queue, name)), cell, right=True)

    numbers = [
        number("due", "due"),
        *([number("later", "later")] if width >= WIDE else []),
        number("running", "run", "cyan", 5),
        number("held", "held", "yellow", 5),
        number("dead", "dead", "bold red", 5),
        number("coming", "in/min"),
        number("done", "done/m"),
        number("failing", "fail/m", "bold red"),
    ]
    name = 18 if width < WIDE else 28
    left = max(0, min(40, width - name - 1 - sum(column.width + 1 for column in numbers)))
    first: ScreenColumn[QueueGlance] = ScreenColumn(
        "queue", name, lambda one: f"(paused) {one.name}" if one.paused else one.name
    )
    last: ScreenColumn[QueueGlance] = ScreenColumn(
        "backlog", left, lambda one: sparkline(one.backlog, left) if left else ""
    )
    return _section([first, *numbers, last], found.queues)


def _breakers(found: Glance, width: int) -> Section:
    def says(breaker: Breaker) -> str:
        return f"{breaker.key} ({breaker.cause}), {ago(breaker.since, found.at)}: {one_line(breaker.error)}"

    return _section([ScreenColumn("down", width - 1, says, lambda _: "red")], found.breakers)


def _running(found: Glance, width: int) -> Section:
    half = max(10, (width - 27) // 2)
    columns: list[ScreenColumn[RunningGlance]] = [
        ScreenColumn(f"running {format_number(found.running_number)}", 13, lambda one: one.id[-8:]),
        ScreenColumn("for", 7, lambda one: format_span(one.seconds), right=True),
        ScreenColumn("run", 4, lambda one: str(one.run), right=True),
        ScreenColumn("task", half, lambda one: one.task),
        ScreenColumn("agent, worker", half - 2, lambda one: " ".join(filter(None, (one.agent, one.worker)))),
    ]
    return _section(columns, found.running)


def _troubles(found: Glance, width: int) -> Section:
    task = 16 if width < WIDE else 24
    columns: list[ScreenColumn[TroubleGlance]] = [
        ScreenColumn("group", 8, lambda one: one.short),
        ScreenColumn("dead", 5, lambda one: format_number(one.dead), _style_number("bold red"), right=True),
        ScreenColumn("last", 10, lambda one: ago(one.last_at, found.at), right=True),
        ScreenColumn("task", task, lambda one: one.task),
        ScreenColumn("what", max(10, width - task - 28), lambda one: one_line(one.what)),
    ]
    return _section(columns, found.troubles)
