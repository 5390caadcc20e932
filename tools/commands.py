"""The reference of the command line, from the commands themselves, whatever the terminal and click's own layout."""

import inspect
from collections.abc import Iterator

import click

from redrive.doors.cli import cli as root
from tools.tables import code, table

SHARED = {"url", "json", "help", "version"}
"""Options that every command has; told once."""
WITHOUT_HELP = {
    "queue": "Only this queue.",
    "task": "Only this task.",
    "agent": "Only this agent.",
    "session": "Only this session.",
    "limit": "How many at most.",
    "jobs": "How many jobs.",
}


def cli() -> str:
    lines = [
        f"## `redrive`\n\n{_help(root)}\n",
        "Before the command's name or, but for `demo`, after it:\n",
        _options([parameter for parameter in root.params if parameter.name in SHARED]),
        "",
    ]
    for path, command in walk(root, "redrive"):
        lines += [f"## `{path}`\n", _help(command), "", f"```text\n{_usage(path, command)}\n```", ""]
        own = [parameter for parameter in command.params if parameter.name not in SHARED]
        if any(isinstance(parameter, click.Option) and not parameter.hidden for parameter in own):
            lines += [_options(own), ""]
    return "\n".join(lines)


def walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, in the order in which help lists them."""
    for name in group.list_commands(click.Context(group)):
        command = group.commands[name]
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from walk(command, f"{path} {name}")


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").replace("\b\n", "")


def _usage(path: str, command: click.Command) -> str:
    words = [path, "[OPTIONS]"]
    if isinstance(command, click.Group):
        words.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
    words += [_argument(parameter) for parameter in command.params if isinstance(parameter, click.Argument)]
    return " ".join(words)


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    many = f"{name}..." if argument.nargs == -1 else name
    return many if argument.required or many.startswith("[") else f"[{many}]"


def _options(parameters: list[click.Parameter]) -> str:
    shown = [option for option in parameters if isinstance(option, click.Option) and not option.hidden]
    return table(("option", "meaning"), [(_spelled(option), _meaning(option)) for option in shown])


def _spelled(option: click.Option) -> str:
    names = " / ".join(filter(None, (", ".join(option.opts), ", ".join(option.secondary_opts))))
    value = "" if option.is_flag or option.count else f" {option.metavar or option.type.name.upper()}"
    return code(f"{names}{value}") + (", may be repeated" if option.multiple else "")


def _meaning(option: click.Option) -> str:
    said = option.help or WITHOUT_HELP[option.name or ""]
    default = option.default
    return f"{said} Default: {default}." if option.show_default and default is not None else said
