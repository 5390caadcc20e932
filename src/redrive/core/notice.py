"""Defines notices as values: who is told about a move, which notices are the same, and which are sent together.

A session that enqueued a job is told how the job ended, depending on the job's reason; a person is told only what a
person must see. Success is an acknowledgement, which needs no answer. A notice of a final failure, or of a job that
waits for an answer, is actionable and stays until it is dealt with. No function here reads a clock or writes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple

import msgspec

from redrive.core.job import At, Job, State, iso
from redrive.core.lifecycle import Transition
from redrive.core.store import Group
from redrive.core.tokens import list_signers
from redrive.core.view import Name, Outside, Shown
from redrive.errors import InvalidInput

Audience = Literal["session", "user", "both"]
Level = Literal["acknowledgement", "actionable"]

TEXT_CAP: Final = 2_000
ACKNOWLEDGED_FOR: Final = 7 * 86400.0
"""Seconds after which an unread acknowledgement is dropped; an actionable notice stays until it is dealt with."""
FOLD_SECONDS: Final = 300.0
"""Seconds from the delivery of a message for which people do not get the same message again."""
BURST: Final = 6
"""Most messages of one kind in FOLD_SECONDS; the last message summarises the remaining notices."""
LISTED: Final = 20
LONGEST_PAUSE: Final = 300.0
LONGEST_WINDOW: Final = 366 * 86400.0


class NotifyPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where notices for people are sent, and how many dead letters in which time page a person."""

    urls: tuple[str, ...] = ()
    page_after: int = 3
    page_window: float = 3600.0


def check_notify(policy: NotifyPolicy) -> None:
    """Refuse impossible values by name. The text of a URL is never repeated, because it may hold a secret."""
    if policy.page_after < 1:
        raise InvalidInput(field="notify.page_after", problem=f"{policy.page_after} is not at least 1")
    if not 0 < policy.page_window <= LONGEST_WINDOW:
        problem = f"{policy.page_window:g} is not more than 0 and at most {LONGEST_WINDOW:.0f} seconds, a year"
        raise InvalidInput(field="notify.page_window", problem=problem)
    for number, url in enumerate(policy.urls):
        if not url.startswith("env:") and "://" not in url:
            raise InvalidInput(field=f"notify.urls[{number}]", problem='is neither "env:NAME" nor an Apprise URL')


QUOTED: Final = "\N{OBJECT REPLACEMENT CHARACTER}"
"""The mark in a stored text that is replaced by a job's words."""
LONGEST_QUOTE: Final = 300
LOOK_THERE: Final = "See redrive morning."
"""The whole text of a waiting message about many jobs after an erase, if an older version wrote the message."""


class Quote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job whose words a text quotes. The words are read when the text is shown or sent, so erase removes them."""

    job_id: str
    otherwise: str = ""
    """The text used if the job no longer has its words."""
    longest: int = LONGEST_QUOTE


class Notice(Shown, msgspec.Struct, frozen=True, omit_defaults=True):
    """One message for a session or a person. The same event always makes the same id."""

    HIDDEN: ClassVar = ("told", "turn", "settled", "quotes", "severity")
    SHOWN: ClassVar = ("status", "priority")
    id: Name
    kind: str
    level: Level
    audience: Audience
    title: str
    text: str
    at: At
    queue: str = ""
    task: str = ""
    job_id: Name | None = None
    session_id: Name | None = None
    turn: int = 0
    """The start of the job that the notice is about: the run for a question, else the run after which a person brought
    the job back."""
    fingerprint: str | None = None
    read_at: At | None = None
    """When the session confirmed that it has read the notice."""
    settled: bool = False
    """Whether the requested action has happened. An acknowledgement requests no action."""
    told: tuple[str, ...] = ()
    """The channels that have received the notice."""
    result: Outside = None
    """The job's result, read from the job when the message is read."""
    truncated: bool = False
    severity: float = 0.0
    """The severity of a pain signal, from 0 to 1; other notices have 0."""
    quotes: tuple[Quote, ...] = ()
    """The quotes of a message about several jobs: one for each mark in its text, in order."""

    @property
    def actionable(self) -> bool:
        return self.level == "actionable"

    @property
    def status(self) -> Literal["pending", "resolved"]:
        """Return "pending" only if a person has to act: a pending notice keeps a session from ending its turn."""
        return "pending" if self.actionable and not self.settled and self.read_at is None else "resolved"

    @property
    def unread(self) -> bool:
        """Whether the notice must still be read. A notice whose request has been met needs no reader."""
        return self.read_at is None and not (self.actionable and self.settled)

    @property
    def priority(self) -> Literal["high", "normal"]:
        return "high" if self.actionable else "normal"


