"""Making a Redrive: no I/O, and where its settings come from."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import redrive
from redrive.errors import ConfigError
from tests import elsewhere
from tests.support import FakeClock, soon


def test_making_one_touches_nothing(tmp_path: Path) -> None:
    rd = redrive.Redrive(tmp_path / "folder" / "jobs.db", include=["no.such.module"])

    @rd.task
    async def work() -> None: ...

    assert list(tmp_path.iterdir()) == []


@pytest.mark.file("it is about the file's path and its permissions")
async def test_the_file_is_made_on_first_use_and_closed_by_the_block(database: Path) -> None:
    rd = redrive.Redrive(database)
    assert not database.exists()
    await rd.enqueue("work")
    assert database.stat().st_mode & 0o777 == 0o600
    await rd.close()
    async with rd:
        assert (await rd.stats())["accepted"] == 1


async def test_a_closed_one_opens_again(database: Path) -> None:
    rd = redrive.Redrive(database)
    first = await rd.enqueue("work")
    await rd.close()
    await rd.close()
    assert (await rd.jobs.get(first.id)).id == first.id
    await rd.close()


def test_without_an_argument_it_is_the_state_folder(tmp_path: Path) -> None:
    assert redrive.Redrive().settings.url == str(tmp_path / "state" / "redrive" / "jobs.db")


@pytest.mark.file("it is about the file's path and its permissions")
async def test_the_state_folder_is_made_private(tmp_path: Path) -> None:
    async with redrive.Redrive() as rd:
        await rd.enqueue("work")
    assert (tmp_path / "state" / "redrive").stat().st_mode & 0o777 == 0o700


def test_arguments_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redrive.toml").write_text('url = "file.db"\nconcurrency = 3\n')
    assert redrive.Redrive().settings.url == "file.db"
    monkeypatch.setenv("REDRIVE_URL", "environment.db")
    assert redrive.Redrive().settings.url == "environment.db"
    assert redrive.Redrive("argument.db").settings.url == "argument.db"
    assert redrive.Redrive().settings.concurrency == 3
    monkeypatch.setenv("REDRIVE_CONCURRENCY", "7")
    assert redrive.Redrive().settings.concurrency == 7
    assert redrive.Redrive(concurrency=9).settings.concurrency == 9


def test_another_file_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.toml").write_text('[queues.mail]\nmax_attempts = 2\n[delivery]\nallow = ["127.0.0.1"]\n')
    monkeypatch.setenv("REDRIVE_CONFIG", str(tmp_path / "other.toml"))
    rd = redrive.Redrive("jobs.db")
    assert rd.registry.queue_policy("mail").max_attempts == 2
    assert rd.settings.delivery.allow == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("concurrency = 0", "concurrency"),
        ('concurrency = "many"', "concurrency"),
        ("nonsense = 1", "nonsense"),
        ("url = ", "redrive.toml"),
        ("[queues.mail]\nmax_attempts = 0", "queues.mail.max_attempts"),
        ("[queues.mail]\nbackof = 1", "backof"),
        ('[queues.mail]\nbackoff = "sideways"', "queues.mail.backoff"),
        ("[queues.mail]\nrate = {count = 0}", "queues.mail.rate"),
        ('[delivery]\nallow = ["not a network/x"]', "not a network"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "redrive.toml").write_text(text)
    with pytest.raises(ConfigError, match=named):
        redrive.Redrive()


def test_a_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_CONFIG", "nowhere.toml")
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        redrive.Redrive()


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="colour"):
        redrive.Redrive("jobs.db", colour="red")


async def test_another_kind_of_store_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="redis") as refused:
        await redrive.Redrive("redis://me:secret@somewhere/db").open()
    assert "nats://" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.file("it is about the file's path and its permissions")
@pytest.mark.parametrize("form", ["{path}", "sqlite:{path}", "sqlite:///{path}"])
async def test_a_url_is_a_path(database: Path, form: str) -> None:
    async with redrive.Redrive(form.format(path=database)) as rd:
        await rd.enqueue("work")
    assert database.exists()


async def test_memory_means_a_temporary_file() -> None:
    async with redrive.Redrive(":memory:") as rd:
        await rd.enqueue("work")
        assert (await rd.stats())["accepted"] == 1


def test_the_spool_lies_beside_the_database_of_the_same_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert redrive.Redrive("~/jobs.db").spool.folder == tmp_path / "jobs.db-spool"


def test_two_temporary_stores_do_not_share_a_spool() -> None:
    assert redrive.Redrive(":memory:").spool.folder != redrive.Redrive(":memory:").spool.folder


async def test_modules_with_tasks_are_imported_by_the_worker(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "included_tasks.py").write_text(
        "import redrive\n\n\n@redrive.default().task\nasync def included() -> str:\n    return 'ran'\n"
    )
    monkeypatch.setenv("REDRIVE_URL", str(database))
    monkeypatch.setattr("redrive.api.redrive._default", redrive.Redrive(include=["included_tasks"]))
    rd = redrive.default()
    try:
        job = await rd.enqueue("included")
        await soon(rd.drain())
        assert await job.result(5) == "ran"
    finally:
        await rd.close()


@pytest.mark.behaviour("000-27")
def test_there_is_one_default_per_process_until_it_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.api.redrive._default", None)
    first = redrive.default()
    assert redrive.default() is first
    assert redrive.get_queue() is first
    redrive.reset_default()
    assert redrive.default() is not first


@pytest.mark.file("a file needs no server and no network")
@pytest.mark.behaviour("000-93")
def test_nothing_but_a_file_is_needed(database: Path) -> None:
    """No socket is opened: a process that may not open any still takes and runs a job."""
    code = """
