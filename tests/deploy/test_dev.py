"""`./dev test` brings the browser where it may, and goes on where it may not."""

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
INSTALL = "install -y --no-install-recommends chromium"


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
    assert calls == [INSTALL]
    assert "setup: chromium" in said


def test_the_lists_are_renewed_where_they_are_stale(tmp_path: Path) -> None:
    calls, _ = run(tmp_path, id="echo 0", apt_get=STALE)
    assert calls == [INSTALL, "update", INSTALL]


@pytest.mark.parametrize(
    "stubs",
    [
        {"id": "echo 0", "apt_get": SUCCEEDS, "chromium": ":"},
        {"id": "echo 1000", "apt_get": SUCCEEDS},
        {"id": "echo 0"},
    ],
    ids=["it is there", "not root", "no apt-get"],
)
def test_nothing_is_installed_where_it_need_not_or_may_not(tmp_path: Path, stubs: dict[str, str]) -> None:
    assert run(tmp_path, **stubs) == ([], "")


def test_a_failure_is_told_and_the_other_tests_run(tmp_path: Path) -> None:
    calls, said = run(tmp_path, id="echo 0", apt_get=FAILS)
    assert calls == [INSTALL, "update"]
    assert "E: no network" in said and "could not install chromium" in said


def test_the_script_is_plain_sh() -> None:
    shell = shutil.which("dash") or shutil.which("sh")
    assert shell is not None
    checked = subprocess.run([shell, "-n", str(ROOT / "dev")], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    assert os.access(ROOT / "dev", os.X_OK)
