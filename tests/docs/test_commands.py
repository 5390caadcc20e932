"""Every `redrive …` shown in the docs is a command with these options."""

import shlex
from pathlib import Path

import click
import pytest

from redrive.doors.cli import cli
from tests.docs.pages import PAGES, ROOT, command_lines

BARE = ("MissingParameter", "NoArgsIsHelpError")
"""What a mere name may lack: arguments, or the command of a group."""
CHAINED = ("|", "&&", "||", ";", "&", ">", "#")


def words(line: str) -> list[str]:
    """The words of the first command of a line, after `redrive`."""
    found = shlex.split(line, comments=True)[1:]
    end = next((place for place, word in enumerate(found) if word in CHAINED), len(found))
    return found[:end]


def parse(arguments: list[str]) -> None:
    """As far as click goes before anything is done; a command or an option that is not there raises."""
    command: click.Command = cli
    context: click.Context | None = None
    while True:
        context = command.make_context(command.name, list(arguments), parent=context)
        first = context._protected_args if hasattr(context, "_protected_args") else context.protected_args  # click 8.1
        rest = [*first, *context.args]
        if not isinstance(command, click.Group) or not rest:
            return
        _, following, arguments = command.resolve_command(context, rest)
        assert following is not None
        command = following


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_exists(page: Path) -> None:
    for line, typed in command_lines(page):
        try:
            parse(words(line))
        except click.exceptions.Exit:
            continue  # --help, --version
        except click.ClickException as error:
            if typed or type(error).__name__ not in BARE:
                pytest.fail(f"{page.name}: `{line}`: {error.format_message()}")


def test_commands_are_found_at_all() -> None:
    assert sum(1 for page in PAGES for _ in command_lines(page)) > 30


@pytest.mark.parametrize("line", ["redrive fly", "redrive dead list --nonsense", "redrive jobs --limit many"])
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises(click.ClickException):
        parse(words(line))