import asyncio, sys
import redrive

def refuse(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo"):
        raise RuntimeError(event)

async def main():
    sys.addaudithook(refuse)
    async with redrive.Redrive(sys.argv[1]) as rd:
        @rd.task
        async def work(n: int) -> int:
            return n + 1
        job = await work.enqueue(1)
        await rd.drain()
        print(await job.result(10))

asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(database)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.strip() == "2", ran.stderr


@pytest.mark.behaviour("000-94")
async def test_the_runtime_knows_the_store_only_by_its_verbs(database: Path, clock: FakeClock) -> None:
    """Everything goes through the protocol: a stand-in that offers nothing else serves just as well."""
    from redrive.core.store import Store

    verbs = {name for name in vars(Store) if not name.startswith("_")}
    real = elsewhere.made(database, clock)

    class OnlyVerbs:
        def __getattr__(self, name: str) -> object:
            assert name in verbs, f"{name} is not a verb of the store"
            return getattr(real, name)

    rd = redrive.Redrive("elsewhere.db", clock=clock)
    rd.core.holder.store = OnlyVerbs()  # type: ignore[assignment]

    @rd.task(max_attempts=1)
    async def work(ok: bool) -> bool:
        if not ok:
            raise ConnectionError("down")
        return ok

    async with rd:
        good, bad = await work.enqueue(True), await work.enqueue(False)
        await soon(rd.drain())
        assert await good.result(5) is True
        assert (await rd.dead.redrive(bad.id)).state == "waiting"
        await rd.jobs.cancel(bad.id)
        await rd.queues.pause("work")
        assert (await rd.stats())["accepted"] == 2
        assert (await rd.health()).status == "healthy"


def test_import_is_light() -> None:
    code = "import sys, redrive; print([m for m in ('apsw', 'httpx2', 'cronsim', 'click', 'rich') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


LATER = ("apsw", "bz2", "cronsim", "difflib", "fractions", "graphlib", "httpx2", "lzma", "nats", "shutil", "statistics",
         "sysconfig", "zoneinfo", "redrive.http.address", "redrive.http.request", "redrive.stores.sqlite")  # fmt: skip
"""What the first instance of a process does not need: what uses it imports it."""


def test_the_first_instance_is_light(tmp_path: Path) -> None:
    """A program that only enqueues pays for every module, and for every pattern that is compiled."""
    code = f"""
import gc, sys, redrive
redrive.Redrive("jobs.db")
from redrive.core import redact
from redrive.failures import fingerprint
print([name for name in {LATER} if name in sys.modules], gc.isenabled())
print([module._compile.cache_info().currsize for module in (redact, fingerprint)])
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines() == ["[] True", "[0, 0]"]


def test_garbage_collection_stays_off_where_it_was_off() -> None:
    code = "import gc, redrive; gc.disable(); redrive.Redrive; print(gc.isenabled())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "False"


async def test_it_may_be_made_on_one_loop_and_used_on_another(database: Path) -> None:
    rd = redrive.Redrive(database)
    await rd.enqueue("work")
    other = await asyncio.to_thread(lambda: asyncio.run(rd.enqueue("work")))
    assert (await rd.jobs.get(other.id)).state == "waiting"
    await rd.close()
