"""`redrive top`: what happens now, on one screen. 80 columns and 24 lines are enough."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.charts import short_number, sparkline
from redrive.doors.cli.text import ago, clean, one_line, span

if TYPE_CHECKING:
    import asyncio

    from rich.console import Console
    from rich.text import Text

    from redrive.api.redrive import Redrive
    from redrive.reports.top_screen import Glance, QueueGlance, RunningGlance, TroubleGlance
    from redrive.retries.breaker import Breaker

EVERY: Final = 1.0
FULL_FRAME: Final = 60
"""Lines that a frame may have where it is printed once."""
WIDE: Final = 100
"""From so many columns on there is room for more."""
QUIT: Final = b"qQ\x04"
"""Ctrl-D, too."""


@click.command(short_help="What happens now, live.")
@click.option("--once", is_flag=True, help="Print one frame and leave. So it is wherever this is no terminal.")
@shared
def top(once: bool) -> None:
    """Show live what happens now: health, queues, running jobs, latest error groups, what is down. q quits."""
    if output.as_json():
        output.say_json(ask(lambda rd: rd.reports.glance()).public())
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()) or _console().is_dumb_terminal:
        _print(ask(lambda rd: rd.reports.glance()))
    else:
        ask(_live)


def _print(found: Glance) -> None:
    console = _console()
    for line in frame(found, console.width, FULL_FRAME):
        console.print(line)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


# ---- live


async def _live(rd: Redrive) -> None:
    """A frame a second until somebody has seen enough."""
    import asyncio

    from rich.live import Live

    console, enough = _console(), asyncio.Event()
    with _keys(enough), Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        while not enough.is_set():
            live.update(await _frame_now(rd, console), refresh=True)
            try:
                await asyncio.wait_for(enough.wait(), EVERY)
            except TimeoutError:
                continue


class _Lines(NamedTuple):
    """A frame as rich wants it."""

    lines: list[Text]

    def __rich_console__(self, console: Console, options: object) -> Iterator[Text]:
        yield from self.lines


async def _frame_now(rd: Redrive, console: Console) -> _Lines:
    """A store that cannot be read this moment is told in place of the frame, and asked again."""
    from rich.text import Text

    from redrive.errors import StoreError

    try:
        return _Lines(frame(await rd.reports.glance(), console.width, console.height))
    except StoreError as error:
        return _Lines([Text(f"cannot read the store: {one_line(error)}", style="bold red", overflow="fold")])


@contextmanager
def _keys(enough: asyncio.Event) -> Iterator[None]:
    """Keys count without Enter while the block runs; the terminal is as before when it ends."""
    import asyncio
    import signal
    import termios
    import tty

    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, lambda: _pressed(terminal, enough))
    for ending in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(ending, enough.set)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed(terminal: int, enough: asyncio.Event) -> None:
    """Also where nobody is at the terminal any more."""
    try:
        keys = os.read(terminal, 64)
    except OSError:
        keys = b""
    if not keys or any(key in QUIT for key in keys):
        enough.set()


# ---- a frame


class Section(NamedTuple):
    """A part of the frame: its head, and a line for each thing."""

    head: Text
    lines: list[Text]


def frame(found: Glance, width: int, height: int) -> list[Text]:
    """At most `height` lines of `width` columns. What is short leaves its room to what is long."""
    top = [_title(found), *_sentence(found, width), *_new(found)]
    sections = [section for section in _sections(found, width) if section.lines]
    room = height - len(top) - 2 * len(sections)
    lines = list(top)
    for section, share in zip(sections, shares([len(section.lines) for section in sections], room), strict=True):
        if share > 0:
            lines += [_blank(), section.head, *_within(section.lines, share)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """How many lines each gets: in turns, one by one, until all have what they want or the room is used up."""
    given = [0] * len(wanted)
    while room > 0 and given != list(wanted):
        for place, number in enumerate(wanted):
            if room > 0 and given[place] < number:
                given[place] += 1
                room -= 1
    return given


def _within(lines: list[Text], share: int) -> list[Text]:
    """The last line says how much is left out."""
    from rich.text import Text

    if len(lines) <= share:
        return lines
    left = len(lines) - share + 1
    return [*lines[: share - 1], Text(f"  and {left} more", style="dim")]


def _sections(found: Glance, width: int) -> list[Section]:
    return [_queues(found, width), _breakers(found, width), _running(found, width), _troubles(found, width)]


def _blank() -> Text:
    from rich.text import Text

    return Text("")


def _title(found: Glance) -> Text:
    from rich.text import Text

    at = datetime.fromtimestamp(found.at).astimezone()
    rates = {flow: short_number(found.activity.rate(None, flow)) for flow in ("enqueued", "succeeded", "buried")}
    said = f"in {rates['enqueued']}/min · done {rates['succeeded']}/min · buried {rates['buried']}/min"
    return Text.assemble(("redrive top", "bold"), f"  {at:%H:%M:%S}  {said}", ("  q quits", "dim"))


def _sentence(found: Glance, width: int) -> list[Text]:
    """Health in words, on two lines at most."""
    from rich.text import Text

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
    """New groups, before everything else; where there are none, nothing is said."""
    from rich.text import Text

    from redrive.deadletters.new_groups import in_lines

    some = found.new.since_deploy or found.new.last_hour
    return [Text(clean(line), style="bold red", no_wrap=True) for line in in_lines(found.new)] if some else []


T = TypeVar("T")


class Column(NamedTuple, Generic[T]):
    """How wide, what it says of a thing, and how it looks; numbers are set to the right."""

    name: str
    width: int
    says: Callable[[T], str]
    style: Callable[[str], str] = lambda _: ""
    right: bool = False


def _section(columns: Sequence[Column[T]], things: Sequence[T]) -> Section:
    from rich.text import Text

    head = Text(style="bold", no_wrap=True)
    for column in columns:
        name = column.name[: column.width]
        head.append((name.rjust(column.width) if column.right else name.ljust(column.width)) + " ")
    head.rstrip()
    return Section(head, [_line(columns, thing) for thing in things])


def _line(columns: Sequence[Column[T]], thing: T) -> Text:
    from rich.text import Text

    line = Text(no_wrap=True)
    for column in columns:
        said = clean(column.says(thing))
        cell = Text(said, style=column.style(said))
        cell.truncate(column.width, overflow="ellipsis")
        cell.align("right" if column.right else "left", column.width)
        line.append_text(cell)
        line.append(" ")
    line.rstrip()
    return line


def _red(said: str) -> str:
    return "dim" if said == "0" else "bold red"


def _plain(said: str) -> str:
    return "dim" if said == "0" else ""


def _queues(found: Glance, width: int) -> Section:
    def number(name: str, title: str, style: Callable[[str], str] = _plain, wide: int = 6) -> Column[QueueGlance]:
        return Column(title, wide, lambda one: short_number(getattr(one, name)), style, right=True)

    numbers = [
        number("due", "due"),
        *([number("later", "later")] if width >= WIDE else []),
        number("running", "run", lambda said: "dim" if said == "0" else "cyan", 5),
        number("held", "held", lambda said: "dim" if said == "0" else "yellow", 5),
        number("dead", "dead", _red, 5),
        number("coming", "in/min"),
        number("done", "done/m"),
        number("failing", "fail/m", _red),
    ]
    name = 18 if width < WIDE else 28
    left = max(0, min(40, width - name - 1 - sum(column.width + 1 for column in numbers)))
    first: Column[QueueGlance] = Column("queue", name, lambda one: f"(paused) {one.name}" if one.paused else one.name)
    last: Column[QueueGlance] = Column("backlog", left, lambda one: sparkline(one.backlog, left) if left else "")
    return _section([first, *numbers, last], found.queues)


def _breakers(found: Glance, width: int) -> Section:
    def says(breaker: Breaker) -> str:
        return f"{breaker.key} ({breaker.cause}), {ago(breaker.since, found.at)}: {one_line(breaker.error)}"

    return _section([Column("down", width - 1, says, lambda _: "red")], found.breakers)


def _running(found: Glance, width: int) -> Section:
    half = max(10, (width - 27) // 2)
    columns: list[Column[RunningGlance]] = [
        Column(f"running {short_number(found.running_number)}", 13, lambda one: one.id[-8:]),
        Column("for", 7, lambda one: span(one.seconds), right=True),
        Column("run", 4, lambda one: str(one.run), right=True),
        Column("task", half, lambda one: one.task),
        Column("agent, worker", half - 2, lambda one: " ".join(filter(None, (one.agent, one.worker)))),
    ]
    return _section(columns, found.running)


def _troubles(found: Glance, width: int) -> Section:
    task = 16 if width < WIDE else 24
    columns: list[Column[TroubleGlance]] = [
        Column("group", 8, lambda one: one.short),
        Column("dead", 5, lambda one: short_number(one.dead), _red, right=True),
        Column("last", 10, lambda one: ago(one.last_at, found.at), right=True),
        Column("task", task, lambda one: one.task),
        Column("what", max(10, width - task - 28), lambda one: one_line(one.what)),
    ]
    return _section(columns, found.troubles)
