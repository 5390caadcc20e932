"""The nights of users, numbered as they were told, through commands, REST and names that were there before.

Each of these tests fails by what it says on the source before, so that it can be run there too.
"""

from __future__ import annotations

import re
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from redrive import Redrive
from tests.cli.shell import DEADLINE, Done, Shell, ended, wait_until
from tests.support import FakeClock

DAY = 86_400.0
JOBS = 40
HOST = "host:127.0.0.1:9"

OUTAGE = """
    import redrive

    def told(message):
        with open("told", "a") as file:
            file.write(f"{message.kind}: {message.title}\\n")

    rd = redrive.Redrive(channels=[told], queues={"deliver": {"base": 900, "cap": 900, "breaker_pause": 900, OPTIONS}})

    @rd.task(downstream="HOST")
    async def deliver(number: int) -> None:
        raise ConnectionRefusedError("connection refused")

    @rd.task
    async def investigate(pain: dict, health: dict, group: object, errors: list) -> None:
        with open("investigated", "a") as file:
            file.write(f"{pain['kind']} {health['status']} {len(errors) > 0}\\n")
"""


def write_app(shell: Shell, code: str) -> None:
    (shell.folder / "app.py").write_text(textwrap.dedent(code), encoding="utf-8")


def outage(shell: Shell, options: str = "", jobs: int = JOBS) -> None:
    """So many jobs for something that is down."""
    write_app(shell, OUTAGE.replace("HOST", HOST).replace("OPTIONS", options))
    hand_in(shell, jobs)


def hand_in(shell: Shell, jobs: int = JOBS) -> None:
    rd = Redrive(shell.database)
    with rd.blocking() as q:
        q.enqueue_many("deliver", [{"number": number} for number in range(jobs)])


