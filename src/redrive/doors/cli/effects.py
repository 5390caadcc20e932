"""Effects without a job: the list, and single ones, named `effect:KEY` where commands take a job's id."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any, Final

import click

from redrive.api.redrive import Redrive
from redrive.core.effects import EffectRecord
from redrive.core.view import view
from redrive.doors.cli import output
from redrive.doors.cli.invocation import acting_user, command, confirm, use_app
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import ago, clean, shorten

PREFIX: Final = "effect:"
LIMIT: Final = 50
COLUMNS: Final = ("key", "status", "function", "when", "note")


@command()
@click.option("--open", "is_open", is_flag=True, help="Only those whose outcome a person must find out.")
@click.option("--status", type=click.Choice(["intended", "landed", "absent", "unknown"]), help="Only these.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=LIMIT, show_default=True)
def effects(is_open: bool, status: Any, limit: int) -> None:
    """List what functions with `redrive.once` did outside, newest first."""
    records = use_app(lambda rd: _list_effects(rd, is_open=is_open, status=status))
    left = len(records) - limit
    more = f"There are {left} more: repeat it with a larger --limit" if left > 0 else ""
    empty = "No effects here. Functions with @redrive.once record them."
    output.print_list(records[:limit], COLUMNS, _row, empty=empty, more=more, body=view(records[:limit]))


async def _list_effects(rd: Redrive, *, is_open: bool, status: Any) -> Sequence[EffectRecord]:
    if not is_open:
        return await rd.effects.list(status=status)
    return [effect for effect in await rd.effects.open() if status in (None, effect.status)]


def _row(effect: EffectRecord) -> tuple[object, ...]:
    return f"{PREFIX}{effect.key}", effect.status, effect.name, ago(effect.at), shorten(effect.note or "")


def find_key(id: str | None) -> str | None:
    """Return the key if an id names an effect without a job, else None."""
    return id.removeprefix(PREFIX) if id is not None and id.startswith(PREFIX) else None


def print_effect(key: str, *, secrets: bool) -> None:
    """Print the status of an effect, and what to do next."""
    effect = use_app(lambda rd: rd.effects.get(key))
    body = view(effect, secrets=secrets)
    output.print_answer(body, _effect_lines(effect, body))


def _effect_lines(effect: EffectRecord, body: dict[str, Any]) -> Iterator[str]:
    yield f"{_name(effect)} is {effect.status}, {ago(effect.at)}"
    if effect.process:
        yield f"  begun by process {clean(effect.process)}"
    if effect.note:
        yield f"  {clean(body['note'])}"
    if effect.status == "landed":
        result = "forgotten; later calls return null" if effect.forgotten else json.dumps(body["result"])
        yield f"  result: {clean(result)}"
    elif effect.status in ("intended", "unknown"):
        named = quote(f"{PREFIX}{clean(effect.key)}")
        yield f"  next: look at the receiver; then redrive resolve {named} --landed or --not-landed"


def _name(effect: EffectRecord) -> str:
    return f"{PREFIX}{clean(effect.key)} ({clean(effect.name)})"


def resolve_effect(key: str, *, landed: bool, result: str | None, why: str | None) -> None:
    """Record what a person found out about an effect."""
    value = _read_result(result)
    effect = use_app(lambda rd: rd.effects.resolve(key, landed=landed, result=value, who=acting_user(), why=why))
    then = "later calls return its result" if landed else "the next call performs it"
    output.print_answer(view(effect), f"{_name(effect)} is {effect.status}; {then}")


def _read_result(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise Refusal(f"--result is not JSON: {error}", "texts stand in quotes: --result '\"msg-17\"'") from None


def erase_effect(key: str, *, yes: bool) -> None:
    """Erase the result and the error text of an effect."""
    use_app(lambda rd: rd.effects.get(key))
    confirm(f"erase the result of {PREFIX}{key}", yes=yes)
    effect = use_app(lambda rd: rd.effects.erase(key))
    output.print_answer(view(effect), f"erased the result of {PREFIX}{clean(key)}; its key stays")
