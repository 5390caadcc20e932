"""`redrive top`: a frame that fits the terminal, and a live view that leaves it as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

import redrive
from redrive.core.deploys import Deploy
from redrive.core.store import Group
from redrive.deadletters.new_groups import newcomers
from redrive.doors.cli.top_screen import _frame_now, frame, shares
from redrive.reports.activity import Activity, activity
from redrive.reports.health import Health
from redrive.reports.top_screen import Glance, glance
from redrive.retries.breaker import Breaker
from tests.cli.shell import DEADLINE, Shell

NOW = 1_900_000_000.0


# ---- one frame


def test_once_prints_a_frame(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"})
    shell.dead_letters(2)
    shell.enqueue("greet", {"name": "bob"})
    shell.here("queues", "pause", "greet")
    done = shell.run("top", "--once", COLUMNS="80")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("redrive top")
    assert lines[1] == "Degraded: broken: 2 dead letters."
    assert max(map(len, lines)) <= 80
    (greet,) = [line for line in lines if line.startswith("(paused) greet")]
    assert greet.split()[2:6] == ["1", "0", "0", "0"]
    assert any("RuntimeError: the mill is broken" in line for line in lines)


def test_without_a_terminal_it_is_one_frame(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"})
    done = shell.run("top")
    said = "Healthy: 1 pending, but no worker runs 1 of them: start a worker that knows their task."
    assert (done.status, done.out.splitlines()[1]) == (0, said)


def test_in_json_it_is_one_frame(shell: Shell) -> None:
    shell.dead_letters(1)
    body = shell.here("top", "--json").json
    assert (body["status"], body["total_dead_letter"]) == ("degraded", 1)
    assert body["queues"][0]["name"] == "broken"
    assert len(body["queues"][0]["backlog"]) == 30
    assert body["troubles"][0]["dead"] == 1
    assert [one["dead"] for one in body["new"]["last_hour"]] == [1] and body["new"]["deploy"]["version"] is None
    assert (body["running"], body["breakers"]) == ([], [])


def crowded(queues: int = 40, troubles: int = 40, breakers: int = 5) -> Glance:
    """More than any screen has room for."""
    text = "RuntimeError: " + "very long words, " * 30
    groups = [Group(f"{n:016x}", NOW, NOW, 3, "q", "t" * 60, None, "E", "bug", text, "id") for n in range(troubles)]
    down = [Breaker(f"host{n}", "open", "network", NOW, 1.0, NOW, 1.0, error=text) for n in range(breakers)]
    flat: Activity = activity(NOW, 30, 60.0, [], {f"queue-{n}": n for n in range(queues)})
    issues = [f"queue-{n}: {n} dead letters" for n in range(queues)]
    health = Health("degraded", 10**6, 10**6, issues)
    from redrive.core.policy import DEFAULT
    from redrive.reports.health import QueueNumbers

    numbers = [QueueNumbers(f"queue-{n}" * 3, DEFAULT, due=10**n % 10**9, dead=n) for n in range(queues)]
    new = newcomers(NOW, Deploy(NOW - 60, "2.4"), groups, {group.fingerprint: 3 for group in groups})
    return glance(NOW, health, numbers, flat, [], groups, {}, down, new)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 10), (60, 24), (132, 43), (200, 60), (40, 12)])
def test_a_frame_fits_the_terminal(width: int, height: int) -> None:
    lines = frame(crowded(), width, height)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines), [line.plain for line in lines]
    assert lines[0].plain.startswith("redrive top")
    if height >= 24:
        heads = [line.plain.split()[0] for line in lines if line.plain]
        for head in ("queue", "down", "group"):
            assert head in heads
        assert sum("more" in line.plain for line in lines) >= 2  # what is left out is said


def test_what_is_new_stands_before_everything_else() -> None:
    lines = [line.plain for line in frame(crowded(), 80, 24)]
    (deploy, hour) = [place for place, line in enumerate(lines) if "new groups" in line]
    assert lines[deploy].startswith("40 new groups since version 2.4 was deployed 60 s ago")
    assert hour == deploy + 1 and lines[hour].startswith("40 new groups in the last hour")
    assert hour < next(place for place, line in enumerate(lines) if line.startswith("queue "))
    quiet = frame(crowded(troubles=0), 80, 24)
    assert not any("new group" in line.plain for line in quiet), "that nothing is new is not told here"


def test_what_is_short_leaves_its_room_to_what_is_long() -> None:
    assert shares([10, 1, 10], 11) == [5, 1, 5]
    assert shares([2, 2], 100) == [2, 2]
    assert shares([5, 5], 0) == [0, 0]
    assert shares([5, 5], -3) == [0, 0]
    assert shares([], 5) == []


def test_wide_letters_keep_the_columns(shell: Shell) -> None:
    found = crowded(1, 1, 0)
    wide = msgspec.structs.replace(found.queues[0], name="キュー" * 20)
    lines = frame(msgspec.structs.replace(found, queues=[wide]), 80, 24)
    assert all(line.cell_len <= 80 for line in lines)


# ---- live


class Terminal:
    """A child on a terminal of its own, 80 × 24."""

    def __init__(self, shell: Shell, *words: str, **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        kept = {name: value for name, value in shell.environment.items() if name not in ("COLUMNS", "LINES")}
        self.child = subprocess.Popen(
            [sys.executable, "-m", "redrive", *words],
            cwd=shell.folder,
            env=kept | {"TERM": "xterm-256color"} | environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self.seen = ""

    def read_until(self, condition: Callable[[str], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE
        while not condition(self.seen):
            assert time.monotonic() < end, f"{what} was not shown: {self.seen[-2000:]!r}"
            ready, _, _ = select.select([self.ours], [], [], 0.1)
            if ready:
                with suppress(OSError):
                    self.seen += os.read(self.ours, 65536).decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self.ours, key)

    def end(self) -> int:
        """Reads on, so that the child is not kept waiting, until it is gone."""
        self.read_until(lambda _: self.child.poll() is not None, "the end")
        return self.child.returncode


@contextmanager
def terminal(shell: Shell, *words: str, **environment: str) -> Iterator[Terminal]:
    made = Terminal(shell, *words, **environment)
    try:
        yield made
    finally:
        made.child.kill()
        made.child.wait()
        os.close(made.ours)
        os.close(made.theirs)


ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"


def plain(seen: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)


@pytest.mark.parametrize("key", [b"q", b"Q", b"\x04"], ids=["q", "Q", "ctrl-d"])
def test_live_until_somebody_quits(shell: Shell, key: bytes) -> None:
    shell.enqueue("greet", {"name": "ada"})
    with terminal(shell, "top") as screen:
        screen.read_until(lambda seen: "Healthy: 1 pending" in plain(seen), "the first frame")
        assert ALTERNATE in screen.seen
        shell.dead_letters(1)
        screen.read_until(lambda seen: "broken: 1 dead letter" in plain(seen), "what happened meanwhile")
        screen.press(b"x")  # means nothing
        screen.press(key)
        assert screen.end() == 0
        assert BACK in screen.seen.split(ALTERNATE)[-1]
        assert termios.tcgetattr(screen.theirs) == screen.before


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda s: s.name)
def test_whatever_ends_it_the_terminal_is_as_before(shell: Shell, ending: signal.Signals) -> None:
    shell.enqueue("greet", {"name": "ada"})
    with terminal(shell, "top") as screen:
        screen.read_until(lambda seen: "Healthy: 1 pending" in plain(seen), "the first frame")
        screen.child.send_signal(ending)
        assert screen.end() in (0, 130)
        assert BACK in screen.seen
        assert termios.tcgetattr(screen.theirs) == screen.before


def test_a_terminal_that_can_do_nothing_gets_one_frame(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"})
    with terminal(shell, "top", TERM="dumb") as screen:
        assert screen.end() == 0
        assert "Healthy: 1 pending" in screen.seen
        assert ALTERNATE not in screen.seen


async def test_a_store_that_cannot_be_read_is_told_in_place_of_the_frame(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"this is no database" * 100)
    from rich.console import Console

    rd = redrive.Redrive(tmp_path / "jobs.db")
    (line,) = (await _frame_now(rd, Console(width=80))).renderables
    assert str(line).startswith("cannot read the store: ")


def test_it_is_not_made_for_a_database_that_is_not_there(shell: Shell, tmp_path: Path) -> None:
    done = shell.run("top", "--url", str(tmp_path / "none.db"))
    assert done.status == 2
    assert "there is no database" in done.err
    assert not (tmp_path / "none.db").exists()
