"""A shell in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, make_shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    made = make_shell(tmp_path)
    yield made
    made.end_all()
