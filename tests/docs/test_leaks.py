"""The command with which a reader looks for lost work finds every kind of place that loses it."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

SECONDS = 30
KINDS = 15
SAMPLE = """\
import asyncio
import contextlib
import functools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)
pool = ThreadPoolExecutor()


async def send(outcome: str) -> None: ...


def post(outcome: str) -> None: ...


async def web(background, app, loop, celery_task, outcome):
    asyncio.create_task(send(outcome))  # leak 1: the task dies with the process, its exception is not read
    asyncio.ensure_future(send(outcome))  # leak 2: the same, in older words
    background.add_task(post, outcome)  # leak 3: BackgroundTasks run after the answer, in memory
    loop.run_in_executor(None, post, outcome)  # leak 4: a future that is not awaited
    threading.Thread(target=post, args=(outcome,), daemon=True).start()  # leak 5: ends with the process
    pool.submit(post, outcome)  # leak 6: a future that is not read
    loop.call_soon(post, outcome)  # leak 7: an exception goes to the loop's handler
    loop.call_later(60, post, outcome)  # leak 8: a timer that no restart remembers
    celery_task.delay(outcome)  # leak 9: a result that is not read; a broker may drop it
    await asyncio.gather(send("a"), send("b"), return_exceptions=True)  # leak 10: exceptions as values, not read
    await asyncio.shield(send(outcome))  # leak 11: cancelled, it goes on without its caller


async def swallowed(outcome):
    try:
        await send(outcome)
    except Exception:  # leak 12: caught, and not said
        pass
    try:
        await send(outcome)
    except:  # leak 13: bare, and it swallows the cancellation, too
        log.debug("did not work")
    with contextlib.suppress(Exception):  # leak 14: the same as a context manager
        await send(outcome)


def overridden(outcome):
    try:
        post(outcome)
    finally:
        return True  # leak 15: a return in `finally` drops the exception


def fire_and_forget(function):
    @functools.wraps(function)
    def started(*args):
        asyncio.get_running_loop().create_task(function(*args))  # leak 1

    return started


async def more(outcome, log_error, loop):
    for each in outcome:
        try:
            await send(each)
        except (ValueError, Exception) as error:  # leak 12: and goes on
            log_error(error)
            continue
    asyncio.run_coroutine_threadsafe(send(outcome), loop)  # leak 4
    threading.Timer(5, post, args=(outcome,)).start()  # leak 8
    post.apply_async((outcome,))  # leak 9
    waiting = asyncio.Queue()
    waiting.put_nowait(outcome)  # leak 3: a queue in memory
"""
"""Code as it is found in the wild; every line that loses work says so. It is read by grep, never run."""


def command() -> str:
    """What the page gives to be typed."""
    page = ROOT / "docs" / "howto" / "from-create-task.md"
    (block,) = [block.text for block in blocks(page) if block.language == "sh" and block.text.startswith("grep ")]
    return block


def found_by(typed: str, folder: Path) -> set[int]:
    """The lines of the sample that the command prints, by number."""
    ran = subprocess.run(
        ["bash", "-c", typed], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.stderr == ""
    return {int(number) for number in re.findall(r"^\./wild\.py[:-](\d+)[:-]", ran.stdout, re.MULTILINE)}


@pytest.mark.behaviour("H-6d")
def test_the_documented_command_finds_every_kind_of_lost_work(tmp_path: Path) -> None:
    (tmp_path / "wild.py").write_text(SAMPLE, "utf-8")
    (tmp_path / "notes.txt").write_text(SAMPLE, "utf-8")
    lines = dict(enumerate(SAMPLE.splitlines(), start=1))
    marked = {number for number, line in lines.items() if "# leak " in line}
    kinds = {int(kind) for line in lines.values() for kind in re.findall(r"# leak (\d+)", line)}
    assert kinds == set(range(1, KINDS + 1))
    found = found_by(command(), tmp_path)
    assert [lines[number] for number in sorted(marked - found)] == [], "not found"
    assert [lines[number] for number in sorted(found - marked)] == [], "found, and no leak"


def test_a_command_that_finds_less_is_noticed(tmp_path: Path) -> None:
    """The one that the page gave before found four kinds."""
    (tmp_path / "wild.py").write_text(SAMPLE, "utf-8")
    before = r"grep -rnE 'create_task\(|ensure_future\(|add_task\(|except Exception: *pass' --include='*.py' ."
    assert len(found_by(before, tmp_path)) < KINDS
