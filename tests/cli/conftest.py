"""A shell in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, make_shell
from tests.cli.zygote import start_zygote
from tests.new_files import copy_template


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    copy_template(monkeypatch)
    made = make_shell(tmp_path, start_zygote())
    yield made
    made.end_all()
