"""The story on the first page is true: killed in the middle, started again, posted once; and the terminal says so."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PYTHON, ROOT, blocks
from tests.docs.test_blocks import environment

SECONDS = 30
README = ROOT / "README.md"
PROMPT = "--- next ---"


def until(happened: Callable[[], bool], what: str) -> None:
    """Look until it has happened; the deadline is for a test that fails."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.02)


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


class Shell:
    """One session in which the README is followed: a line is typed, and what it prints is read up to the prompt."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
        variables = environment(folder) | {"PATH": path, "UVICORN_PORT": str(port)}
        with (folder / "stderr.log").open("wb") as log:
            self._bash = subprocess.Popen(
                ["bash"], cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip

    def type(self, line: str) -> str:
        """What the line prints, but for what the server in the background does."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(
            line.replace("localhost:8000", f"localhost:{self.port}") + f"\nprintf '\\n{PROMPT}\\n'\n"
        )
        self._bash.stdin.flush()
        answer = "".join(iter(self._bash.stdout.readline, PROMPT + "\n")).removesuffix("\n")
        return re.sub(r"INFO:  .*\n", "", answer)

    def close(self) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait(SECONDS)
        for pipe in (self._bash.stdin, self._bash.stdout):
            if pipe is not None:
                pipe.close()


def console() -> list[tuple[str, str]]:
    """What the README types, in its order, and what it says that is answered."""
    text = "".join(block.text for block in blocks(README) if block.language == "console")
    return re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)


def dead_letter_of_the_docs() -> str:
    return next(block.text for block in blocks(ROOT / "docs" / "failures.md") if block.text.startswith("job "))


def alike(text: str) -> list[list[str]]:
    """Words, line by line, without what differs from run to run: ids, times, workers."""
    text = re.sub(r"\b[0-9a-f]{8}\b|\b[0-9a-f]{32}\b", "ID", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"TIME, \S+-\d+-[0-9a-f]{6}\b", "TIME, WORKER", text)
    text = re.sub(r"\b(\d+ s ago|now)\b", "WHEN", text)
    text = re.sub(r"\bin (\d\d min|1 h)\b", "SOON", text)
    return [line.split() for line in text.strip().splitlines()]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


@pytest.fixture
def shell(tmp_path: Path, port: int) -> Iterator[Shell]:
    session = Shell(tmp_path, port)
    try:
        yield session
    finally:
        session.close()


INSTALL = "pip install . fastapi uvicorn; cd examples; "
WAITS: dict[str, Callable[[Shell], bool]] = {
    "curl ": lambda shell: answers(shell.port),
    "sleep 1; kill -9": lambda shell: (shell.folder / "posted.log").exists(),
}
"""What the README gives a second or three; a machine that is busy with other tests may need more."""


def test_its_lines_can_be_followed_one_after_the_other(shell: Shell) -> None:
    """Killed in the middle, started again, posted once; and what cannot heal is a dead letter that comes back."""
    id = "ID"
    for line, expected in console():
        typed = line.removeprefix(INSTALL).replace("7b0c41d2", id)
        if ready := next((wait for begins, wait in WAITS.items() if line.startswith(begins)), None):
            until(lambda: ready(shell), f"what {line!r} needs")
        answer = shell.type(typed)
        if line.startswith(("redrive jobs", "redrive health", "redrive dead list", "cat ")):
            answer = seen(shell, typed, answer, expected)
        if expected and not expected.startswith("[1]"):
            assert alike(answer) == alike(expected), line
        if line == "redrive dead list":
            id = answer.splitlines()[1].split()[0]
            assert alike(shell.type(f"redrive dead show {id}")) == alike(dead_letter_of_the_docs())
    until(lambda: not answers(shell.port), "the last line ends the server")
    assert id != "ID" and any(line.startswith(INSTALL) for line, _ in console())


def seen(shell: Shell, typed: str, answer: str, expected: str) -> str:
    """Looks again, as a reader does where something is still under way."""
    deadline = time.monotonic() + SECONDS
    while alike(answer) != alike(expected) and time.monotonic() < deadline:
        time.sleep(0.02)
        answer = shell.type(typed)
    return answer


def test_only_one_server_runs_at_a_time() -> None:
    """Each that is started in the background is ended before the next is, and the last at the end."""
    running = 0
    for line, _ in console():
        running -= "kill " in line
        running += "uvicorn fastapi_app:app &" in line
        assert running in (0, 1), line
    assert running == 0


def test_the_first_page_is_short_and_names_the_commands() -> None:
    text = README.read_text("utf-8")
    assert "./dev demo" in text and "./dev test" in text
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    assert not re.search(r"\b(lane|fingerprint|NATS|consent|exactly-once)\b", text)
    assert os.access(ROOT / "dev", os.X_OK)
