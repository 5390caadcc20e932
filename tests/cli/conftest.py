"""A shell in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, make_shell
from tests.cli.zygote import Zygote
from tests.new_files import copy_template


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One for all tests of this process."""
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def shell(tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    copy_template(monkeypatch)
    made = make_shell(tmp_path, zygote)
    yield made
    made.end_all()
