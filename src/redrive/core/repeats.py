"""Recognises an agent that repeats itself: the same action again and again without success. Pure.

An action is a task with its parameters. Of a session's last actions a window is kept; where one of them stands in it
often enough and never succeeded, it is a loop. The agent is told as soon as it is seen. Seen in a second window, which
means that the agent was told and went on, it is a matter for people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from redrive.core.checks import check_range
from redrive.core.notice import Notice
from redrive.errors import InvalidInput

WIDEST = 1_000


class RepeatRule(msgspec.Struct, frozen=True):
    """So many of the same action within a window of so many actions are a loop. 0 times: nothing is."""

    times: int = 5
    window: int = 15


def check_repeats(rule: RepeatRule) -> None:
    """Refuses a rule that every action or none would meet."""
    check_range("repeats_window", rule.window, 2, WIDEST)
    if rule.times != 0 and not 2 <= rule.times <= rule.window:
        problem = f"{rule.times} is neither 0 (off) nor from 2 to the window of {rule.window}"
        raise InvalidInput(field="repeats", problem=problem)


class SessionAction(msgspec.Struct, frozen=True, array_like=True):
    """One thing that a session did, and whether it succeeded."""

    what: str
    ok: bool


class ActionLoop(msgspec.Struct, frozen=True):
    """An action that is repeated without success."""

    what: str
    task: str
    times: int
    """How often it stands in the window."""
    windows: int
    """In how many windows in a row it was seen."""
    at: float


class Watched(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last actions of a session, and the loop it is in."""

    actions: tuple[SessionAction, ...] = ()
    loop: ActionLoop | None = None
    at: float = 0.0


def identify_action(task: str, params: object) -> str:
    """Names an action without its words: the same for the same parameters in any order."""
    try:
        text = msgspec.json.encode([task, params], enc_hook=repr, order="deterministic")
    except (TypeError, ValueError):  # what JSON cannot say is refused as a payload, and is an action all the same
        text = f"{task} {params!r}".encode(errors="backslashreplace")
    return hashlib.sha256(text).hexdigest()[:16]


def observe(watched: Watched, actions: Sequence[SessionAction], task: str, rule: RepeatRule, now: float) -> Watched:
    """Adds actions to the window, the last of them of this task, and says whether it is a loop."""
    window, what = (*watched.actions, *actions)[-rule.window :], actions[-1].what
    times, before = _count_tries(window, what), watched.loop
    if 0 < rule.times <= times:
        windows = before.windows + 1 if before is not None and before.what == what else 1
        return Watched(window, ActionLoop(what, task, times, windows, now), now)
    lasts = before is not None and before.what != what and _count_tries(window, before.what) >= rule.times > 0
    return Watched(window, before if lasts else None, now)


def _count_tries(window: Sequence[SessionAction], what: str) -> int:
    """Counts an action in the window; 0 where it has succeeded there."""
    alike = [action.ok for action in window if action.what == what]
    return 0 if any(alike) else len(alike)


def warn_agent(loop: ActionLoop, rule: RepeatRule) -> str:
    """What the agent is told."""
    return (
        f"You repeat yourself: {loop.times} of your last {rule.window} actions were this one, and none succeeded. Stop "
        f"repeating it. Change the parameters, do something else, or tell a person."
    )


def describe_loop(session: str, loop: ActionLoop, rule: RepeatRule) -> str:
    """What people are told."""
    return (
        f"session {session} repeats {loop.task} with the same parameters: {loop.times} of its last {rule.window} "
        f"actions, none succeeded"
    )


def write_repeats_notice(session: str, loop: ActionLoop, rule: RepeatRule, job_id: str | None) -> Notice:
    """The message for people."""
    words = describe_loop(session, loop, rule)
    text = f"{words[0].upper()}{words[1:]}. It was told, and goes on."
    see = f" See redrive status {job_id[-8:]}." if job_id else ""
    return Notice(
        f"repeats.{loop.what}.{int(loop.at * 1000):x}",
        "repeats",
        "actionable",
        "user",
        f"An agent repeats {loop.task}",
        text + see,
        loop.at,
        "",
        loop.task,
        job_id,
        session,
    )