def insert_words(text: str, quotes: Sequence[Quote], jobs: Mapping[str, Job]) -> str:
    """Insert the jobs' words into a text, as far as the jobs still have these words."""
    first, *rest = text.split(QUOTED)
    quoted = [_read_quote(quote, jobs.get(quote.job_id)) for quote in quotes]
    quoted += [""] * (len(rest) - len(quoted))
    return first + "".join(words + part for words, part in zip(quoted, rest, strict=False))


def _read_quote(quote: Quote, job: Job | None) -> str:
    """Return the question of a job that waits for an answer, else the text of the job's error."""
    if job is None:
        return quote.otherwise
    asked = job.history[-1].decision if job.because == "approval" and job.history else None
    return (asked or job.error or quote.otherwise)[: quote.longest]


def with_words(notice: Notice, jobs: Mapping[str, Job]) -> Notice:
    """Return the notice with the quoted words inserted."""
    if not notice.quotes:
        return notice
    return msgspec.structs.replace(notice, text=insert_words(notice.text, notice.quotes, jobs), quotes=())


# ---- which notice a move makes


class Telling(NamedTuple):
    """The kind of a notice, who gets it, and whether it asks for an action."""

    kind: str
    audience: Audience
    level: Level = "acknowledgement"


class Rule(NamedTuple):
    """The notices for jobs that are in the queue for one reason."""

    success: Telling | None = None
    failed: Telling | None = None


RULES: Final[Mapping[str, Rule]] = {
    "direct": Rule(),
    "retry": Rule(Telling("retry_success", "session"), Telling("retry_exhausted", "both", "actionable")),
    "deferred_submit": Rule(Telling("deferred_done", "session"), Telling("deferred_failed", "session", "actionable")),
    "scheduled_job": Rule(None, Telling("scheduled_failed", "session", "actionable")),
}
QUESTIONS: Final[Mapping[str, str]] = {
    "consent": "needs_consent",
    "approval": "needs_approval",
    "outcome_unknown": "needs_check",
}
"""Reasons to hold a job until a person or an agent answers."""
COMES_BACK: Final = "comes_back"
"""The kind of notice about a dead letter that comes back by itself. One notice serves all its comebacks: rewritten
each time, and replaced by the notice of the end."""
FAILED: Final = frozenset(rule.failed.kind for rule in RULES.values() if rule.failed)


def notice_for(move: Transition, rules: Mapping[str, Rule] = RULES) -> Notice | None:
    """Return the notice of a move for the session that enqueued the job, or for people; most moves make none."""
    if move.move == "held_back":
        return _question(move)
    if move.answered:
        return None
    reason = str(move.set.get("reason", move.job.reason))
    rule = rules.get(reason, rules["retry"])
    if rule == Rule() or (told := _ending(move, rule)) is None:
        return None
    job = move.after(0)
    return _make_notice(told, job, move.at, job.fresh_from, *_write_words(told, move, job))


OWNER: Final = "owner:"
"""Prefix of the session whose inbox belongs to an owner of dead letters, an agent or a person: `owner:ada`."""
ESCALATED: Final = "escalated"
DEFERRED: Final = "deferred"


_BROUGHT_BEFORE: Final = ("recalled", "rerouted")
"""Moves that may bring a job to the attention of its current owner."""
TELLING: Final = frozenset({"held_back", *_BROUGHT_BEFORE})
"""Moves that may have a notice even if the job is a plain one, and no owner is named anew."""


