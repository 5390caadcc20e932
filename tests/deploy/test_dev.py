"""`./dev test` brings the browser where it may, and goes on where it may not; it does two things at a time."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("date", "tail", "env", "sh", "touch")
SUCCEEDS = 'echo "$@" >>"$CALLS"'
STALE = f'{SUCCEEDS}; [ "$1" = update ] && touch "$CALLS.updated"; [ -e "$CALLS.updated" ]'
FAILS = f"{SUCCEEDS}; echo 'E: no network' >&2; exit 100"
ONLY_CHROMIUM = f'{SUCCEEDS}; [ "$4" = chromium ]'
INSTALL = "install -y --no-install-recommends chromium"
SHELL = f"{INSTALL}-headless-shell"


def functions() -> str:
    """The part of the script that is about the browser, and what it says with."""
    script = (ROOT / "dev").read_text("utf-8")
    said = re.search(r"^seconds\(\).*?^done_in\(\)[^\n]*$", script, re.MULTILINE | re.DOTALL)
    about = re.search(r"^has_chromium\(\).*?^(?=# ---- the commands)", script, re.MULTILINE | re.DOTALL)
    assert said is not None and about is not None
    return f"set -eu\nlog=$CALLS.log\n{said[0]}\n{about[0]}\nneed_chromium\necho went on\n"


def stub(folder: Path, name: str, does: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{does}\n", "utf-8")
    file.chmod(0o755)


def run(tmp_path: Path, **stubs: str) -> tuple[list[str], str]:
    """With these commands and no others: what apt-get was asked for, and what was said."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    for name, does in stubs.items():
        stub(folder, name.replace("_", "-"), does)
    calls = tmp_path / "calls"
    ran = subprocess.run(
        [shutil.which("sh") or "sh", "-c", functions()],
        env={"PATH": str(folder), "CALLS": str(calls)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0 and ran.stdout.endswith("went on\n"), ran.stderr
    return calls.read_text("utf-8").splitlines() if calls.exists() else [], ran.stderr


def test_it_is_installed_where_it_is_missing(tmp_path: Path) -> None:
    calls, said = run(tmp_path, id="echo 0", apt_get=SUCCEEDS)
    assert calls == [SHELL]
    assert "setup: chromium" in said


def test_the_lists_are_renewed_where_they_are_stale(tmp_path: Path) -> None:
    calls, _ = run(tmp_path, id="echo 0", apt_get=STALE)
    assert calls == [SHELL, "update", SHELL]


def test_where_the_one_without_windows_is_not_to_be_had_the_other_is_installed(tmp_path: Path) -> None:
    calls, said = run(tmp_path, id="echo 0", apt_get=ONLY_CHROMIUM)
    assert calls == [SHELL, "update", INSTALL]
    assert "setup: chromium" in said and "could not" not in said


@pytest.mark.parametrize(
    "stubs",
    [
        {"id": "echo 0", "apt_get": SUCCEEDS, "chromium": ":"},
        {"id": "echo 0", "apt_get": SUCCEEDS, "chromium_headless_shell": ":"},
        {"id": "echo 1000", "apt_get": SUCCEEDS},
        {"id": "echo 0"},
    ],
    ids=["it is there", "it is there without windows", "not root", "no apt-get"],
)
def test_nothing_is_installed_where_it_need_not_or_may_not(tmp_path: Path, stubs: dict[str, str]) -> None:
    assert run(tmp_path, **stubs) == ([], "")


def test_a_failure_is_told_and_the_other_tests_run(tmp_path: Path) -> None:
    calls, said = run(tmp_path, id="echo 0", apt_get=FAILS)
    assert calls == [SHELL, "update", INSTALL, "update"]
    assert "E: no network" in said and "could not install chromium" in said


# ---- what runs in the background


def beside(then: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """The part of the script that runs something in the background, and then this."""
    script = (ROOT / "dev").read_text("utf-8")
    head = re.search(r"^log=\$\(mktemp\).*?^trap 'exit 130'[^\n]*$", script, re.MULTILINE | re.DOTALL)
    about = re.search(r"^begin\(\).*?^(?=command=)", script, re.MULTILINE | re.DOTALL)
    assert head is not None and about is not None
    text = f"set -eu\n{head[0]}\n{about[0]}\n{then}\n"
    shell = shutil.which("dash") or "sh"
    return subprocess.run(
        [shell, "-c", text], env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_ran_in_the_background_is_told_when_it_is_waited_for() -> None:
    done = beside("begin sh -c 'echo made; echo a warning >&2'; echo meanwhile; finish; echo went on")
    assert (done.returncode, done.stdout, done.stderr) == (0, "meanwhile\nwent on\n", "made\na warning\n")


def test_a_failure_in_the_background_is_told_and_is_one() -> None:
    done = beside("begin sh -c 'echo no network; exit 7'; finish || echo \"ended with $?\"")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended with 7\n", "no network\n")


FORGETS = """shift
exec setsid sh -c 'trap "exit 143" TERM; "$@" & wait' sh "$@"
"""
"""A `timeout` that is told to end when it has started the program and does not know it yet: it ends alone."""


@pytest.mark.parametrize("stubs", [{}, {"timeout": FORGETS}], ids=["later", "at once"])
def test_what_runs_in_the_background_ends_with_the_script(tmp_path: Path, stubs: dict[str, str]) -> None:
    """Also what it started itself: nobody holds the pipe any more."""
    for name, does in stubs.items():
        stub(tmp_path, name, does)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as held:
        begun = f"begin sh -c '(echo begun; exec sleep 1000) >{pipe} & wait'"
        done = beside(f"{begun}; read -r _ <{pipe}; exit 3", path=f"{tmp_path}:{os.environ['PATH']}")
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
        os.set_blocking(held.fileno(), True)
        assert held.read() == b""


def test_without_timeout_nothing_runs_in_the_background(tmp_path: Path) -> None:
    for tool in ("mktemp", "rm"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = beside('begin echo; echo "[$beside]"; finish; echo went on', path=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\nwent on\n", "")


def test_the_script_is_plain_sh() -> None:
    shell = shutil.which("dash") or shutil.which("sh")
    assert shell is not None
    checked = subprocess.run([shell, "-n", str(ROOT / "dev")], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    assert os.access(ROOT / "dev", os.X_OK)
