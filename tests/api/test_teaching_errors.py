"""Mistakes of the first hour: each gets an error that says what to write instead, or simply works."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive.core.times import span_seconds
from redrive.errors import InvalidInput, InvalidOption, InvalidPayload
from tests.support import DEADLINE


async def test_an_option_among_the_arguments_says_where_it_belongs(rd: redrive.Redrive) -> None:
    @rd.task
    async def publish(slug: str) -> None: ...

    with pytest.raises(InvalidPayload, match=r"publish\.options\(delay=5, priority='high'\)\.enqueue\(…\)"):
        await publish.enqueue("a", delay=5, priority="high")  # type: ignore[call-arg]
    assert not (await rd.jobs.list()).jobs


async def test_a_parameter_that_has_an_option_s_name_is_an_argument(rd: redrive.Redrive) -> None:
    @rd.task
    async def wait(delay: int) -> int:
        return delay

    handle = await wait.enqueue(delay=5)
    await rd.drain()
    assert await handle.result() == 5


async def test_the_task_itself_may_be_enqueued(rd: redrive.Redrive) -> None:
    @rd.task
    async def double(n: int) -> int:
        return 2 * n

    one = await rd.enqueue(double, {"n": 1})
    many = await rd.enqueue_many(double, [{"n": 2}])
    own = await double.enqueue_many([{"n": 3}, redrive.Item({"n": 4}, idempotency_key="four")])
    bound = await double.options(priority="high").enqueue_many([{"n": 5}])
    await rd.drain()
    assert await one.result() == 2
    ids = [id for done in (many, own, bound) for id in done.ids]
    results = [(await rd.jobs.get(id or "")).result for id in ids]
    assert results == [4, 6, 8, 10]
    assert (await rd.jobs.get(bound.ids[0] or "")).priority_name == "high"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"name": "x"}, r'the name goes first: @rd.task\("name"\)'),
        ({"retries": 3}, "retries=3 is max_attempts=4"),
        ({"max_attemps": 3}, "did you mean max_attempts?"),
        ({"cron": "@daily"}, "it is called schedule"),
        ({"delay": 3}, r"task\.options\(delay=…\)"),
    ],
)
def test_an_unknown_option_of_a_task_says_what_was_probably_meant(options: dict[str, Any], hint: str) -> None:
    rd = redrive.Redrive(":memory:")
    with pytest.raises(InvalidOption, match=hint):
        rd.task(**options)(lambda: None)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"key": "a"}, "it is called idempotency_key"),
        ({"countdown": 5}, "it is called delay"),
        ({"retries": 2}, "max_attempts counts the first try"),
        ({"priorty": "high"}, "did you mean priority?"),
    ],
)
async def test_an_unknown_option_of_a_job_says_what_was_probably_meant(
    rd: redrive.Redrive, options: dict[str, Any], hint: str
) -> None:
    @rd.task
    async def publish() -> None: ...

    with pytest.raises(InvalidOption, match=hint):
        publish.options(**options)
    with pytest.raises(InvalidOption, match=hint):
        await rd.enqueue("publish", {}, **options)


def test_a_method_is_refused_with_the_way_to_do_it() -> None:
    rd = redrive.Redrive(":memory:")
    with pytest.raises(InvalidOption, match=r'Shop\.sell is a method.*rd\.task\("sell"\)\(that_object\.sell\)'):

        class Shop:
            @rd.task
            async def sell(self, item: str) -> None: ...

    assert "sell" not in rd.registry.handlers


async def test_the_method_of_an_object_is_a_task(rd: redrive.Redrive) -> None:
    class Shop:
        async def sell(self, item: str) -> str:
            return f"sold {item}"

    sell = rd.task("sell")(Shop().sell)
    handle = await sell.enqueue("tea")
    await rd.drain()
    assert await handle.result() == "sold tea"


@pytest.mark.parametrize(
    ("text", "number"),
    [("90s", 90), ("5m", 300), ("5 min", 300), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1w", 604800)],
)
def test_a_duration_may_be_a_text(text: str, number: float) -> None:
    assert span_seconds(text) == number


@pytest.mark.parametrize("text", ["", "5", "m", "5x", "5m and more", "-5m", "1.5h", "٣m"])
def test_what_is_no_duration_is_not_read_as_one(text: str) -> None:
    assert span_seconds(text) is None


async def test_durations_are_taken_where_numbers_go(rd: redrive.Redrive) -> None:
    @rd.task(base="5m", cap="1h", lease=timedelta(minutes=2), timeout="30s", comebacks=("10m", "1h"))
    async def publish() -> None: ...

    policy = rd.registry.handlers["publish"].policy
    assert (policy.base, policy.cap, policy.lease, policy.comebacks) == (300, 3600, 120, (600, 3600))
    assert rd.registry.handlers["publish"].timeout == 30
    handle = await publish.options(delay="1h").enqueue()
    assert handle.job.run_at == rd.clock.now() + 3600
    with pytest.raises(InvalidOption, match="'soon' is no duration"):
        await publish.options(delay="soon").enqueue()


def test_durations_are_taken_in_settings_and_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redrive.toml").write_text(
        'grace = "1m"\nretention = "30d"\n[queues.crm]\nbase = "2m"\nchanged_after = { invalid_output = "5s" }\n'
    )
    monkeypatch.setenv("REDRIVE_POLL", "2s")
    rd = redrive.Redrive(tmp_path / "jobs.db", queues={"mail": {"cap": "10m"}})
    assert (rd.settings.grace, rd.settings.retention, rd.settings.poll) == (60, 30 * 86400, 2)
    assert rd.settings.queues["mail"].cap == 600
    from_file = redrive.Redrive(tmp_path / "jobs.db").settings.queues["crm"]
    assert (from_file.base, from_file.changed_after) == (120, {"invalid_output": 5})


def test_a_cron_line_alone_is_a_schedule() -> None:
    rd = redrive.Redrive(":memory:")

    @rd.task(schedule=["0 3 * * *", redrive.cron("@daily", tz="Europe/Rome")])
    async def nightly() -> None: ...

    first, second = rd.registry.handlers["nightly"].schedules
    assert (first.line, first.tz, second.tz) == ("0 3 * * *", "UTC", "Europe/Rome")
    with pytest.raises(InvalidOption, match="schedule"):
        rd.task("other", schedule="every night")(lambda: None)


async def test_pausing_a_queue_that_is_not_there_changes_nothing(rd: redrive.Redrive) -> None:
    @rd.task(queue="press")
    async def publish() -> None: ...

    with pytest.raises(InvalidInput, match="there is no queue 'pres'"):
        await rd.queues.pause("pres")
    assert not any(queue.paused for queue in await rd.queues.list())
    await rd.queues.pause("press")
    await rd.queues.pause("mail", new=True)
    assert {queue.name for queue in await rd.queues.list() if queue.paused} == {"press", "mail"}


BLOCK_LEFT_OPEN = """
import sys
import redrive

rd = redrive.Redrive(sys.argv[1])
block = rd.blocking()
queue = block.__enter__()
print(queue.enqueue("greet", {"name": "ada"}).id)
"""


def test_a_block_that_was_left_open_lets_the_process_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK_LEFT_OPEN, str(tmp_path / "jobs.db")],
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 32 and "Traceback" not in done.stderr