def escalation_for(move: Transition) -> Notice | None:
    """Write the notice for the owner of a dead letter: one per error group, for any number of dead letters."""
    if move.move in _BROUGHT_BEFORE:
        if move.who not in ("scheduler", "redrive"):
            return None  # a person is working on the dead letter
    elif move.move not in ("buried", "deferred") or move.set.get("owner") is None:
        return None
    job = move.after(0)
    if (
        job.owner is None
        or job.owner in list_signers(move.who or "")
        or (job.state is State.dead and job.lane != "manual")
    ):
        return None
    kind = DEFERRED if move.to is State.held else ESCALATED
    title = f"{job.task} is postponed for you" if kind == DEFERRED else f"{job.task} needs {job.owner}"
    until = f"It comes back at {iso(job.run_at)}" if kind == DEFERRED else None
    see = f"See redrive dead show {job.short_id}."
    text = _sentences(job.error, move.why, until, job.recommendation, see)
    fold = job.fingerprint or job.id
    return Notice(
        f"{fold}.{kind}", kind, "actionable", "session", title, text, move.at, job.queue, job.task, job.id,
        f"{OWNER}{job.owner}", job.fresh_from, job.fingerprint,
    )  # fmt: skip


def _question(move: Transition) -> Notice | None:
    """Return the notice that says what a held job waits for. Without a session, people are asked."""
    job = move.after(0)
    kind = QUESTIONS.get(job.because or "")
    if kind is None:
        return None
    audience: Audience = "both" if kind == "needs_check" else "session" if job.session_id else "user"
    title = {
        "needs_consent": f"{job.task} needs consent",
        "needs_approval": f"{job.task} asks for approval",
        "needs_check": f"{job.task}: it may or may not have landed",
    }[kind]
    text = _sentences(
        move.why, job.recommendation or f"redrive approve {job.short_id} or redrive reject {job.short_id}"
    )
    return _make_notice(Telling(kind, audience, "actionable"), job, move.at, job.run, title, text)


def _ending(move: Transition, rule: Rule) -> Telling | None:
    """Choose the notice for the end of a job; None if the job has not ended, or no session waits for it."""
    if move.move == "succeeded":
        return rule.success
    if move.move == "buried":
        return _tell_comeback(move, rule) if comes_back(move.after(0)) else rule.failed
    if move.move == "rerouted":
        return rule.failed if move.set.get("lane") == "manual" else None
    if rule.success is None:
        return None
    if move.move == "resolved":
        return rule.success if move.job.state is State.held else Telling("resolved", "session")
    return Telling("cancelled", "session") if move.move == "cancelled" else None


def _tell_comeback(move: Transition, rule: Rule) -> Telling | None:
    """Choose the notice of a comeback for a session that gets failures; a script's cycle reports its own comebacks."""
    timed = move.set.get("comes_back_at") is not None
    return Telling(COMES_BACK, "session") if timed and rule.failed is not None else None


def comes_back(job: Job) -> bool:
    """Return whether a dead letter comes back by itself, at its time or in its script's next cycle."""
    if job.comes_back_at is not None:
        return True
    return job.lane == "delayed" and (job.allowed is None or job.attempts < job.allowed)


def _write_words(told: Telling, move: Transition, job: Job) -> tuple[str, str]:
    if told.kind in FAILED:
        see = f"See redrive dead show {job.short_id}."
        return f"{job.task} failed for good", _sentences(job.error, move.why, job.recommendation, see)
    if told.kind == COMES_BACK:
        when = f"It comes back by itself at {iso(job.comes_back_at)}; wait for the notice of how that ended"
        return f"{job.task} failed and comes back", _sentences(job.error, when)
    if told.kind == "cancelled":
        return f"{job.task} was cancelled", _sentences(_by(move))
    if move.move == "resolved":
        return f"{job.task} is done", _sentences(f"{move.who or 'Somebody'} confirmed that it landed", move.why)
    tries = f"It succeeded after {job.attempts} attempts" if job.attempts > 1 else "It succeeded"
    return f"{job.task} is done", _sentences(tries, move.attempt.decision if move.attempt else None)


def _by(move: Transition) -> str:
    return f"By {move.who}: {move.why}" if move.who and move.why else move.why or f"By {move.who or 'somebody'}"


def _sentences(*parts: str | None) -> str:
    stripped = [part.strip() for part in parts if part and part.strip()]
    text = " ".join(part if part[-1] in ".!?" else f"{part}." for part in dict.fromkeys(stripped))
    return text if len(text) <= TEXT_CAP else f"{text[:TEXT_CAP]}…"


