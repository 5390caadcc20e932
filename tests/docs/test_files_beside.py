"""What lies beside a database stays out of repositories: the token is a secret, the spool holds payloads."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE = ["jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-token", "jobs.db-live", "jobs.db-spool"]


@pytest.mark.behaviour("T-19f")
@pytest.mark.parametrize("name", BESIDE)
def test_git_ignores_what_lies_beside_a_database(name: str) -> None:
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert any(fnmatchcase(name, line) for line in ignored), name


@pytest.mark.behaviour("T-19f")
@pytest.mark.parametrize("name", BESIDE[3:])
@pytest.mark.parametrize("page", ["docs/concepts.md", "docs/howto/deploy.md"])
def test_the_documentation_names_them(page: str, name: str) -> None:
    assert f"`*{name.removeprefix('jobs')}`" in (ROOT / page).read_text("utf-8")
