"""What is down, and closing a breaker by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, short

if TYPE_CHECKING:
    from redrive.retries.breaker import Breaker


@click.command(short_help="List what is down, and when it is tried again.")
@click.option("--close", metavar="KEY", help="It answers again: let its parked jobs go.")
@shared
def breakers(close: str | None) -> None:
    """What is down: hosts, models and others whose jobs are parked until a probe gets through."""
    if close is not None:
        if not ask(lambda rd: rd.close_breaker(close)):
            raise Problem(f"no breaker {close!r} is open", "`redrive breakers` lists those that are")
        output.say_json({"closed": close}) if output.as_json() else output.say(f"closed {close}: its jobs come back")
        return
    found = ask(lambda rd: rd.breakers())
    if output.as_json():
        import msgspec

        output.say_json([msgspec.to_builtins(breaker) for breaker in found])
    elif found:
        output.table(("what", "state", "since", "cause", "next probe", "said"), map(_row, found))
    else:
        output.say("Nothing is down.")


def _row(breaker: Breaker) -> tuple[object, ...]:
    probe = ago(breaker.until) if breaker.state == "open" else ""
    return clean(breaker.key), breaker.state, ago(breaker.since), breaker.cause, probe, short(breaker.error)
