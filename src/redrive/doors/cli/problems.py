"""What went wrong, in one line, and what to do about it in another. A user never sees a traceback."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import Any, Final, NoReturn

import click

from redrive.doors.cli.layout import folded
from redrive.doors.cli.text import one_line

USER_ERROR: Final = 2
INTERRUPTED: Final = 130
TERMINATED: Final = 143
PAYLOAD_HINT: Final = 'give a JSON object: \'{"name": "value"}\', @file.json, or - to read it from a pipe'


CORRECT: Final = "correct it and try again, or see the command's --help"
LISTED: Final = {"redrive": "redrive redrives list", "act": "redrive dead acts"}
"""Where a person finds the ids of what is looked for by them, by field."""


class Problem(click.ClickException):
    """Something the user can put right."""

    exit_code = USER_ERROR

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Door(click.Group):
    """The group of all commands: whatever they raise leaves as one line, a hint and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a first day, not of the alphabet

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        from redrive.doors.cli.asking import Asked

        asked = Asked()
        try:
            status = super().main(*args, **extra | {"standalone_mode": False, "obj": asked})
        except click.Abort:
            sys.exit(INTERRUPTED)
        except click.ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command; older clicks do the same
                click.echo(error.format_message())
                sys.exit(0)
            _tell(error.format_message(), _usage_hint(error))
        except UnicodeEncodeError:
            if not (foreign := _not_utf8(args)):
                raise
            _tell(f"{foreign!r} is not UTF-8", "write it in UTF-8; `locale` shows what the terminal sends")
        except OSError as error:
            _tell(_named(error), "check the path, its permissions and the space on the disk")
        except Exception as error:
            if not _ours(error):
                raise  # a defect keeps its traceback
            _tell(_said(error), hint_for(error, moves=asked.moves))
        else:
            sys.exit(status)
        sys.exit(USER_ERROR)


def _not_utf8(args: Any) -> str | None:
    """The argument that holds bytes which no text has."""
    said = [str(word) for word in (args[0] if args and args[0] is not None else sys.argv[1:])]
    return next((word for word in said if not word.isascii() and "\\udc" in ascii(word)), None)


def _tell(message: str, hint: str) -> None:
    for line in (f"redrive: {one_line(message)}", f"  hint: {one_line(hint)}"):
        click.echo(folded(line, get_terminal_size().columns) if sys.stderr.isatty() else line, err=True)


def _usage_hint(error: click.ClickException) -> str:
    if isinstance(error, Problem):
        return error.hint
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context else 'redrive'} --help` shows how it is used"


def _named(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


def _ours(error: Exception) -> bool:
    from redrive.errors import RedriveError

    return isinstance(error, RedriveError)


def _said(error: Exception) -> str:
    """Its words; what is looked for by its id is named in them already."""
    problem = getattr(error, "problem", "")
    named = getattr(error, "field", None) in LISTED and not problem.startswith("is ")
    return problem if named else str(error)


def hint_for(error: Exception, *, moves: bool = True) -> str:
    """What to do about an error of redrive; the most specific class that has a hint speaks."""
    if listing := LISTED.get(getattr(error, "field", "")):
        return f"`{listing}` lists them"
    hints = _hints() if moves else _hints() | {"InvalidInput": CORRECT}
    for kind in type(error).__mro__:
        if kind.__name__ in hints:
            return hints[kind.__name__].replace("ID", str(getattr(error, "job_id", ""))[-8:])
    return "`redrive doctor` looks at the database"


def _hints() -> dict[str, str]:
    return {
        "ConfigError": "check --url, the REDRIVE_* variables and redrive.toml",
        "KeyReused": "use a new --key, or send the payload that the key already stands for",
        "InvalidPayload": PAYLOAD_HINT,
        "InvalidInput": f"nothing was changed; {CORRECT}",
        "JobNotFound": "`redrive jobs` lists them; the last 8 characters of an id are enough",
        "IllegalMove": "`redrive status ID` tells its whole story",
        "StaleJob": "look at it with `redrive status ID`, then try again",
        "StoreFull": "free some space, then try again",
        "StoreBusy": "another process is writing for very long; try again",
        "StoreRefused": "`redrive doctor` looks closer; --url chooses another file",
        "StoreUnavailable": "check the path: --url, REDRIVE_URL or redrive.toml choose the database",
        "CommitUnknown": "look with `redrive status`, or repeat it with the same --key",
        "StoreFailed": "check the disk, then try again; `redrive doctor` looks at the database",
    }
