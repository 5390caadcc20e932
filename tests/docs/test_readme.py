"""The story on the first page is true: killed in the middle, started again, posted once; and the terminal says so."""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import PYTHON, REDRIVE, ROOT, blocks
from tests.docs.test_blocks import environment

SECONDS = 30
README = ROOT / "README.md"


def until(happened: Callable[[], bool], what: str) -> None:
    """Look until it has happened; the deadline is for a test that fails."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.02)


@contextmanager
def server(folder: Path, port: int, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """The README's application, as `uvicorn fastapi_app:app` starts it."""
    words = [PYTHON, "-m", "uvicorn", "fastapi_app:app", "--port", str(port), "--log-level", "warning"]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment(folder) | variables, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or answers(port), "the server answers")
        assert process.poll() is None, (folder / "server.log").read_text("utf-8")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def post(port: int, slug: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/articles/{slug}?draft=hello", method="POST")
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 202


def redrive(folder: Path, *words: str) -> str:
    """What the command prints."""
    variables = environment(folder) | {"REDRIVE_URL": "jobs.db"}
    return subprocess.run(
        [REDRIVE, *words], cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=SECONDS
    ).stdout


def shown(command: str) -> str:
    """What the README says that a command prints."""
    console = "".join(block.text for block in blocks(README) if block.language == "console")
    found = re.search(rf"^\$ {re.escape(command)}[^\n]*\n(?P<answer>(?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    assert found is not None, f"the README does not show {command}"
    return found["answer"]


def dead_letter_of_the_docs() -> str:
    return next(block.text for block in blocks(ROOT / "docs" / "failures.md") if block.text.startswith("job "))


def alike(text: str) -> list[list[str]]:
    """Words, line by line, without what differs from run to run: ids, times, workers."""
    text = re.sub(r"\b[0-9a-f]{8}\b|\b[0-9a-f]{32}\b", "ID", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"TIME, \S+-\d+-[0-9a-f]{6}\b", "TIME, WORKER", text)
    text = re.sub(r"\b(\d+ s ago|now)\b", "WHEN", text)
    return [line.split() for line in text.strip().splitlines()]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


def test_killed_in_the_middle_started_again_posted_once(tmp_path: Path, port: int) -> None:
    posted = tmp_path / "posted.log"
    with server(tmp_path, port, CMS_SECONDS=str(10 * SECONDS)) as first:
        post(port, "q3-report")
        until(posted.exists, "the article is online")
        first.kill()
        first.wait(SECONDS)
    assert alike(redrive(tmp_path, "jobs"))[1][1] == "running"
    with server(tmp_path, port):
        until(lambda: " done " in redrive(tmp_path, "jobs"), "the job is done")
    assert posted.read_text("utf-8") == shown("cat posted.log") == "q3-report hello\n"
    assert alike(redrive(tmp_path, "jobs")) == alike(shown("redrive jobs"))


def test_what_cannot_heal_is_a_dead_letter_that_comes_back(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port, CMS_TOKEN="expired"):
        post(port, "q3-report")
        until(lambda: " dead " in redrive(tmp_path, "jobs"), "the job is dead")
    assert alike(redrive(tmp_path, "health")) == alike(shown("redrive health"))
    listed = redrive(tmp_path, "dead", "list")
    assert alike(listed) == alike(shown("redrive dead list"))
    id = listed.splitlines()[1].split()[0]
    assert alike(redrive(tmp_path, "dead", "show", id)) == alike(dead_letter_of_the_docs())
    assert alike(redrive(tmp_path, "dead", "redrive", id, "--why", "new token")) == alike(shown("redrive dead redrive"))
    with server(tmp_path, port):
        until(lambda: " done " in redrive(tmp_path, "jobs"), "the job is done")
    assert (tmp_path / "posted.log").read_text("utf-8") == "q3-report hello\n"


def test_the_first_page_is_short_and_names_the_commands() -> None:
    text = README.read_text("utf-8")
    assert "./dev demo" in text and "./dev test" in text
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    assert not re.search(r"\b(lane|fingerprint|NATS|consent|exactly-once)\b", text)
    assert os.access(ROOT / "dev", os.X_OK)
