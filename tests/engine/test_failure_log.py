"""Every failed attempt is told: by a line of its own, or in the number that a flood ends with."""

import re
import traceback
from pathlib import Path

import pytest

import redrive
from redrive.engine import failure_log
from redrive.engine.failure_log import make_loggable
from redrive.failures.capture import capture, capture_name


def told(caplog: pytest.LogCaptureFixture) -> tuple[list[str], list[str]]:
    said = [record.getMessage() for record in caplog.records if record.name == "redrive.attempt"]
    return [line for line in said if line.startswith("job ")], [line for line in said if " more attempts " in line]


async def fail(rd: redrive.Redrive, jobs: int) -> None:
    @rd.task(max_attempts=2, backoff="none", retry_on=(ValueError,))
    async def parse(n: int) -> None:
        raise ValueError("not possible")

    await rd.enqueue_many("parse", [{"n": number} for number in range(jobs)])
    await rd.drain()


@pytest.mark.behaviour("000-2", "000-8")
async def test_a_flood_is_its_first_lines_and_a_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_log, "SECONDS", 3600.0)  # one flood, however slow the machine
    async with redrive.Redrive(tmp_path / "jobs.db") as rd:
        await fail(rd, 70)
        assert len((await rd.dead.list()).jobs) == 70
    lines, numbers = told(caplog)
    assert len([line for line in lines if "attempt 1" in line]) == failure_log.LINES  # what is tried again …
    assert len([line for line in lines if "attempt 2" in line]) == failure_log.LINES  # … and what is buried, apart
    assert [re.match(r"\d+", line)[0] for line in numbers] == ["50", "50"]  # type: ignore[index]
    assert all("parse" in line and "ValueError: not possible" in line for line in numbers)
    assert {record.levelname for record in caplog.records if record.name == "redrive.attempt"} == {"WARNING"}


async def test_after_a_while_the_lines_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_log, "SECONDS", 0.0)
    async with redrive.Redrive(tmp_path / "jobs.db") as rd:
        await fail(rd, 70)
    lines, numbers = told(caplog)
    assert len(lines) == 140
    assert not numbers


async def test_a_few_failures_are_all_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with redrive.Redrive(tmp_path / "jobs.db") as rd:
        await fail(rd, 3)
    lines, numbers = told(caplog)
    assert len(lines) == 6
    assert not numbers


SECRET = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456"


def test_an_exception_without_secrets_is_logged_itself_and_one_with_a_secret_by_a_masked_twin() -> None:
    plain, leaking = raised(ValueError("no stone")), raised(ValueError(SECRET))
    assert make_loggable(plain, capture(plain)) is plain
    twin = make_loggable(leaking, capture(leaking))
    assert twin is not leaking and type(twin).__name__ == "ValueError"
    assert SECRET not in "".join(traceback.format_exception(twin))
    assert twin.__traceback__ is leaking.__traceback__


def test_the_twin_keeps_the_chain_of_causes() -> None:
    inner = raised(KeyError(SECRET))
    outer = RuntimeError("outer")
    outer.__cause__ = inner
    twin = make_loggable(outer, capture(outer))
    assert twin is not None and twin.__cause__ is not None
    assert type(twin.__cause__).__name__ == "KeyError" and SECRET not in str(twin.__cause__)


def test_an_exception_that_hurts_its_reader_hurts_no_log() -> None:
    class Spiteful(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    error = raised(Spiteful())
    logged = make_loggable(error, capture_name(error))
    assert "Spiteful" in "".join(traceback.format_exception(logged))


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught
