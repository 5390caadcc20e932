"""Turns errors into one line that says what is wrong, one that says what to do, and an exit status."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import Any, Final, NoReturn

import click

from redrive.doors.cli.text import fold_text, one_line

USER_ERROR: Final = 2
BROKEN: Final = 3
"""The store has stopped itself or cannot be used: a process manager should start the process again."""
INTERRUPTED: Final = 130
TERMINATED: Final = 143
PAYLOAD_HINT: Final = 'give a JSON object: \'{"name": "value"}\', @file.json, or - to read it from a pipe'
CORRECT: Final = "correct it and try again, or see the command's --help"
_GROUPS: Final = "`redrive dead groups` lists them; a unique beginning is enough"
ID_HINTS: Final = {
    "redrive": "`redrive redrives list` lists them",
    "act": "`redrive dead acts` lists them",
    "fingerprint": _GROUPS,
    "group": _GROUPS,
}
"""The hint about an id that is not known, by the name of its field."""
HINTS: Final = {
    "ConfigError": "check --url, the REDRIVE_* variables and redrive.toml",
    "KeyReused": "use a new --key, or send the payload that the key already stands for",
    "InvalidPayload": PAYLOAD_HINT,
    "InvalidInput": f"nothing was changed; {CORRECT}",
    "JobNotFound": "`redrive jobs` lists them; the last 8 characters of an id are enough",
    "EffectNotFound": "`redrive effects` lists them",
    "OnceInProgress": "`redrive effects` shows how it stands",
    "IllegalMove": "`redrive status ID` shows its timeline",
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
"""What to do about an error, by the name of its class, so that errors are not imported before they are needed."""


class Refusal(click.ClickException):
    """An error that the user can correct."""

    exit_code = USER_ERROR

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Broken(Refusal):
    """The store cannot be used, which is not a mistake in the command."""

    exit_code = BROKEN


def exit_with(error: Exception, words: Any, *, moves: bool) -> NoReturn:
    """Print an error and its hint, and exit with its status. A defect of redrive keeps its traceback."""
    from redrive.errors import RedriveError, StoreFailed

    status = USER_ERROR
    if isinstance(error, click.Abort):
        sys.exit(INTERRUPTED)
    elif isinstance(error, click.ClickException):
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command; older clicks exit with 0, too
            click.echo(error.format_message())
            sys.exit(0)
        status = error.exit_code if isinstance(error, Refusal) else USER_ERROR
        _print_problem(error.format_message(), _usage_hint(error))
    elif isinstance(error, UnicodeEncodeError) and (word := _find_not_utf8(words)):
        _print_problem(f"{word!r} is not UTF-8", "write it in UTF-8; `locale` shows what the terminal sends")
    elif isinstance(error, OSError):
        text = error.strerror or str(error)
        message = f"{error.filename}: {text}" if error.filename else text
        _print_problem(message, "check the path, its permissions and the space on the disk")
    elif isinstance(error, RedriveError):
        status = BROKEN if isinstance(error, StoreFailed) else USER_ERROR
        _print_problem(_message_of(error), hint_for(error, moves=moves))
    else:
        raise error
    sys.exit(status)


def _find_not_utf8(words: Any) -> str | None:
    """Return the argument that holds bytes which are not UTF-8."""
    texts = [str(word) for word in (sys.argv[1:] if words is None else words)]
    return next((text for text in texts if not text.isascii() and "\\udc" in ascii(text)), None)


def _print_problem(message: str, hint: str) -> None:
    for line in (f"redrive: {one_line(message)}", f"  hint: {one_line(hint)}"):
        click.echo(fold_text(line, get_terminal_size().columns) if sys.stderr.isatty() else line, err=True)


def _usage_hint(error: click.ClickException) -> str:
    if isinstance(error, Refusal):
        return error.hint
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context else 'redrive'} --help` shows how it is used"


def _message_of(error: Exception) -> str:
    """Return the message of an error, without the field's name if the message already names the thing looked for."""
    problem = getattr(error, "problem", "")
    named = getattr(error, "field", None) in ID_HINTS and not problem.startswith("is ")
    return problem if named else str(error)


def hint_for(error: Exception, *, moves: bool = True) -> str:
    """Return what to do about an error of redrive, by its most specific class that has a hint."""
    if hint := ID_HINTS.get(getattr(error, "field", "")):
        return hint
    hints = HINTS if moves else HINTS | {"InvalidInput": CORRECT}
    for kind in type(error).__mro__:
        if kind.__name__ in hints:
            return hints[kind.__name__].replace("ID", str(getattr(error, "job_id", ""))[-8:])
    return "`redrive doctor` looks at the database"
