"""Starting: fast, and help everywhere."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

import redrive
from redrive.doors.cli import cli
from tests.cli.shell import Shell

OPTIONS = {
    "demo": ("--file", "--jobs", "--plain"),
    "serve": ("--host", "--port", "--concurrency", "--queues", "--grace", "--no-worker", "--no-auth", "--allow-host",
              "--open", "--url", "--json"),
    "hub": ("--url", "--json"),
    "move": ("--from", "--to", "--undo", "--json"),
    "relay": ("--from", "--once", "--ddl", "--url", "--json"),
    "worker": ("--processes", "--concurrency", "--queues", "--agents", "--drain", "--reload", "--grace", "--url",
               "--json"),
    "fleet init": ("--dlq-limit", "--agent", "--url", "--json"),
    "fleet status": ("--url", "--json"),
    "fleet doctor": ("--url", "--json"),
    "fleet resume": ("--url", "--json"),
    "call": ("--timeout", "--key", "--session", "--url", "--json"),
    "submit": ("--key", "--session", "--url", "--json"),
    "retry": ("--timeout", "--url", "--json"),
    "operations": ("--url", "--json"),
    "enqueue": ("--queue", "--delay", "--run-at", "--priority", "--key", "--session", "--agent", "--model",
                "--max-attempts", "--url", "--json"),
    "cancel": ("--why", "--url", "--json"),
    "approve": ("--why", "--url", "--json"),
    "reject": ("--why", "--url", "--json"),
    "status": ("--secrets", "--url", "--json"),
    "jobs": ("--state", "--queue", "--task", "--agent", "--session", "--limit", "--cursor", "--url", "--json"),
    "dead list": ("--queue", "--task", "--agent", "--session", "--lane", "--error-class", "--fingerprint", "--because",
                  "--limit", "--cursor", "--url", "--json"),
    "dead show": ("--secrets", "--url", "--json"),
    "dead edit": ("--repeat", "--dry-run", "--why", "--url", "--json"),
    "dead diff": ("--url", "--json"),
    "dead lane": ("--group", "--queue", "--all", "--yes", "--why", "--url", "--json"),
    "dead reassign": ("--to", "--group", "--queue", "--all", "--yes", "--why", "--url", "--json"),
    "dead defer": ("--to", "--for", "--group", "--queue", "--all", "--yes", "--why", "--url", "--json"),
    "dead recall": ("--owner", "--queue", "--all", "--yes", "--why", "--url", "--json"),
    "dead note": ("--group", "--queue", "--all", "--yes", "--url", "--json"),
    "dead acts": ("--limit", "--url", "--json"),
    "dead undo": ("--why", "--url", "--json"),
    "dead groups": ("--queue", "--task", "--status", "--limit", "--url", "--json"),
    "dead group": ("--url", "--json"),
    "dead resolve-group": ("--in-version", "--why", "--url", "--json"),
    "dead ignore-group": ("--until", "--days", "--rate", "--count", "--why", "--url", "--json"),
    "dead reopen-group": ("--why", "--url", "--json"),
    "completed": ("--queue", "--task", "--since", "--append", "--overwrite", "--url", "--json"),
    "dead import": ("--map", "--completed", "--queue", "--task", "--waiting", "--aside", "--dry-run", "--follow",
                    "--why", "--url", "--json"),
    "dead export": ("--queue", "--task", "--agent", "--session", "--lane", "--error-class", "--fingerprint",
                    "--because", "--append", "--overwrite", "--secrets", "--url", "--json"),
    "dead redrive": ("--queue", "--task", "--group", "--error-class", "--all", "--dry-run", "--canary", "--pass-rate",
                     "--rate", "--detach", "--yes", "--why", "--url", "--json"),
    "dead discard": ("--group", "--queue", "--all", "--yes", "--why", "--url", "--json"),
    "dead restore": ("--group", "--queue", "--all", "--yes", "--why", "--url", "--json"),
    "dead resolve": ("--landed", "--not-landed", "--why", "--result", "--url", "--json"),
    "dead purge": ("--queue", "--all", "--yes", "--why", "--url", "--json"),
    "redrives list": ("--limit", "--url", "--json"),
    "redrives show": ("--items", "--status", "--limit", "--url", "--json"),
    "redrives follow": ("--url", "--json"),
    "redrives pause": ("--why", "--url", "--json"),
    "redrives resume": ("--canary", "--why", "--url", "--json"),
    "redrives cancel": ("--why", "--url", "--json"),
    "queues": ("--url", "--json"),
    "queues pause": ("--why", "--url", "--json"),
    "queues resume": ("--why", "--url", "--json"),
    "stats": ("--url", "--json"),
    "health": ("--probe", "--url", "--json"),
    "morning": ("--since", "--queue", "--spike", "--notify", "--url", "--json"),
    "report weekly": ("--weeks", "--tz", "--queue", "--task", "--agent", "--notify", "--url", "--json"),
    "report monthly": ("--months", "--tz", "--queue", "--task", "--agent", "--notify", "--url", "--json"),
    "report failures": ("--agent", "--category", "--date", "--since", "--until", "--tz", "--queue", "--task",
                        "--detail", "--error-class", "--limit", "--url", "--json"),
    "report activity": ("--minutes", "--hours", "--queue", "--url", "--json"),
    "report load": ("--hours", "--url", "--json"),
    "top": ("--once", "--url", "--json"),
    "effects": ("--open", "--status", "--limit", "--url", "--json"),
    "breakers": ("--close", "--url", "--json"),
    "workflows": ("--limit", "--url", "--json"),
    "schedules": ("--forget", "--url", "--json"),
    "cycles": ("--url", "--json"),
    "cycles forget": ("--url", "--json"),
    "consent list": ("--url", "--json"),
    "consent grant": ("--agent", "--expires", "--blanket", "--why", "--url", "--json"),
    "consent revoke": ("--url", "--json"),
    "inbox": ("--ack", "--all", "--url", "--json"),
    "mcp": ("--allow-write", "--session", "--http", "--token", "--allow-host", "--url", "--json"),
    "token": ("--rotate", "--link", "--port", "--url", "--json"),
    "token add": ("--role", "--expires", "--link", "--port", "--show", "--url", "--json"),
    "token list": ("--url", "--json"),
    "token revoke": ("--url", "--json"),
    "doctor": ("--full", "--fix", "--url", "--json"),
    "backup": ("--url", "--json"),
    "sql": ("--raw", "--url", "--json"),
    "resolve": ("--landed", "--not-landed", "--why", "--result", "--url", "--json"),
    "erase": ("--session", "--yes", "--url", "--json"),
    "workers": ("--url", "--json"),
    "tasks": ("--url", "--json"),
    "fleet run": ("--roles", "--url"),
    "fleet forget": ("--url", "--json"),
}  # fmt: skip


def leaves(group: click.Group, path: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path}{name}"


def test_the_table_names_every_command() -> None:
    assert set(leaves(cli)) == set(OPTIONS)


@pytest.mark.parametrize("command", OPTIONS)
def test_help_of_every_command_tells_its_options(shell: Shell, command: str) -> None:
    done = shell.here(*command.split(), "--help")
    assert done.status == 0
    for option in OPTIONS[command]:
        assert option in done.out


def groups_of(group: click.Group) -> Iterator[click.Group]:
    yield group
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from groups_of(command)


@pytest.mark.parametrize("group", list(groups_of(cli)), ids=lambda group: str(group.name))
def test_the_line_of_a_command_in_a_list_is_whole_and_says_something(group: click.Group) -> None:
    room = 78 - len("  " * 3) - max(map(len, group.commands))  # as click lays it out in 80 columns
    for name, command in group.commands.items():
        line = command.get_short_help_str(room)
        assert not line.endswith("...") and " " in line, (name, line)


def test_version_and_help(shell: Shell) -> None:
    version = shell.fresh("--version")
    assert (version.status, version.out) == (0, f"redrive {redrive.__version__}\n")
    helped = shell.fresh("--help")
    assert helped.status == 0
    for command in OPTIONS:
        assert command.split()[0] in helped.out


@pytest.mark.parametrize("words", [(), ("dead",)], ids=["redrive", "redrive dead"])
def test_a_group_alone_shows_its_commands(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.here(*words)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"Usage: {' '.join(('redrive', *words))} ")
    assert len(done.out.splitlines()) > 5


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_starting_imports_nothing_heavy(word: str) -> None:
    """What takes its time to import is imported by the commands that use it."""
    code = f"""
import sys
from redrive.doors.cli import cli
try:
    cli.main(["{word}"], prog_name="redrive")
except SystemExit:
    heavy = {{"apsw", "asyncio", "httpx2", "msgspec", "redrive.api.redrive", "rich", "ssl"}} & sys.modules.keys()
    print("heavy:", *sorted(heavy))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "heavy:"