def _make_notice(told: Telling, job: Job, at: float, turn: int, title: str, text: str) -> Notice | None:
    audience = told.audience
    if job.session_id is None:
        if audience == "session":
            return None
        audience = "user"
    return Notice(
        f"{job.id}.{told.kind}.{turn}", told.kind, told.level, audience, title, text, at, job.queue, job.task,
        job.id, job.session_id, turn, job.fingerprint if told.kind in FAILED else None,
    )  # fmt: skip


def find_replaced(notice: Notice, job: Job) -> str | None:
    """Return the id of the comeback notice that a later notice of the job replaces, or None."""
    return f"{job.id}.{COMES_BACK}.{notice.turn}" if job.comebacks and notice.kind != COMES_BACK else None


def is_dealt_with(notice: Notice, job: Job | None) -> bool:
    """Return whether a notice's request has been met: its job was answered, brought back or no longer exists."""
    if not notice.actionable or notice.read_at is not None or job is None:
        return True
    if notice.kind in QUESTIONS.values():
        return job.state is not State.held or job.run != notice.turn
    return job.state is not State.dead or job.fresh_from != notice.turn


# ---- messages to people, and how many at once


class SentMessage(msgspec.Struct, frozen=True):
    """A message that a channel has accepted."""

    at: float
    kind: str
    alike: str


class Message(msgspec.Struct, frozen=True):
    """A message for a channel: one notice, several equal notices, or a summary of many."""

    kind: str
    level: Level
    title: str
    text: str
    at: float
    count: int
    notice: Notice
    """The first notice of the message."""
    keys: tuple[str, ...]
    """The keys of all notices that the message covers."""
    alike: str = ""

    @property
    def actionable(self) -> bool:
        return self.level == "actionable"


Waiting = tuple[str, Notice]
"""The key under which a notice waits, and the notice."""


def waiting_key(notice: Notice) -> str:
    """Return the key under which a notice waits; keys sort by time."""
    return f"{max(0, int(notice.at * 1000)):012x}.{notice.id}"


def digest_of_content(notice: Notice) -> str:
    """Return a digest that is the same for notices with the same content: one group of one task, or the same words. A
    pain that came back, or that is repeated because it lasts, has another digest."""
    quoted = "".join(f"\0{quote.job_id}" for quote in notice.quotes)
    content = notice.fingerprint or f"{notice.title}\0{notice.text}{quoted}"
    if notice.severity:
        content = f"{notice.id}\0{notice.at}\0{notice.turn}"
    return hashlib.sha256(f"{notice.kind}\0{notice.task}\0{content}".encode()).hexdigest()[:16]


def plan(
    waiting: Sequence[Waiting], sent: Sequence[SentMessage], now: float, *, one_by_one: bool = False
) -> list[Message]:
    """Plan the messages to send now, in order. Equal notices become one message with their number; of each kind a few
    messages are sent in FOLD_SECONDS, the last a summary of the rest. The other notices wait for a later message.

    `one_by_one` is for a channel that acts on pains: each of them is a message.
    """
    if one_by_one:
        pains = [_fold([one]) for one in sorted(waiting) if one[1].severity]
        return pains + plan([one for one in waiting if not one[1].severity], sent, now)
    recently = [one for one in sent if is_recent(one, now)]
    used = Counter(one.kind for one in recently)
    groups: dict[str, list[Waiting]] = {}
    for key, notice in sorted(waiting):
        groups.setdefault(digest_of_content(notice), []).append((key, notice))
    for one in recently:
        groups.pop(one.alike, None)
    by_kind: dict[str, list[list[Waiting]]] = {}
    for group in groups.values():
        by_kind.setdefault(group[0][1].kind, []).append(group)
    messages = [message for kind, alike in by_kind.items() for message in _fit_into(alike, BURST - used[kind])]
    return sorted(messages, key=lambda message: message.keys[0])


def is_recent(sent: SentMessage, now: float) -> bool:
    """Return whether a message was sent a short time ago. A time in the future is wrong and does not count."""
    return 0 <= now - sent.at < FOLD_SECONDS


def _fit_into(groups: list[list[Waiting]], room: int) -> list[Message]:
    if room <= 0:
        return []
    alone = groups if len(groups) <= room else groups[: room - 1]
    rest = groups[len(alone) :]
    return [_fold(group) for group in alone] + ([_summary(rest)] if rest else [])


