"""Tables for the pages on agents: answers, effects, consent, schedules, workflows, notices.

As in failures.py, the code is asked wherever it decides; words are checked for being whole.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import get_args

import msgspec

from redrive.core import consent, effects, notice, outcome, schedule, workflow
from redrive.flows import schedules
from tools.tables import code, must_match, said, table

YES_NO = {True: "yes", False: "no"}


def worded(kind: object, words: Mapping[str, str], what: str, columns: tuple[str, str]) -> str:
    """Every word of a Literal, with its meaning."""
    must_match(words, get_args(kind), what)
    return table(columns, [(code(name), meaning) for name, meaning in words.items()])


# Answers ------------------------------------------------------------------------------------------------------------

OUTCOME_WORDS = {
    "ok": "It is done; `result` is there. Only this status counts as true.",
    "queued_for_retry": "It failed, and a worker tries again, which can fail, too. Ask later; do not call again.",
    "queued": "Accepted; no attempt has been made yet.",
    "timeout": "The caller stopped waiting, or it runs elsewhere: it goes on, and its end is not known yet.",
    "failed": "It is not tried again by itself. `message` says what to do.",
    "needs_consent": "Held: its session has not agreed to it. [A person says yes or no](consent.md).",
    "held": "Held for something else: an answer, a look at the receiver, a service that is down, another step.",
}


def outcomes() -> str:
    must_match(OUTCOME_WORDS, get_args(outcome.Status), "OUTCOME_WORDS")
    rows = [(code(name), _fields(name), words) for name, words in OUTCOME_WORDS.items()]
    return table(("`status`", "fields of `public()`, beside `operation_id`", "meaning"), rows)


def _fields(status: str) -> str:
    shown = outcome.Outcome(status, "op", message="…").public()  # type: ignore[arg-type]
    return ", ".join(code(name) for name in shown if name != "operation_id")


# Effects ------------------------------------------------------------------------------------------------------------

ANSWERS: tuple[tuple[str, object], ...] = (
    ('`True`, `"verified"`, anything found', True),
    ('`False`, `"absent"`, nothing found (`[]`, `0`, `""`)', False),
    ("`None`, any other text, an exception", None),
)


def seen() -> str:
    rows = [
        (shown, *(code(effects.read_verdict(found, mode)) for mode in get_args(effects.Mode)))
        for shown, found in ANSWERS
    ]
    return table(("`verify` says", *(f'`mode="{mode}"`' for mode in get_args(effects.Mode))), rows)


MIXTURES: tuple[tuple[str, tuple[effects.Verdict, ...]], ...] = (
    ("all of them seen", ("verified", "verified")),
    ("some seen, others not", ("verified", "absent")),
    ("some seen, others cannot be told", ("verified", "indeterminate")),
    ("none seen", ("absent", "absent")),
    ("some not there, others cannot be told", ("absent", "indeterminate")),
    ("none can be told", ("indeterminate", "indeterminate")),
    ("there is nothing to look at", ()),
)
REPLAY_WORDS = {
    "done": "it is done, with a warning; nothing runs",
    "run": "it runs again",
    "hold": "held (`outcome_unknown`)",
}


def together() -> str:
    must_match(REPLAY_WORDS, get_args(effects.Replay), "REPLAY_WORDS")
    rows = []
    for shown, verdicts in MIXTURES:
        whole = effects.combine_verdicts(verdicts)
        then = [REPLAY_WORDS[effects.before_replay(verdicts, idempotent=harmless)] for harmless in (False, True)]
        rows.append((shown, code(whole), *then))
    return table(("of its effects", "verdict", "then", "then, with `idempotent=True`"), rows)


KNOWN_WORDS = {
    "intended": "begun; the process died before it knew the outcome",
    "unknown": "begun; the error does not say whether it happened",
    "absent": "certainly not there: never sent, refused, or a person said so",
    "landed": "done; its result is recorded",
}
NEXT_WORDS = {
    "perform": "the call is made",
    "return_recorded": "the recorded result is returned",
    "verify": "`verify` is asked first",
    "hold": "the job is held",
}


def once() -> str:
    must_match(KNOWN_WORDS, get_args(effects.Status), "KNOWN_WORDS")
    must_match(NEXT_WORDS, get_args(effects.NextStep), "NEXT_WORDS")
    ways = ((True, False), (False, False), (False, True))
    rows = []
    for status, words in KNOWN_WORDS.items():
        known = effects.EffectRecord("post", "key", status, 0.0, 1)  # type: ignore[arg-type]
        steps = [effects.next_step(known, can_verify=asks, idempotent=harmless) for asks, harmless in ways]
        rows.append((code(status), words, *(NEXT_WORDS[step] for step in steps)))
    columns = ("recorded as", "which means", "with `verify=`", "without", "without, but `idempotent=True`")
    return table(columns, rows)


def never_sent() -> str:
    return ", ".join(code(name.removeprefix("builtins.")) for name in sorted(effects._NEVER_SENT))


# Consent ------------------------------------------------------------------------------------------------------------

GRANT_WORDS = {
    "id": "What `revoke` takes.",
    "session_id": "The session that agreed.",
    "scope": "A task's name, or the label of its `consent=`.",
    "at": "When the session agreed.",
    "by": "Who agreed in its name.",
    "agent": "Only for this agent; empty: only for work that no agent in particular does.",
    "subject": "Only for exactly this input.",
    "job_id": "Only for exactly this job.",
    "expires_at": "When it ends.",
    "revoked_at": "When it was revoked.",
    "blanket": "For first runs only.",
    "why": "The reason that was given.",
}


def grant() -> str:
    must_match(GRANT_WORDS, consent.Grant.__struct_fields__, "GRANT_WORDS")
    return table(("field", "meaning"), [(code(name), words) for name, words in GRANT_WORDS.items()])


_GRANTS: dict[str, consent.Grant] = {
    'to the task, `grant("s1", "pay", …)`': consent.Grant("1", "s1", "pay", 0.0, "ann"),
    '…with `agent="billing"`': consent.Grant("1", "s1", "pay", 0.0, "ann", agent="billing"),
    "…with `blanket=True`": consent.Grant("1", "s1", "pay", 0.0, "ann", blanket=True),
    "`redrive approve ID`": consent.Grant(
        "1", "s1", "pay", 0.0, "ann", agent="billing", subject="this input", job_id="this job"
    ),
}
_FIRST = consent.Wish(frozenset({"pay", "money"}), "billing", "this input", "this job", replay=False)
_CASES: tuple[tuple[str, dict[str, object], Callable[[consent.Grant], consent.Grant]], ...] = (
    ("the first run", {}, lambda grant: grant),
    ("a later run of it", {"replay": True}, lambda grant: grant),
    ("a later run with an edited input", {"replay": True, "subject": "another input"}, lambda grant: grant),
    ("a later run by another agent", {"replay": True, "agent": "support"}, lambda grant: grant),
    ("another job with the same input", {"job_id": "another job"}, lambda grant: grant),
    ("after it expired", {}, lambda grant: msgspec.structs.replace(grant, expires_at=50.0)),
    ("after it was revoked", {}, lambda grant: msgspec.structs.replace(grant, revoked_at=50.0)),
)


def covers() -> str:
    rows = []
    for shown, differs, ended in _CASES:
        wish = msgspec.structs.replace(_FIRST, **differs)
        rows.append((shown, *(YES_NO[consent.covers(ended(grant), wish, 100.0)] for grant in _GRANTS.values())))
    return table(("covers", *_GRANTS), rows)


# Schedules ----------------------------------------------------------------------------------------------------------

CRON_WORDS = {
    "line": "Five fields (minute, hour, day, month, weekday), or a nickname.",
    "tz": "The zone the line is meant in, by its IANA name.",
    "payload": "What each job is given; must fit the task's parameters.",
    "catch_up": "What happens to slots for which no worker ran.",
    "cap": 'How many of them at most, with `catch_up="all"`.',
    "overlap": "Whether a slot may run while an earlier job of the schedule waits, runs or is held.",
    "jitter": "Delays the jobs by a part of so many seconds, for each schedule always the same part.",
}
CATCH_UP_WORDS = {
    "latest": "The last of them runs, once.",
    "skip": f"None of them; only a slot that is at most {schedule.ON_TIME:g} seconds old.",
    "all": "Each of them, oldest first, but no more than the newest `cap`; without `overlap` one after the other.",
}


def cron() -> str:
    parameters = inspect.signature(schedule.cron).parameters
    must_match(CRON_WORDS, parameters, "CRON_WORDS")
    rows = []
    for name, words in CRON_WORDS.items():
        default = parameters[name].default
        rows.append((code(name), "" if default is inspect.Parameter.empty else said(default), words))
    return table(("option", "default", "meaning"), rows)


def catch_up() -> str:
    return worded(schedule.CatchUp, CATCH_UP_WORDS, "CATCH_UP_WORDS", ("`catch_up`", "what runs of the missed slots"))


def nicknames() -> str:
    rows = [(code(name), code(line)) for name, line in schedules._NICKNAMES.items()]
    return table(("nickname", "is"), rows)


# Workflows ----------------------------------------------------------------------------------------------------------

STEP_WORDS = {
    "PENDING": "It runs next, or after the steps before it.",
    "RUNNING": "A worker has it.",
    "RETRY_PENDING": "It failed and is tried again. The steps behind it wait; the workflow goes on.",
    "BLOCKED": "A step before it failed for good. It waits until that one is redriven.",
    "HELD": "It waits for a person, for consent, or for something that is down.",
    "FAILED": "It is a dead letter.",
    "DONE": "It is done.",
    "DISCARDED": "It was cancelled or discarded, and so were the steps behind it.",
    "FORGOTTEN": "It ended longer ago than keys are kept.",
}
FLOW_WORDS = {
    "running": "Some step can still go on by itself, or after an answer.",
    "blocked": "A step failed for good: the rest waits until it is redriven.",
    "complete": "Every step is done. No other state means that.",
    "discarded": "Steps that are not done were discarded.",
}


def step_states() -> str:
    return worded(workflow.StepState, STEP_WORDS, "STEP_WORDS", ("step", "meaning"))


def flow_states() -> str:
    return worded(workflow.FlowState, FLOW_WORDS, "FLOW_WORDS", ("workflow", "meaning"))


# Notices ------------------------------------------------------------------------------------------------------------

REASON_WORDS = {
    "direct": "a plain `enqueue`",
    "retry": "a call that was queued, or that its caller stopped waiting for",
    "deferred_submit": "`rd.submit`",
    "scheduled_job": "a schedule",
}
AUDIENCE_WORDS = {"session": "the session", "user": "people", "both": "the session and people"}


def rules() -> str:
    must_match(REASON_WORDS, notice.RULES, "REASON_WORDS")
    must_match(AUDIENCE_WORDS, get_args(notice.Audience), "AUDIENCE_WORDS")
    rows = [
        (code(reason), REASON_WORDS[reason], _told(rule.success), _told(rule.failed))
        for reason, rule in notice.RULES.items()
    ]
    return table(("reason", "because of", "when it is done", "when it failed for good"), rows)


def _told(told: notice.Telling | None) -> str:
    if told is None:
        return "no message"
    return f"{code(told.kind)} to {AUDIENCE_WORDS[told.audience]}, {told.level}"


QUESTION_WORDS = {
    "needs_consent": "the session, or people where there is none",
    "needs_approval": "the session, or people where there is none",
    "needs_check": "the session and people",
}


def questions() -> str:
    must_match(QUESTION_WORDS, notice.QUESTIONS.values(), "QUESTION_WORDS")
    rows = [(code(because), code(kind), QUESTION_WORDS[kind]) for because, kind in notice.QUESTIONS.items()]
    return table(("held because of", "notice", "told to"), rows)
