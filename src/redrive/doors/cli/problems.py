"""What went wrong, in one line, and what to do about it in another. A user never sees a traceback."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import Any, Final, NoReturn

import click

from redrive.doors.cli.layout import folded
from redrive.doors.cli.text import one_line

USER_ERROR: Final = 2
BROKEN: Final = 3
"""The store has stopped itself, or cannot be used: a process manager should start the process again."""
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


class Broken(Problem):
    """The store cannot be used, which is no fault of the command."""

    exit_code = BROKEN


class Door(click.Group):
    """The group of all commands: whatever they raise leaves as one line, a hint and an exit status."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.sections: dict[str, list[str]] = {}
        """The names of the commands by the heading under which the help shows them."""

    def add_to_section(self, title: str, command: click.Command) -> None:
        self.add_command(command)
        self.sections.setdefault(title, []).append(command.name or "")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a first day, not of the alphabet

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, in columns of one width."""
        width = max(map(len, self.commands))
        for title, names in self.sections.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                formatter.write_dl(
                    [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names]
                )

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
            sys.exit(error.exit_code if isinstance(error, Problem) else USER_ERROR)
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
            sys.exit(_status_of(error))
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


def _status_of(error: Exception) -> int:
    from redrive.errors import StoreFailed

    return BROKEN if isinstance(error, StoreFailed) else USER_ERROR


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
        "EffectNotFound": "`redrive effects` lists them",
        "OnceInProgress": "`redrive effects` shows how it stands",
        "IllegalMove": "`redrive status ID` tells its whole story",
        "StaleJob": "look at it with `redrive status ID`, then try again",
        "StoreFull": "free some space, then try again",
        "StoreBusy": "another process is writing for very long; try again",
        "StoreRefused": "`redrive doctor` looks closer; --url chooses another file",
        "StoreUnavailable": "check --url, REDRIVE_URL or redrive.toml: they choose the database or the fleet",
        "CommitUnknown": "look with `redrive status`, or repeat it with the same --key",
        "DatabaseInUse": "close it in the code of your app, and read through rd or `redrive sql`",
        "FleetMoved": "stop this process, and start it where the jobs are now",
        "ReplicaStopped": "`redrive fleet doctor` looks at the fleet; the jobs are in its log",
        "StoreFailed": "check the disk, then try again; `redrive doctor` looks at the database",
    }
