"""Looking after the database: doctor and backup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, path_of, shared
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import clean, counted

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.stores.sqlite.doctor import Check


@click.command(short_help="Check the database and what it stands on.")
@click.option("--full", is_flag=True, help="Check every page, index and record (slow on large files).")
@click.option("--fix", is_flag=True, help="Put right what can be put right: counters, sums and wake-ups.")
@shared
def doctor(full: bool, fix: bool) -> int:
    """Check the database and what it stands on; exit status 1 if something is wrong. Changes nothing without --fix."""
    checks, fixed = ask(lambda rd: _examined(rd, full=full, fix=fix))
    if output.as_json():
        _say_checks(checks, fixed)
    else:
        _tell_checks(checks, fixed)
    return 0 if all(check.ok for check in checks) else 1


async def _examined(rd: Redrive, *, full: bool, fix: bool) -> tuple[list[Check], list[str]]:
    checks = await _checked(rd, full=full)
    if not fix or any(not check.ok and not check.fixable and check.name in _INNER for check in checks):
        return checks, []
    fixed = await rd.store.repair(rd.clock.now())
    return await _checked(rd, full=full), fixed


async def _checked(rd: Redrive, *, full: bool) -> list[Check]:
    """The file first; where it can be read, also what needs a person whatever any worker knows."""
    checks = _checks(rd, full=full)
    if any(not check.ok and check.name in _INNER for check in checks):
        return checks
    return checks + await _left_behind(rd)


async def _left_behind(rd: Redrive) -> list[Check]:
    from redrive.reports.needs import Snapshot, needs
    from redrive.stores.sqlite.doctor import Check

    now = rd.clock.now()
    found = needs(Snapshot(now, now, left_behind=await rd.store.left_behind(now)))
    if not found:
        return [Check("processes", True, "none left running jobs behind")]
    return [Check("processes", False, need.sentence, f"{need.action} {need.command}") for need in found]


_INNER = ("database", "schema", "integrity")
"""What must be right before anything may be written."""


def _checks(rd: Redrive, *, full: bool) -> list[Check]:
    from redrive.stores.sqlite import doctor

    path = path_of(rd)
    if path is None:
        raise Problem(
            "this doctor looks at SQLite files", "`redrive fleet doctor` looks at a fleet; --url names a file"
        )
    return [*doctor.examine(path, full=full), _spool(rd)]


def _spool(rd: Redrive) -> Check:
    from redrive.stores.sqlite.doctor import Check

    spooled = rd.spool.count()
    aside = len(list(rd.spool.folder.glob("*.unreadable")))
    if aside:
        said = f"{counted(aside, 'file')} with unreadable lines in {rd.spool.folder}"
        return Check("spool", False, said, "read them, enqueue anew what they say, then remove them")
    if spooled:
        return Check("spool", False, f"{counted(spooled, 'job')} wait here", "a running worker moves them over")
    return Check("spool", True, "empty")


def _say_checks(checks: list[Check], fixed: list[str]) -> None:
    import msgspec

    ok = all(check.ok for check in checks)
    output.say_json({"ok": ok, "checks": msgspec.to_builtins(checks), "fixed": fixed})


def _tell_checks(checks: list[Check], fixed: list[str]) -> None:
    for line in fixed:
        output.say(f"fixed  {clean(line)}")
    for check in checks:
        output.say(f"{'ok   ' if check.ok else 'WRONG'}  {check.name:<11} {clean(check.said)}")
        if check.hint:
            output.say(f"       {'':<11} → {clean(check.hint)}")


@click.command()
@click.argument("target")
@shared
def backup(target: str) -> None:
    """Copy the database into a new file while work goes on."""
    size = ask(lambda rd: rd.store.backup(target))
    if output.as_json():
        output.say_json({"target": target, "bytes": size})
    else:
        output.say(f"{clean(target)}: {size:,} bytes, a complete copy; look at it with --url {clean(target)}")
