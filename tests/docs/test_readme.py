"""The story on the first page is true: killed in the middle, started again, posted once; and the terminal says so."""

import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, PYTHON, ROOT, blocks
from tests.docs.test_blocks import environment
from tools.terminal import Shell, Step, alike, steps

SECONDS = 30
README = ROOT / "README.md"


def until(happened: Callable[[], bool], what: str) -> None:
    """Look until it has happened; the deadline is for a test that fails."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.02)


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


class Session(Shell):
    """One session in which the README is followed, on a port of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
        super().__init__(folder, environment(folder) | {"PATH": path, "UVICORN_PORT": str(port)})

    def type(self, line: str) -> str:
        """What the line prints, but for what the server in the background does."""
        answer = super().type(line.replace("localhost:8000", f"localhost:{self.port}"))
        return re.sub(r"INFO:  .*\n", "", answer)


def console() -> list[Step]:
    """What the README types, in its order, and what it says that is answered."""
    return steps(README)


def dead_letter_of_the_docs() -> str:
    return next(block.text for block in blocks(ROOT / "docs" / "failures.md") if block.text.startswith("job "))


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


@pytest.fixture
def shell(tmp_path: Path, port: int) -> Iterator[Session]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("*.db*", "*.log"))
    session = Session(tmp_path, port)
    try:
        yield session
    finally:
        session.close()


INSTALL = re.compile(r"^pip install [^;]*(; )?")
"""Not typed: what it installs is there. `./dev build` installs into empty environments."""
WAITS: dict[str, Callable[[Session], bool]] = {
    "curl ": lambda shell: answers(shell.port),
    "sleep 1; kill -9": lambda shell: (shell.folder / "examples" / "posted.log").exists(),
}
"""What the README gives a second or three; a machine that is busy with other tests may need more."""


@pytest.mark.behaviour("H-6f")
def test_its_lines_can_be_followed_one_after_the_other(shell: Session) -> None:
    """Killed in the middle, started again, posted once; and what cannot heal is a dead letter that comes back."""
    id = "ID"
    for line, expected in console():
        typed = INSTALL.sub("", line).replace("7b0c41d2", id)
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
    assert id != "ID"


def test_it_says_how_to_install_what_is_there_today() -> None:
    """Nothing is on an index yet: a page installs from a clone or a wheel, or adds an extra to what is installed."""
    assert [line for line, _ in console() if INSTALL.match(line)] == [
        "pip install .",
        "pip install fastapi uvicorn; export REDRIVE_URL=jobs.db",
    ]
    bare = re.compile(r"pip install (-U |--upgrade )?redrive\b(?!\[)")
    assert [page.name for page in PAGES if bare.search(page.read_text("utf-8"))] == []


def seen(shell: Session, typed: str, answer: str, expected: str) -> str:
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
    first, second = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    assert len([line for line in second.splitlines() if line.strip()]) <= 15
    assert text.index(first) < text.index("overview.png") < text.index("kill -9 $!")
    assert not re.search(r"\b(lane|fingerprint|NATS|consent|exactly-once)\b", text)
    assert os.access(ROOT / "dev", os.X_OK)
