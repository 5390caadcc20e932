"""Types the console blocks of a page into a shell and compares what is answered with what the page says.

python -m tools.terminal            types the terminal half of docs/walk.md, on a demo of its own
python -m tools.terminal --write    and writes what was answered into the page

README.md is typed by tests/docs/test_readme.py: its servers must be waited for.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WALK = ROOT / "docs" / "walk.md"
SECONDS = 30.0
_PROMPT = "--- next ---"
_BLOCK = re.compile(r"^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\$ (?P<line>[^\n]*)\n(?P<answer>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_ID = re.compile(r"\b[0-9a-f]{8}\b")


class Step(NamedTuple):
    """A line that a page types, and what the page says is answered."""

    line: str
    answer: str


def steps(page: Path) -> list[Step]:
    """Everything that a page types into a terminal, in its order."""
    text = "".join(block["text"] for block in _BLOCK.finditer(page.read_text("utf-8")))
    return [Step(step["line"], step["answer"]) for step in _STEP.finditer(text)]


def alike(text: str) -> list[list[str]]:
    """Words, line by line, without what differs from run to run: ids, times, workers."""
    text = re.sub(r"\b[0-9a-f]{8}\b|\b[0-9a-f]{32}\b", "ID", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"TIME, \S+-\d+-[0-9a-f]{6}\b", "TIME, WORKER", text)
    text = re.sub(r"\b(\d+ (s|min) ago|now)\b", "WHEN", text)
    text = re.sub(r"\bin (\d\d min|1 h)\b", "SOON", text)
    return [line.split() for line in text.strip().splitlines()]


class Shell:
    """One session of bash: a line is typed, and what it prints is read up to the prompt."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        with (folder / "stderr.log").open("wb") as log:
            self._bash = subprocess.Popen(
                ["bash"], cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip

    def type(self, line: str) -> str:
        """Type a line and return what it prints."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{line}\nprintf '\\n{_PROMPT}\\n'\n")
        self._bash.stdin.flush()
        return "".join(iter(self._bash.stdout.readline, _PROMPT + "\n")).removesuffix("\n")

    def close(self) -> None:
        """End bash and whatever it started."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait(SECONDS)
        for pipe in (self._bash.stdin, self._bash.stdout):
            if pipe is not None:
                pipe.close()


def environment(folder: Path) -> dict[str, str]:
    """A user's first day: nothing of ours is set, and `redrive` is the one of this interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder), "PATH": path}


class Walked(NamedTuple):
    """What the demo said, and what was answered to each line of the walk."""

    demo: str
    answers: list[str]


def walk(folder: Path) -> Walked:
    """Run the demo, export what it says, and type the terminal half of the walk."""
    shell = Shell(folder, environment(folder))
    try:
        demo = shell.type("redrive demo")  # this is what ./dev demo runs
        (export,) = re.findall(r"^ *(export REDRIVE_URL=\S+)$", demo, re.MULTILINE)
        shell.type(export)
        return Walked(demo, _answers(shell, steps(WALK)))
    finally:
        shell.close()


def _answers(shell: Shell, typed: list[Step]) -> list[str]:
    """Type each line. An id that the page got from a list is the one that this list has."""
    ids: dict[str, str] = {}
    answers = []
    for line, said in typed:
        answers.append(shell.type(_ID.sub(lambda found: ids.get(found[0], found[0]), line)))
        if "dead list" in line:
            ids.update(zip(_ID.findall(said), _ID.findall(answers[-1]), strict=False))
    return answers


def written(page: str, answers: list[str]) -> str:
    """The page with these answers."""
    left = iter(answers)

    def answer(block: re.Match[str]) -> str:
        return "```console\n" + _STEP.sub(lambda step: f"$ {step['line']}\n{next(left)}", block["text"]) + "```"

    return _BLOCK.sub(answer, page)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = walk(Path(folder))
    if "--write" in sys.argv[1:]:
        WALK.write_text(written(WALK.read_text("utf-8"), found.answers), "utf-8")
        return
    wrong = [
        f"$ {step.line}\n{answer}"
        for step, answer in zip(steps(WALK), found.answers, strict=True)
        if alike(answer) != alike(step.answer)
    ]
    if wrong:
        raise SystemExit("docs/walk.md says something else:\n\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