def health(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = shell.here("health", "--json").json
    return found


def script(shell: Shell, code: str, *words: object) -> Done:
    """A script of the user's, to its end."""
    return shell.run("-c", textwrap.dedent(code), *map(str, words))


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def served(shell: Shell) -> str:
    """`redrive serve` of the app; its address."""
    child = shell.start("serve", "app:rd", "--port", "0", "--no-auth", "--json")
    assert child.stdout is not None
    for _ in range(10):
        if found := re.search(r"http://127\.0\.0\.1:\d+", child.stdout.readline()):
            return found[0]
    raise AssertionError("the server does not say where it is")


# ---- 1


@pytest.mark.behaviour("T-1", "T-1a")
@pytest.mark.parametrize(
    ("options", "issue"),
    [
        ("", r"host 127\.0\.0\.1:9 is down, \d+ parked"),
        ('"breaker_after": 0', rf"deliver: {JOBS} retrying after failures"),
    ],
    ids=["breakers", "no breakers"],
)
def test_01_an_outage_is_in_health(shell: Shell, options: str, issue: str) -> None:
    outage(shell, options)
    shell.drain()
    found = shell.here("health", "--json")
    assert (found.json["total_pending"], found.json["status"], found.status) == (JOBS, "degraded", 0), found.out
    assert f"deliver: {JOBS} pending (backed up)" in found.json["issues"]
    assert any(re.search(issue, said) for said in found.json["issues"]), found.json["issues"]
    (queue,) = [queue for queue in shell.here("queues", "--json").json if queue["name"] == "deliver"]
    assert queue["pending"] == JOBS, queue


@pytest.mark.behaviour("T-1b")
def test_01_an_outage_reaches_the_channels(shell: Shell) -> None:
    outage(shell)
    shell.start("worker", "app:rd")
    told = shell.folder / "told"
    wait_until(lambda: "downstream_down: " in read(told), "the channel is told that it is down")
    assert "127.0.0.1:9 is down" in read(told)


@pytest.mark.behaviour("T-1c")
def test_01_the_stream_tells_that_a_breaker_opens_and_closes(shell: Shell) -> None:
    outage(shell, jobs=0)
    url = served(shell)
    heard: list[str] = []
    end = time.monotonic() + DEADLINE
    with suppress(httpx2.TimeoutException), httpx2.stream("GET", f"{url}/v1/events", timeout=DEADLINE) as stream:
        hand_in(shell)
        for line in stream.iter_lines():
            if found := re.search(r"breaker\.(opened|closed)", line):
                heard.append(found[1])
                shell.here("breakers", "--close", HOST)
            if "closed" in heard or time.monotonic() > end:
                break
    assert heard[:1] == ["opened"] and "closed" in heard, heard


@pytest.mark.behaviour("T-1d", "T-1e")
def test_01_a_pain_acts_by_what_the_settings_say(shell: Shell) -> None:
    """`[signals]` is itself new."""
    outage(shell)
    (shell.folder / "heal.sh").write_text('echo "$REDRIVE_PAIN_KIND" >> healed\n')
    (shell.folder / "redrive.toml").write_text('[signals]\nenqueue = "investigate"\nrun = "sh heal.sh"\n')
    shell.start("worker", "app:rd")
    investigated, healed = shell.folder / "investigated", shell.folder / "healed"
    wait_until(lambda: "downstream_down degraded True" in read(investigated), "the task of the settings has run")
    wait_until(lambda: "downstream_down" in read(healed), "the command of the settings has run")
    assert read(investigated).count("downstream_down") == read(healed).count("downstream_down") == 1


# ---- 2


@pytest.mark.behaviour("T-2", "T-3b")
def test_02_a_script_that_is_killed_in_a_job_is_a_need(shell: Shell) -> None:
    """No worker has ever been there, and nobody starts the script again."""
    code = """
        import os, signal
        import redrive

        def publish(number):
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        with redrive.Redrive().cycle("nightly", "tonight", quiet=True) as cycle:
            for number in range(4):
                cycle.run(publish, number=number)
    """
    assert script(shell, code).status == -9
    for command in ("health", "morning", "doctor"):
        said = shell.here(command)
        assert said.status == 1, (command, said.out)
        assert "is gone" in said.out, (command, said.out)
    assert "nightly tonight died after 1 job" in shell.here("morning").out


# ---- 3

NIGHT = """
    import sys
    import redrive

    def publish(number):
        return number

    rd = redrive.Redrive()
    with rd.cycle("nightly", sys.argv[1], quiet=True) as cycle:
        for number in range(int(sys.argv[2])):
            cycle.run(publish, number=number)
        if len(sys.argv) > 3:
            raise OSError("the list of sites is gone")
"""


def publish(number: int) -> int:
    return number


def nights(shell: Shell, number: int = 4) -> None:
    for each in range(number):
        assert script(shell, NIGHT, f"n{each}", 4).status == 0


@pytest.mark.behaviour("T-3b")
def test_03_a_script_that_dies_is_told(shell: Shell) -> None:
    nights(shell)
    assert shell.here("morning").status == 0
    assert "the list of sites is gone" in script(shell, NIGHT, "tonight", 1, "dies").err
    morning = shell.here("morning")
    assert morning.status == 1, morning.out
    assert "nightly tonight died after 1 of its usual 4 jobs (OSError)" in morning.out


@pytest.mark.behaviour("T-3b", "T-1b")
def test_03_a_living_worker_tells_the_channels_of_a_script_that_died(shell: Shell) -> None:
    outage(shell, jobs=0)
    nights(shell)
    script(shell, NIGHT, "tonight", 1, "dies")
    shell.start("worker", "app:rd")
    told = shell.folder / "told"
    wait_until(lambda: "nightly tonight died after 1 of its usual 4 jobs" in read(told), "the channel is told of it")
    assert "cycle_died: " in read(told)


@pytest.mark.behaviour("T-3c")
def test_03_a_night_with_few_jobs_is_told(shell: Shell) -> None:
    nights(shell)
    assert script(shell, NIGHT, "tonight", 1).status == 0
    morning = shell.here("morning")
    assert morning.status == 1 and "nightly tonight had 1 job, usually 4" in morning.out, morning.out


@pytest.mark.behaviour("T-3a")
def test_03_a_cron_that_no_longer_starts_is_told(shell: Shell) -> None:
    """It ran on twelve days, and not since the day before yesterday."""
    for days in range(13, 1, -1):
        with Redrive(shell.database, clock=FakeClock(time.time() - days * DAY)).cycle("nightly", quiet=True) as cycle:
            cycle.run(publish, number=1)
    for command in ("morning", "health"):
        said = shell.here(command)
        assert said.status == 1, (command, said.out)
        assert re.search(r"nightly ran about \d\d:\d\d on 12 days, not since", said.out), (command, said.out)


# ---- 4

ARTICLE = """
    import os, sys
    import redrive

    class RateLimitError(Exception):
        pass

    def publish(text):
        if os.path.exists("limited"):
            raise RateLimitError("429")
        with open("published", "a") as file:
            file.write(text + "\\n")

    rd = redrive.Redrive()
    with rd.cycle("nightly", sys.argv[1]) as cycle:
        cycle.run(publish, text=sys.argv[2], job_id="site-a")
    sys.exit(cycle.exit_code)
"""


@pytest.mark.behaviour("T-4a")
def test_04_another_input_in_another_cycle_is_done_beside_what_was_left(shell: Shell) -> None:
    """Monday's article was diverted, and comes back in the night that brings Tuesday's."""
    (shell.folder / "limited").touch()
    assert script(shell, ARTICLE, "n1", "monday").status == 1
    (shell.folder / "limited").unlink()
    tuesday = script(shell, ARTICLE, "n2", "tuesday")
    assert read(shell.folder / "published") == "monday\ntuesday\n", tuesday.out
    assert tuesday.status == 0


@pytest.mark.behaviour("T-4b")
def test_04_another_input_in_the_same_cycle_is_refused_and_kept(shell: Shell) -> None:
    assert script(shell, ARTICLE, "n1", "monday").status == 0
    again = script(shell, ARTICLE, "n1", "another text")
    assert again.status != 0, again.out
    (letter,) = shell.here("dead", "list", "--json").json["jobs"]
    assert (letter["because"], letter["lane"]) == ("conflicting_input", "manual")
    assert "another text" in shell.here("dead", "show", letter["id"], "--json").out, "it can be read and redriven"
    assert read(shell.folder / "published") == "monday\n", "and was not run"


# ---- 8


@pytest.mark.behaviour("T-8")
@pytest.mark.parametrize(
    "deed",
    [
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "_thread.interrupt_main()",
        "os.kill(os.getpid(), signal.SIGINT)",
    ],
)
def test_08_a_job_that_interrupts_its_worker_does_not_keep_others_waiting(shell: Shell, deed: str) -> None:
    write_app(
        shell,
        f"""
        import _thread, asyncio, os, signal
        import redrive

        rd = redrive.Redrive()

        @rd.task(max_attempts=2, backoff="none")
        async def poison() -> None:
            {deed}
            await asyncio.sleep(60)

        @rd.task
        async def innocent() -> None: ...
        """,
    )
    poison, innocent = shell.enqueue("poison"), shell.enqueue("innocent")
    for _ in range(4):  # a process manager starts it again
        if shell.run("worker", "app:rd", "--drain", "--concurrency", "1", "--grace", "1").status == 0:
            break
    assert shell.state(innocent) == "done", "nobody behind it runs"
    assert shell.state(poison) == "dead", shell.job(poison)["history"]


# ---- 11


@pytest.mark.behaviour("T-11d")
def test_11_health_says_that_one_job_keeps_all_others_waiting(shell: Shell) -> None:
    """A worker with one slot cannot keep one free."""
    shell.enqueue("mark", {"folder": str(shell.folder), "until": str(shell.folder / "go")})
    shell.start("worker", "app:rd", "--concurrency", "1")
    wait_until(lambda: any(shell.folder.glob("started-*")), "the job runs")
    shell.enqueue("greet", {"name": "ada"})
    said = "a worker takes one job at a time (concurrency 1)"
    wait_until(lambda: any(said in issue for issue in health(shell)["issues"]), "health says why the other one waits")
    (shell.folder / "go").touch()


# ---- 12


@pytest.mark.behaviour("T-12c")
def test_12_a_death_alone_is_waited_out(shell: Shell) -> None:
    """A job that killed three workers, the last one while it ran alone, kills no other within the next minute."""
    write_app(
        shell,
        """
        import os, signal
        import redrive

        rd = redrive.Redrive()

        @rd.task
        async def dies() -> None:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    job = shell.enqueue("dies")
    for _ in range(3):
        assert shell.run("worker", "app:rd", "--drain").status == -9
    fourth = shell.run("worker", "app:rd", "--drain")
    assert fourth.status == 0, "the next worker died of it, too"
    found = shell.job(job)
    assert (found["state"], found["crashes"], found["attempts"]) == ("waiting", 3, 0), found
    rd = Redrive(shell.database)
    with rd.blocking() as q:
        due = q.run(rd.jobs.get(job)).run_at
    assert 30 <= due - time.time() <= 90, "about a minute"


# ---- 15

OPENS = {
    "sqlite3": "sqlite3.connect(os.environ['REDRIVE_URL']).close()",
    "sqlite3 by a URI": "sqlite3.connect('file:' + os.environ['REDRIVE_URL'] + '?mode=ro', uri=True).close()",
    "open": "open(os.environ['REDRIVE_URL'], 'rb').close()",
    "open of -shm": "open(os.environ['REDRIVE_URL'] + '-shm', 'rb').close()",
}


@pytest.mark.behaviour("T-15", "T-15a")
@pytest.mark.parametrize("opens", OPENS.values(), ids=OPENS)
def test_15_a_task_that_opens_the_database_is_refused(shell: Shell, opens: str) -> None:
    write_app(
        shell,
        f"""
        import os, sqlite3
        import redrive

        rd = redrive.Redrive()

        @rd.task
        def look() -> None:
            {opens}

        @rd.task
        async def innocent() -> None: ...
        """,
    )
    look, innocent = shell.enqueue("look"), shell.enqueue("innocent")
    shell.drain()
    found = shell.job(look)
    assert (found["state"], found["attempts"], found["detail"]) == ("dead", 1, "bug"), found
    assert "redrive sql" in found["error"], "it says what to use instead"
    assert shell.state(innocent) == "done"


# ---- 16


@pytest.mark.behaviour("T-16a")
def test_16_a_worker_whose_clock_is_ahead_destroys_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty days ahead for one start: payload, result and key are there, and the work is not done again."""
    write_app(
        shell,
        """
        import os, time
        from pathlib import Path
        import redrive
        from redrive.stores.sqlite import SqliteStore

        really = SqliteStore.prune

        async def prune(self, *args, **kwargs):
            found = await really(self, *args, **kwargs)
            Path("pruned").touch()
            return found

        SqliteStore.prune = prune

        class Clock:
            def now(self) -> float:
                return time.time() + float(os.environ.get("AHEAD", "0"))

            def monotonic(self) -> float:
                return time.monotonic()

            def chance(self) -> float:
                return 0.5

        rd = redrive.Redrive(clock=Clock(), retention=86_400, key_retention=86_400)

        @rd.task
        async def bill(customer: str) -> str:
            with open("billed", "a") as file:
                file.write(customer + "\\n")
            return customer
        """,
    )
    job = shell.enqueue("bill", {"customer": "ada"}, "--key", "bill ada")
    shell.drain()
    (shell.folder / "pruned").unlink(missing_ok=True)
    monkeypatch.setenv("AHEAD", str(20 * DAY))
    ahead = shell.start("worker", "app:rd")
    wait_until((shell.folder / "pruned").exists, "the worker has looked for what is old enough")
    ahead.terminate()
    assert ended(ahead).status == 0
    monkeypatch.delenv("AHEAD")
    found = shell.job(job)
    assert (found["payload"], found["result"]) == ({"customer": "ada"}, "ada")
    shell.here("enqueue", "bill", '{"customer": "ada"}', "--key", "bill ada")
    shell.drain()
    assert read(shell.folder / "billed") == "ada\n"


# ---- 17


@pytest.mark.behaviour("T-17a", "T-17d")
def test_17_erase_leaves_no_error_text(shell: Shell) -> None:
    code = """
        import sys
        import redrive

        def publish(site):
            raise PermissionError("canary-4711 may not")

        rd = redrive.Redrive()
        with rd.cycle("nightly", sys.argv[1], alert_after=2) as cycle:
            cycle.run(publish, site="a")
    """
    for night in ("n1", "n2", "n3"):
        script(shell, code, night)
    letters = shell.here("dead", "list", "--json").json["jobs"]
    assert letters
    for letter in letters:
        erased = shell.here("erase", letter["id"], "--yes")
        assert erased.status == 0, erased.err
    left = [
        path.name for path in shell.folder.glob("jobs.db*") if path.is_file() and b"canary-4711" in path.read_bytes()
    ]
    assert left == []
