"""Groups that appeared since the last deploy and in the last hour. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from redrive.core.deploys import Deploy
from redrive.core.job import iso
from redrive.core.redact import redact_text
from redrive.core.store import Group
from redrive.core.words import clipped, counted, span
from redrive.deadletters.group import SHORT

HOUR: Final = 3600.0
New = Literal["deploy", "hour"]
NAMED: Final = 3
"""Number of groups that a line names."""
TEXT: Final = 60
"""Characters of an error in such a line."""


class Newcomer(msgspec.Struct, frozen=True):
    """A recent group that has dead letters and is neither resolved nor ignored."""

    group: Group
    dead: int

    @property
    def what(self) -> str:
        return f"{self.group.task}: {self.group.error or self.group.error_class or 'no error was recorded'}"

    def public(self) -> dict[str, Any]:
        return {
            "fingerprint": self.group.fingerprint,
            "group": self.group.fingerprint[:SHORT],
            "task": self.group.task,
            "queue": self.group.queue,
            "error": redact_text(self.group.error) if self.group.error else None,
            "first_at": iso(self.group.first_at),
            "dead": self.dead,
        }


class Newcomers(msgspec.Struct, frozen=True):
    """New groups, the latest first."""

    now: float
    deploy: Deploy | None
    """None if no worker ever ran."""
    since_deploy: tuple[Newcomer, ...] = ()
    last_hour: tuple[Newcomer, ...] = ()

    def of(self, which: New) -> tuple[Newcomer, ...]:
        return self.since_deploy if which == "deploy" else self.last_hour

    def public(self) -> dict[str, Any]:
        """Converts the new groups to JSON for users."""
        deploy = self.deploy
        return {
            "deploy": deploy and {"version": deploy.version, "at": iso(deploy.at)},
            "since_deploy": [one.public() for one in self.since_deploy],
            "last_hour": [one.public() for one in self.last_hour],
        }


def oldest(now: float, deploy: Deploy | None) -> float:
    """Computes the time from which groups count as new."""
    return min(now - HOUR, deploy.at if deploy is not None else now)


def newcomers(now: float, deploy: Deploy | None, groups: Sequence[Group], dead: Mapping[str | None, int]) -> Newcomers:
    """Selects groups by when they appeared. `dead` counts each group's dead letters; groups without any are dropped."""
    found = [Newcomer(group, dead[group.fingerprint]) for group in groups if dead.get(group.fingerprint)]
    found.sort(key=lambda one: -one.group.first_at)
    return Newcomers(
        now,
        deploy,
        tuple(one for one in found if deploy is not None and one.group.first_at >= deploy.at),
        tuple(one for one in found if one.group.first_at >= now - HOUR),
    )


# -- texts


def since_deploy(new: Newcomers) -> str:
    """Writes `since version 2.4 was deployed 3 h ago`, or since a worker last started if no worker names a version."""
    if new.deploy is None:
        return ""
    ago = f"{span(new.now - new.deploy.at)} ago"
    if new.deploy.version is None:
        return f"since a worker last started, {ago} (no worker names a version)"
    return f"since version {clipped(new.deploy.version, 40)} was deployed {ago}"


def when(new: Newcomers, which: New) -> str:
    return since_deploy(new) if which == "deploy" else "in the last hour"


def name_groups(found: Sequence[Newcomer]) -> str:
    """Writes groups as `fetch: ConnectError (12), score: KeyError (1) and 3 more`."""
    said = ", ".join(f"{clipped(one.what, TEXT)} ({one.dead:,})" for one in found[:NAMED])
    return f"{said} and {len(found) - NAMED} more" if len(found) > NAMED else said


def in_lines(new: Newcomers) -> list[str]:
    """Writes one line for each list that has new groups; a single line if neither has."""
    asked: tuple[New, ...] = ("deploy", "hour")
    lines = [
        f"{counted(len(found), 'new group')} {when(new, which)}: {name_groups(found)}"
        for which in asked
        if (found := new.of(which))
    ]
    return lines or [nothing_new(new)]


def nothing_new(new: Newcomers) -> str:
    """Writes one line that says there is no new group."""
    if new.deploy is None:
        return "No new group in the last hour."
    return f"No new group {since_deploy(new)}, none in the last hour."
