"""Effects without a job: the list, and one that is named `effect:KEY` where a job's id may stand."""

from __future__ import annotations

import json
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, confirm, shared, who
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redrive.api.redrive import Redrive
    from redrive.core.effects import EffectRecord

NAMED = "effect:"
LIMIT = 50


@click.command(short_help="Effects without a job, as redrive.once recorded them.")
@click.option("--open", "is_open", is_flag=True, help="Only those whose outcome a person must find out.")
@click.option("--status", type=click.Choice(["intended", "landed", "absent", "unknown"]), help="Only these.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=LIMIT, show_default=True)
@shared
def effects(is_open: bool, status: Any, limit: int) -> None:
    """List what functions with `redrive.once` did outside, newest first."""
    found = ask(lambda rd: _listed(rd, is_open=is_open, status=status))
    if output.as_json():
        output.say_json([effect_json(effect) for effect in found[:limit]])
    elif found:
        output.table(("key", "status", "function", "when", "note"), map(_row, found[:limit]))
        if len(found) > limit:
            output.say(f"There are {len(found) - limit} more: repeat it with a larger --limit")
    else:
        output.say("No effects here. Functions with @redrive.once record them.")


async def _listed(rd: Redrive, *, is_open: bool, status: Any) -> Sequence[EffectRecord]:
    if not is_open:
        return await rd.effects.list(status=status)
    return [effect for effect in await rd.effects.open() if status in (None, effect.status)]


def _row(effect: EffectRecord) -> tuple[object, ...]:
    return f"{NAMED}{effect.key}", effect.status, effect.name, ago(effect.at), short(effect.note or "")


def effect_json(effect: EffectRecord, *, secrets: bool = False) -> dict[str, Any]:
    from redrive.core.view import view

    body: dict[str, Any] = view(effect, secrets=secrets)
    return body


def key_in(id: str | None) -> str | None:
    """The key, where an id names an effect without a job."""
    return id.removeprefix(NAMED) if id is not None and id.startswith(NAMED) else None


def tell(key: str, *, secrets: bool) -> None:
    """How one effect stands, and what to do next."""
    effect = ask(lambda rd: rd.effects.get(key))
    body = effect_json(effect, secrets=secrets)
    if output.as_json():
        output.say_json(body)
        return
    output.say(f"effect:{clean(key)} ({clean(effect.name)}) is {effect.status}, {ago(effect.at)}")
    if effect.process:
        output.say(f"  begun by process {clean(effect.process)}")
    if effect.note:
        output.say(f"  {clean(body['note'])}")
    if effect.status == "landed":
        result = "forgotten; later calls return null" if effect.forgotten else json.dumps(body["result"])
        output.say(f"  result: {clean(result)}")
    elif effect.status in ("intended", "unknown"):
        named = quote(f"{NAMED}{clean(key)}")
        output.say(f"  next: look at the receiver; then redrive resolve {named} --landed or --not-landed")


def resolve(key: str, *, landed: bool, result: str | None, why: str | None) -> None:
    """A person's word about one."""
    value = _read(result)
    effect = ask(lambda rd: rd.effects.resolve(key, landed=landed, result=value, who=who(), why=why))
    if output.as_json():
        output.say_json(effect_json(effect))
        return
    then = "later calls return its result" if landed else "the next call performs it"
    output.say(f"effect:{clean(key)} ({clean(effect.name)}) is {effect.status}; {then}")


def _read(result: str | None) -> Any:
    try:
        return None if result is None else json.loads(result)
    except ValueError as error:
        raise Problem(f"--result is not JSON: {error}", "texts stand in quotes: --result '\"msg-17\"'") from None


def erase(key: str, *, yes: bool) -> None:
    """Its result and its error text are forgotten."""
    ask(lambda rd: rd.effects.get(key))
    confirm(f"erase the result of effect:{key}", yes=yes)
    effect = ask(lambda rd: rd.effects.erase(key))
    if output.as_json():
        output.say_json(effect_json(effect))
    else:
        output.say(f"erased the result of effect:{clean(key)}; its key stays")
