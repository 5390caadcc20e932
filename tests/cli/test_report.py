"""`redrive report`: the tables people see, JSON for programs, one line for bad input."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import redrive
from redrive.doors.cli.text import BLOCKS, PLAIN, align_numbers, bar, can_draw, format_number, sparkline, squeeze
from tests.cli.shell import Shell, refused
from tests.fleet_hosts import YEAR, Fleet, at
from tests.support import FakeClock


async def live_through(database: Path, year: int) -> None:
    clock = FakeClock(at(year, 2, 1))
    async with redrive.Redrive(database, clock=clock) as rd:
        fleet = Fleet(rd, clock)
        for month in YEAR:
            await fleet.live_a_month(year, month)


@pytest.mark.behaviour("004-17", "004-39", "004-41", "004-58")
def test_the_table_of_a_year_as_people_see_it(shell: Shell) -> None:
    asyncio.run(live_through(shell.database, 2025))
    done = shell.here("report", "monthly", "--months", "120")
    assert done.status == 0
    rows = [" ".join(line.split()) for line in done.out.splitlines()]
    head = next(line for line in done.out.splitlines() if line.startswith("month"))
    assert head.split("  ")[0] == "month"
    for column in ("processed", "dead letters", "rate", "auto-resolved", "human-required", "deferred"):
        assert column in head
    assert "Feb 2025 1,240 14 1.13 % 8 6 0" in rows
    assert "Mar 2025 2,810 11 0.39 % 9 2 0" in rows
    assert "Oct 2025 2,150 12 0.56 % 9 3 2" in rows
    assert "Dec 2025 1,297 9 0.69 % 7 2 2" in rows
    assert "Total 26,147 118 0.45 % 96 (81 %) 22 (19 %) 5" in rows
    assert "mean time from death to resolution: 60 min by itself (96), 4.2 h by a person (22)" in done.out
    body = shell.here("report", "monthly", "--months", "120", "--json").json
    assert body["total"]["processed"] == 26_147
    assert (body["total"]["auto_resolved"], body["total"]["human_required"]) == (96, 22)


@pytest.mark.behaviour("004-30")
def test_the_weekly_report_is_a_command(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"})
    shell.dead_letters(2)
    done = shell.run("report", "weekly")
    assert (done.status, done.err) == (0, "")
    first, *rest = done.out.splitlines()
    assert "3 processed, 2 dead letters (66.67 %), 0 resolved by themselves, 2 for a person" in first
    assert any(line.split() == ["unknown", "unknown", "2", "2", "+2"] for line in rest)
    assert any(line.split()[0] == "Total" for line in rest if line)


def test_an_open_column_only_where_something_is_open(shell: Shell) -> None:
    shell.dead_letters(1)
    assert " open" not in shell.here("report", "weekly").out
    (shell.folder / "q.jsonl").write_text(
        json.dumps({"job_id": "a", "payload": {}, "error_class": "TimeoutError", "task": "fetch"}) + "\n"
    )
    assert shell.here("dead", "import", "q.jsonl").status == 0
    assert " open" in shell.here("report", "weekly").out


def test_nothing_to_report_is_one_line(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"})
    done = shell.here("report", "monthly")
    assert (done.status, len(done.out.splitlines())) == (0, 1)
    assert done.out.endswith("nothing was processed\n")


def test_notify_says_what_became_of_it(shell: Shell) -> None:
    shell.dead_letters(1)
    assert "Not sent from here" in shell.here("report", "weekly", "--notify").out
    assert "Not sent from here" in shell.here("morning", "--notify").out
    assert shell.here("morning", "--notify", "--json").json["notified"] == 0
    assert "notified" not in shell.here("report", "monthly", "--json").json


def test_notify_reaches_a_channel(shell: Shell) -> None:
    """A real one: Apprise posts JSON to a server on this machine."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    posted: list[dict[str, str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        shell.dead_letters(1)
        url = f"json://127.0.0.1:{server.server_port}/"
        (shell.folder / "redrive.toml").write_text(f'[notify]\nurls = ["{url}"]\n')
        done = shell.run("report", "weekly", "--notify")
        assert (done.status, done.err) == (0, "")
        assert "sent: 1 message" in done.out
        assert "1 dead letter (100.00 %)" in posted[0]["title"]
        done = shell.run("morning", "--notify")
        assert (done.status, len(posted)) == (1, 2)
        assert "1 needs you" in posted[1]["title"]
        assert "the mill is broken" in posted[1]["message"]
    finally:
        server.shutdown()
        server.server_close()


# ---- failures


