"""Moves between a file and a fleet: nothing lost, nothing run twice, killed at any step and run again."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive.core.store import Filter
from redrive.errors import ConfigError, StoreError, StoreRefused
from redrive.fleet.migration import move, undo_move
from redrive.stores.replica.envelope import Arrived, JobsMoved
from tests import nats
from tests.postgres_server import Server

STEPS_IN = ["connect", "close the file", "claim", "copy", "upload", "check", "arrive", "finish"]
STEPS_OUT = ["replay", "write", "finish"]
OURS = ("replica", "replica_chain", "replica_parts", "clients", "answers")
KILLED = """
import asyncio, os, signal, sys
from redrive.fleet.migration import move
step = sys.argv[3]
def told(name, done, total):
    if name == step:
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(move(sys.argv[1], sys.argv[2], told))
"""
_names = iter(range(1_000_000))


def quiet(step: str, done: int, total: int) -> None:
    """Nobody watches."""


def namespace() -> str:
    import secrets

    return f"{nats.shared_server().url}/move-{secrets.token_hex(4)}"


def app(url: str, ledger: Path, folder: Path, **how: Any) -> redrive.Redrive:
    """An app whose jobs write a line each; odd ones fail for good at their first run."""
    fleet: dict[str, Any] = {} if "://" not in url else {"replica": True, "replica_folder": str(folder)}
    rd = redrive.Redrive(url, **fleet, **how)

    @rd.task
    async def note(number: int) -> int:
        with ledger.open("a") as file:
            file.write(f"{number}\n")
        if number % 5 == 1:
            raise PermissionError("no")
        return number

    return rd


async def fill(path: Path, ledger: Path) -> None:
    """Jobs that are done, dead, waiting and delayed, with keys, stories and documents."""
    rd = app(str(path), ledger, path.parent)
    for number in range(10):
        await rd.enqueue("note", {"number": number}, idempotency_key=f"n-{number}")
    await rd.drain()
    for number in range(10, 25):
        await rd.enqueue("note", {"number": number}, idempotency_key=f"n-{number}")
    for number in range(25, 30):
        await rd.enqueue("note", {"number": number}, delay=3600)
    await rd.close()


@pytest.fixture
async def source(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    await fill(path, tmp_path / "ledger")
    return path


def rows(path: Path, *, without: tuple[str, ...] = OURS) -> dict[str, list[Any]]:
    """Every row of every table, but for what says where a file stands in its log, and which files that log has."""
    connection = sqlite3.connect(path)
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}
        found["docs"] = [row for row in found["docs"] if row[1] not in ("moved", "replica")]
    finally:
        connection.close()
    return {name: rows for name, rows in found.items() if name not in without}


async def backup(url: str, folder: Path) -> Path:
    """The state of a fleet as a file, by a replica that begins anew."""
    copy = folder / f"copy-{next(_names)}.db"
    rd = app(url, folder / "ledger", folder / f"replica-{next(_names)}")
    await rd.store.backup(str(copy))
    await rd.close()
    return copy


async def work(url: str, folder: Path) -> list[int]:
    """Run what waits there; what was run in all."""
    rd = app(url, folder / "ledger", folder / "worker")
    await rd.drain()
    await rd.close()
    return sorted(int(line) for line in (folder / "ledger").read_text().split())


def killed(source: str, target: str, step: str) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, source, target, step], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL


# -- into a fleet


@pytest.mark.behaviour("F-30")
async def test_every_row_arrives_and_what_waited_runs_once(source: Path, tmp_path: Path) -> None:
    before, url = rows(source), namespace()
    steps: list[str] = []
    count = await move(str(source), url, lambda step, done, total: steps.append(step))
    assert count.jobs == {"dead": 2, "done": 8, "waiting": 20}
    assert list(dict.fromkeys(steps)) == STEPS_IN
    assert [one.name for one in tmp_path.glob("*mov*")] == []
    assert rows(await backup(url, tmp_path)) == before
    assert await work(url, tmp_path) == list(range(25))
    rd = app(url, tmp_path / "ledger", tmp_path / "again")
    job = await rd.enqueue("note", {"number": 3}, idempotency_key="n-3")
    assert job.duplicate
    await rd.close()


@pytest.mark.behaviour("F-30a")
@pytest.mark.parametrize("step", STEPS_IN)
async def test_a_move_that_is_killed_at_any_step_is_finished_by_running_it_again(
    source: Path, tmp_path: Path, step: str
) -> None:
    before, url = rows(source), namespace()
    killed(str(source), url, step)
    count = await move(str(source), url, quiet)
    assert sum(count.jobs.values()) == 30
    assert rows(await backup(url, tmp_path)) == before
    assert await work(url, tmp_path) == list(range(25))
    assert (await move(str(source), url, quiet)).again


@pytest.mark.behaviour("F-30b")
async def test_a_file_that_was_moved_is_refused_and_names_its_new_place(source: Path, tmp_path: Path) -> None:
    url = namespace()
    await move(str(source), url, quiet)
    rd = app(str(source), tmp_path / "ledger", tmp_path)
    with pytest.raises(StoreRefused, match=r"was moved to nats://.*set REDRIVE_URL"):
        await rd.stats()
    await rd.close()
    with pytest.raises(StoreRefused, match="not to"):
        await move(str(source), namespace(), quiet)


@pytest.mark.behaviour("F-30b")
async def test_a_file_that_is_open_elsewhere_is_not_moved(source: Path, tmp_path: Path) -> None:
    code = (
        "import asyncio, redrive, sys; rd = redrive.Redrive(sys.argv[1]); asyncio.run(rd.stats()); print(1, flush=True)"
    )
    arguments = [sys.executable, "-c", f"{code}; input()", str(source)]
    other = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(StoreRefused, match=f"open in 1 other processes .*-{other.pid}-.*stop them first"):
            await move(str(source), namespace(), quiet)
        assert [one.name for one in tmp_path.glob("*mov*")] == []
    finally:
        other.kill()
        other.communicate()
    rd = app(str(source), tmp_path / "ledger", tmp_path)
    assert await rd.stats()
    await rd.close()


@pytest.mark.behaviour("F-30c")
@pytest.mark.parametrize("step", ["claim", "copy", "check", "arrive"])
async def test_a_move_that_has_not_arrived_can_be_undone_and_begun_again(
    source: Path, tmp_path: Path, step: str
) -> None:
    before, url = rows(source), namespace()
    killed(str(source), url, step)
    await undo_move(str(source), url)
    assert rows(source) == before
    rd = app(str(source), tmp_path / "ledger", tmp_path)
    assert await rd.stats()
    await rd.close()
    before = rows(source)
    await move(str(source), url, quiet)
    assert rows(await backup(url, tmp_path)) == before
    with pytest.raises(StoreRefused, match="have arrived"):
        await undo_move(str(source), url)


@pytest.mark.behaviour("F-30d")
async def test_a_replica_that_began_empty_stops_and_gets_the_jobs_when_it_starts_again(
    source: Path, tmp_path: Path
) -> None:
    url = namespace()
    early = app(url, tmp_path / "ledger", tmp_path / "early")
    await early.store.open()
    await move(str(source), url, quiet)
    assert "began without them" in await asyncio.wait_for(early.store.until_failed(), 30)
    await early.close()
    again = app(url, tmp_path / "ledger", tmp_path / "early")
    assert len((await again.store.find(Filter(), limit=100)).jobs) == 30
    await again.close()


@pytest.mark.behaviour("F-30d")
async def test_a_namespace_that_holds_jobs_is_refused_and_the_file_stays_open(source: Path, tmp_path: Path) -> None:
    url = namespace()
    rd = app(url, tmp_path / "ledger", tmp_path / "used")
    await rd.enqueue("note", {"number": 99})
    await rd.close()
    with pytest.raises(StoreRefused, match="holds jobs already"):
        await move(str(source), url, quiet)
    assert await work(str(source), tmp_path) == list(range(25))


async def test_a_move_waits_for_what_is_spooled(source: Path) -> None:
    spool = source.with_name(source.name + "-spool")
    spool.mkdir()
    (spool / "one.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="jobs wait in"):
        await move(str(source), namespace(), quiet)


@pytest.mark.behaviour("F-30")
async def test_a_file_moves_to_postgresql_and_back(source: Path, postgres_server: Server, tmp_path: Path) -> None:
    before, url = rows(source), postgres_server.url(namespace="moved-in")
    await move(str(source), url, quiet)
    assert rows(await backup(url, tmp_path)) == before
    await move(url, str(tmp_path / "back.db"), quiet)
    assert await work(str(tmp_path / "back.db"), tmp_path) == list(range(25))


# -- back into a file


@pytest.mark.behaviour("F-31")
@pytest.mark.parametrize("step", [None, *STEPS_OUT])
async def test_a_fleet_moves_into_a_file_and_is_closed_for_good(source: Path, tmp_path: Path, step: str | None) -> None:
    url, back = namespace(), tmp_path / "back.db"
    await move(str(source), url, quiet)
    hub = app(url, tmp_path / "ledger", tmp_path / "hub")
    await hub.enqueue("note", {"number": 30})
    before = rows(await backup(url, tmp_path))
    if step is not None:
        killed(url, str(back), step)
    await move(url, str(back), quiet)
    assert rows(back) == before
    assert "were moved to" in await asyncio.wait_for(hub.store.until_failed(), 30)
    await hub.close()
    assert await work(str(back), tmp_path) == [*range(25), 30]
    late = app(url, tmp_path / "ledger", tmp_path / "late")
    with pytest.raises(StoreError, match=f"moved to {back}"):
        await late.store.open()
    await late.close()
    assert not back.with_name("back.db-moving").exists()


@pytest.mark.behaviour("F-31")
async def test_a_fleet_that_runs_a_job_is_not_moved(source: Path, tmp_path: Path) -> None:
    url = namespace()
    await move(str(source), url, quiet)
    rd = redrive.Redrive(url, replica=True, replica_folder=str(tmp_path / "busy"))
    begun, end = asyncio.Event(), asyncio.Event()

    @rd.task
    async def long() -> None:
        begun.set()
        await end.wait()

    await long.enqueue()
    async with rd.worker():
        await asyncio.wait_for(begun.wait(), 30)
        with pytest.raises(StoreError, match="1 jobs run in this fleet"):
            await move(url, str(tmp_path / "back.db"), quiet)
        end.set()
        await rd.drain()
    await rd.close()
    assert not (tmp_path / "back.db").exists()
    assert (await move(url, str(tmp_path / "back.db"), quiet)).jobs


async def test_what_cannot_be_moved_is_said(source: Path, tmp_path: Path) -> None:
    for one, other, words in (
        (str(source), str(tmp_path / "b.db"), "both are files"),
        ("nats://127.0.0.1:1/a", "nats://127.0.0.1:1/b", "into a file first"),
        (str(tmp_path / "none.db"), "nats://127.0.0.1:1/b", "there is no database"),
        (str(source), "https://host", "has no log"),
    ):
        with pytest.raises(ConfigError, match=words):
            await move(one, other, quiet)


async def test_the_command_tells_what_it_moved(source: Path) -> None:
    program = [sys.executable, "-m", "redrive", "move", "--from", str(source), "--to", namespace()]
    said = subprocess.run([*program, "--json"], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(said.stdout)["jobs"] == 30
    again = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert "30 jobs had been moved" in again.stdout and "set REDRIVE_URL" in again.stdout


def test_messages_about_the_log_itself_can_be_read() -> None:
    from redrive.stores.replica import envelope as wire

    for message in (Arrived("a"), JobsMoved("b")):
        assert wire.encode_item(message)
