"""The wheel and the source archive: they hold what users need, and the command runs from the wheel alone."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import DEADLINE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, timeout=120,
        capture_output=True,
    )  # fmt: skip
    return folder


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "src/redrive"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=DEADLINE
    ).stdout.splitlines()
    assert names == {name.removeprefix("src/") for name in tracked}


def test_the_command_runs_from_the_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "redrive", "--version"], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("redrive "), done.stderr


def test_the_source_archive_has_what_builds_and_tests_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "dev", "src/redrive/__init__.py", "tests/conftest.py"} <= names
