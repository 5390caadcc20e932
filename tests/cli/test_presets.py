"""What commands show to a fresh user holds no name that the user did not write."""

import re
import textwrap

import pytest

from redrive import PRESETS
from tests.cli.shell import Shell

NAMES = frozenset({*PRESETS, "ceo"}.union(*([*preset.queues, *preset.agents] for preset in PRESETS.values())))
APP = """
    import redrive

    rd = redrive.Redrive()

    @rd.task(max_attempts=1)
    async def write(kind: str) -> dict[str, str]:
        return {"error": "it went wrong", "error_kind": kind}
"""
KINDS = ("network", "contention", "context_overflow", "hallucination_loop", "authority", "bug", "unknown")
COMMANDS = ("queues", "health", "morning", "stats", "dead list", "report load", "doctor")


def names_in(text: str) -> set[str]:
    return NAMES & set(re.findall(r"\w+", text))


@pytest.mark.behaviour("R-0e")
def test_no_command_names_anybody_else(shell: Shell) -> None:
    (shell.folder / "app.py").write_text(textwrap.dedent(APP))
    for kind in KINDS:
        shell.enqueue("write", {"kind": kind})
        shell.enqueue("write", {"kind": kind}, "--agent", "eve")
    shell.drain()
    for command in COMMANDS:
        done = shell.here(*command.split())
        assert done.status in (0, 1), (command, done.err)
        assert names_in(done.out + done.err) == set(), command
    assert len(shell.here("dead", "list", "--json").json["jobs"]) == 2 * len(KINDS)
    assert "write" in shell.here("queues").out