def _fold(group: list[Waiting]) -> Message:
    """Make a message of one notice, or of several equal notices with their number."""
    first, last, number = group[0][1], group[-1][1], len(group)
    keys = tuple(key for key, _ in group)
    title = first.title if number == 1 else f"{number} × {first.title}"
    often = "" if number == 1 else f"\n{number} times from {iso(first.at)} to {iso(last.at)}: {_jobs(group)}"
    text = f"{first.text}\n{_line(first)}{often}"
    return Message(first.kind, first.level, title, text, first.at, number, first, keys, digest_of_content(first))


def _summary(groups: list[list[Waiting]]) -> Message:
    """Make one message of the notices that are too many to send one by one."""
    every = sorted(waiting for group in groups for waiting in group)
    if len(groups) == 1:
        return _fold(every)
    first, last = every[0][1], every[-1][1]
    lines = [f"{len(group)} × {group[0][1].title}: {_jobs(group)}" for group in groups[:LISTED]]
    if len(groups) > LISTED:
        left = sum(len(group) for group in groups[LISTED:])
        lines.append(f"and {left} of {len(groups) - LISTED} other kinds")
    title = f"{len(every)} more: {first.kind.replace('_', ' ')}"
    text = "\n".join(
        [f"From {iso(first.at)} to {iso(last.at)}; each of them is kept. See redrive dead groups.", *lines]
    )
    return Message(first.kind, first.level, title, text, first.at, len(every), first, tuple(key for key, _ in every))


def _line(notice: Notice) -> str:
    parts = [
        f"job {notice.job_id}" if notice.job_id else "",
        f"session {notice.session_id}" if notice.session_id else "",
    ]
    return " · ".join(part for part in (*parts, iso(notice.at) or "") if part)


def _jobs(group: Sequence[Waiting]) -> str:
    ids = [notice.job_id[-8:] for _, notice in group if notice.job_id]
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return ", ".join(ids[:5]) + more


def pause_after(failures: int) -> float:
    """Return the seconds until a channel is tried again after this many failures in a row."""
    return min(LONGEST_PAUSE, 5.0 * 2.0 ** min(failures - 1, 10))


# ---- cycles


def write_stale_notice(
    job_id: str, task: str, cycle: str | None, queue: str, at: float, message: str, severity: float
) -> Notice:
    """Write the notice that a job of a script has failed in too many cycles in a row; `cycle` is the last of these."""
    title = message.partition(";")[0][:200]
    return Notice(
        f"{job_id}.stale_failure.{cycle}", "stale_failure", "actionable", "user", title, message, at, queue, task,
        job_id, severity=severity,
    )  # fmt: skip


# ---- pages


class Paged(msgspec.Struct, frozen=True):
    """The last page: its time, and the groups of dead letters that the page named."""

    at: float
    groups: tuple[str, ...] = ()


def page_due(letters: Mapping[str, int], last: Paged | None, now: float, policy: NotifyPolicy) -> bool:
    """Return whether the dead letters within the window are so many that a person must be paged: once per window, or
    sooner for a group that the last page did not name.
    """
    if sum(letters.values()) < policy.page_after:
        return False
    if last is None or last.at > now or now - last.at >= policy.page_window:
        return True
    return now - last.at >= FOLD_SECONDS and not letters.keys() <= set(last.groups)


def write_page(letters: Mapping[str, int], groups: Sequence[Group], now: float, policy: NotifyPolicy) -> Notice:
    """Write a page: how many dead letters, of which groups, where to look. Errors are quoted, as a page may wait."""
    number = sum(letters.values())
    named = sorted(groups, key=lambda group: -letters.get(group.fingerprint, 0))[:5]
    lines = [f"{letters[group.fingerprint]} × {group.task}: {QUOTED}" for group in named]
    quotes = tuple(Quote(group.sample, group.error_class or "") for group in named)
    if len(letters) > len(named):
        lines.append(f"and {number - sum(letters[group.fingerprint] for group in named)} others")
    window = "hour" if policy.page_window == 3600 else f"{policy.page_window / 60:g} minutes"
    text = _sentences("; ".join(lines), "See redrive dead groups")
    queue, task = (named[0].queue, named[0].task) if named else ("", "")
    title = f"{number} dead letters in the last {window}"
    return Notice(
        f"page.{int(now * 1000):x}", "page", "actionable", "user", title, text, now, queue, task, quotes=quotes
    )