@pytest.mark.behaviour("004-34")
def test_the_failure_log_is_filtered_by_agent_category_and_date(shell: Shell) -> None:
    shell.dead_letters(2, "--agent", "cto")
    shell.dead_letters(1, "--agent", "cso")
    today = datetime.now(UTC).date().isoformat()
    done = shell.here("report", "failures")
    assert done.status == 0
    assert done.out.startswith("3 failed tries, 3 of them made dead letters\n")
    assert "by agent    cto 2, cso 1" in done.out
    assert any(line.split()[:4] == [today, "cto", "unknown", "unknown"] for line in done.out.splitlines())
    assert "Look closer: redrive dead show" in done.out
    for words, number in (
        (("--agent", "cto"), 2),
        (("--category", "unknown"), 3),
        (("--category", "permanent"), 0),
        (("--date", today), 3),
        (("--date", "2020-01-01"), 0),
        (("--since", "2h", "--agent", "cso", "--error-class", "RuntimeError"), 1),
    ):
        assert shell.here("report", "failures", *words, "--json").json["failed"] == number, words
    none = shell.here("report", "failures", "--agent", "nobody")
    assert (none.status, none.out.splitlines()[0].startswith("Nothing failed like that")) == (0, True)


def test_text_from_a_job_is_never_obeyed_by_the_terminal(shell: Shell) -> None:
    record = {"job_id": "a", "payload": {}, "error_class": "KeyError", "error": "boo\u001b[2J"}
    (shell.folder / "q.jsonl").write_text(json.dumps(record) + "\n")
    assert shell.here("dead", "import", "q.jsonl").status == 0
    for words in (("report", "failures"), ("report", "weekly"), ("report", "activity"), ("top", "--once")):
        done = shell.here(*words)
        assert done.status == 0
        assert "\u001b[2J" not in done.out


# ---- activity and load


def test_activity_and_load(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"}, "--agent", "cto")
    shell.dead_letters(1)
    shell.enqueue("greet", {"name": "bob"}, "--delay", "3600")
    done = shell.here("report", "activity")
    rows = {line.split()[0]: line.split()[1:6] for line in done.out.splitlines()[2:]}
    assert rows["greet"] == ["2", "1", "0", "0", "1"]
    assert rows["broken"] == ["1", "0", "0", "1", "0"]
    assert rows["all"] == ["3", "1", "0", "1", "1"]
    body = shell.here("report", "activity", "--hours", "3", "--json").json
    assert (len(body["starts"]), body["total"]["backlog"][-1]) == (3, 1)
    load = shell.here("report", "load").out.splitlines()
    assert load[0].split()[:5] == ["agent", "waiting", "running", "held", "dead"]
    assert any(line.split()[:6] == ["cto", "0", "0", "0", "0", "1"] for line in load)
    assert shell.here("report", "load", "--json").json[0]["agent"] == "cto"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("weekly", "--weeks", "0"), "weeks"),
        (("weekly", "--tz", "Mars/Olympus"), "tz"),
        (("monthly", "--months", "many"), "--months"),
        (("failures", "--since", "yesterday"), "since"),
        (("failures", "--until", "2031-05-17T07:00:00"), "until"),
        (("failures", "--date", "17.5."), "date"),
        (("activity", "--minutes", "3", "--hours", "3"), "minutes"),
        (("load", "--hours", "0"), "hours"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(shell: Shell, words: tuple[str, ...], told: str) -> None:
    shell.enqueue("greet", {"name": "ada"})
    refused(shell.here("report", *words), told)


# ---- pictures


def test_sparklines() -> None:
    assert sparkline([0, 1, 50, 100], drawn=True) == "▁▂▅█"
    assert sparkline([0, 0], drawn=True) == "▁▁"
    assert sparkline([], drawn=True) == ""
    assert sparkline([3, 3, 3], drawn=False) == "###"
    assert sparkline([0, 0, 9, 0, 0, 0], 3, drawn=True) == "▁█▁"  # a peak is never lost
    assert squeeze([1, 2], 5) == [1, 2]
    assert (len(BLOCKS), len(PLAIN)) == (8, 8)


def test_bars() -> None:
    assert bar(0.5, 4, drawn=True) == "██░░"
    assert bar(0.0, 4, drawn=False) == "...."
    assert bar(0.001, 4, drawn=False) == "#..."  # little is not nothing
    assert bar(7.0, 4, drawn=False) == "####"


def test_terminals_without_the_letters_get_plain_ones() -> None:
    assert (can_draw("utf-8"), can_draw("ascii"), can_draw("no such encoding")) == (True, False, False)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (0.04, "0.0"), (7, "7"), (7.25, "7.2"), (9.96, "10"), (999, "999"), (999.6, "1.0k"), (1234, "1.2k"),
     (99_940, "99.9k"), (99_960, "100k"), (999_600, "1.0M"), (5e9, "5.0G")],
)  # fmt: skip
def test_numbers_in_five_letters(value: float, said: str) -> None:
    assert format_number(value) == said
    assert len(said) <= 5


def test_numbers_stand_under_each_other() -> None:
    columns, rows = align_numbers(("name", "n"), [("a", "1"), ("bb", "1,000")])
    assert (columns, rows) == (["name", "    n"], [["a", "    1"], ["bb", "1,000"]])
