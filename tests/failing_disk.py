"""A disk whose next sync fails once, when a file says so: for real processes, by one line in their app.

from tests.failing_disk import fail_when_told
fail_when_told("/tmp/x/fail-sync")
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.chaos.vfs import FaultVFS, FileKind, Operation, installed

_kept = ExitStack()
"""Until the process ends."""


class FailsWhenTold(FaultVFS):
    """The next sync fails while the file is there, and takes the file away."""

    def __init__(self, trigger: Path) -> None:
        super().__init__(None, operations=(Operation.SYNC,))
        self._trigger = trigger

    def strikes(self, operation: Operation, kind: FileKind, path: str) -> bool:
        if operation is not Operation.SYNC or kind is not FileKind.WAL or not self._trigger.exists():
            return False
        self._trigger.unlink()
        return True


def fail_when_told(trigger: str | Path) -> None:
    """Every store that this process opens from now on is on such a disk."""
    _kept.enter_context(installed(FailsWhenTold(Path(trigger))))
