"""The reference of the Python API and of the errors, read from the source: signatures as written, docstrings as told.

Read with `ast` rather than from live objects, so that the pages come out alike under every Python.
"""

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import redrive
from redrive import _WHERE
from redrive.jobs.core import DEFAULT_WHO
from tools.tables import POLICY_WORDS, code, table

ABOUT = {
    "The queue": ["Redrive", "default", "get_queue", "reset_default"],
    "Tasks and jobs": ["Task", "JobHandle", "Item", "Many", "Job", "Attempt", "Failure", "Cause", "State", "Blob"],
    "Inside a task": ["Context", "BlockingContext", "current", "Retry", "Snooze", "GiveUp", "Cancel", "OutcomeUnknown"],
    "Policies": ["Policy", "Rate", "Preset", "PRESETS", "Budget"],
    "Trying differently": ["Adapt", "Model", "Agent"],
    "Scripts and schedules": ["to_dead_letter", "diverting", "cron"],
    "Agents, consent and effects": ["Outcome", "Approval", "Grant", "Effect", "once", "Probe"],
    "Seeing": ["BusEvent", "Pain", "Notice", "Message"],
    "Over HTTP": ["asgi"],
}
"""Public names in the order of a reader; errors have a page of their own."""

BESIDE = {
    "redrive.api.jobs": ["Jobs"],
    "redrive.scripts.once": ["Effects"],
    "redrive.api.dead": ["Dead"],
    "redrive.api.queues": ["Queues"],
    "redrive.api.blocking": ["Blocking"],
    "redrive.jobs.tasks": ["Bound", "BlockingBound", "BlockingHandle"],
    "redrive.deadletters.groups": ["Groups"],
    "redrive.deadletters.group": ["GroupView", "Suggestion"],
    "redrive.reports.health": ["Health", "QueueNumbers"],
    "redrive.reports.queue_numbers": ["QueueView"],
    "redrive.core.timings": ["Span"],
    "redrive.deadletters.new_groups": ["Newcomers", "Newcomer"],
    "redrive.core.deploys": ["Deploy"],
    "redrive.reports.morning": ["Morning", "Need", "Delta", "Spike", "Cured"],
    "redrive.reports.service": ["Reports"],
    "redrive.reports.periods": ["Report", "Row", "StrategyRate", "CauseRow", "FailureLog", "FailureLine"],
    "redrive.reports.activity": ["Activity", "Series", "AgentLoad"],
    "redrive.reports.top_screen": ["Glance", "QueueGlance", "RunningGlance", "TroubleGlance"],
    "redrive.api.explain": ["Explanation"],
    "redrive.retries.breaker": ["Breaker"],
    "redrive.scripts.cycle": ["Cycle", "BlockingCycle", "RunningCycle", "Result"],
    "redrive.scripts.cycle_rules": ["Summary", "Left"],
    "redrive.scripts.import_export": ["Imported", "Exported"],
    "redrive.core.store": ["Page", "Event"],
    "redrive.notices.sessions": ["Sessions"],
    "redrive.notices.service": ["Notices"],
    "redrive.flows.workflows": ["Workflow", "Step", "WorkflowHandle", "Workflows"],
    "redrive.core.workflow": ["WorkflowStatus", "StepStatus"],
    "redrive.deadletters.redrives": ["Redrives"],
    "redrive.deadletters.bulk_run": [
        "Plan",
        "Chosen",
        "Estimate",
        "RedriveRun",
        "GroupScore",
        "Canary",
        "ItemPage",
        "ItemView",
    ],
    "redrive.deadletters.triage": ["Acted", "Act"],
    "redrive.deadletters.input_edits": ["EditPreview", "FieldError", "EffectChoice"],
    "redrive.deadletters.verbs": ["Note"],
    "redrive.deadletters.purge": ["PurgePlan"],
    "redrive.deadletters.comebacks": ["Comebacks"],
    "redrive.api.tokens": ["Tokens"],
    "redrive.core.tokens": ["NewToken", "Token"],
    "redrive.core.effects": ["EffectRecord"],
    "redrive.core.job": ["Usage"],
    "redrive.flows.schedules": ["Scheduled"],
    "redrive.engine.bus": ["Subscription"],
}
"""Classes that one meets without importing them: as rd.jobs, as a return value."""

REACHED_AS = {
    "Jobs": "`rd.jobs`",
    "Effects": "`rd.effects`",
    "Dead": "`rd.dead`",
    "Queues": "`rd.queues`",
    "Tokens": "`rd.tokens`",
    "NewToken": "what `rd.tokens.add(...)` gives",
    "Token": "an entry of `await rd.tokens.list()`",
    "Blocking": "what `with rd.blocking() as q` gives",
    "Bound": "what `task.options(...)` gives",
    "BlockingBound": "what `task.blocking` gives",
    "BlockingHandle": "what `task.blocking.enqueue(...)` gives",
    "Groups": "`rd.groups`",
    "GroupView": "what `rd.groups.show(...)` gives, and an entry of `rd.groups.list(...)`",
    "Suggestion": "`view.suggestion` of a group",
    "Morning": "what `await rd.morning()` gives",
    "Need": "an entry of `morning.needs`",
    "Delta": "an entry of `morning.deltas` and `morning.changes`",
    "Spike": "what `rd.morning(spike=...)` takes, besides a number",
    "Cured": "an entry of `morning.cured`",
    "Reports": "`rd.reports`",
    "Report": "what `await rd.reports.weekly()` and `monthly()` give",
    "Row": "an entry of `report.rows` and `report.agents`, and `report.total`",
    "StrategyRate": "an entry of `report.strategies`",
    "CauseRow": "an entry of `report.causes`",
    "FailureLog": "what `await rd.reports.failures(...)` gives",
    "FailureLine": "an entry of `log.lines`",
    "Activity": "what `await rd.reports.activity(...)` gives",
    "Series": "an entry of `activity.queues`, and `activity.total`",
    "AgentLoad": "an entry of `await rd.reports.load()`",
    "Glance": "what `await rd.reports.glance()` gives",
    "QueueGlance": "an entry of `glance.queues`",
    "RunningGlance": "an entry of `glance.running`",
    "TroubleGlance": "an entry of `glance.troubles`",
    "Explanation": "what `rd.explain(...)` gives",
    "Breaker": "an entry of `await rd.breakers()`",
    "Cycle": "what `rd.cycle(...)` gives",
    "BlockingCycle": "what `with rd.cycle(...) as night` gives",
    "RunningCycle": "what `async with rd.cycle(...) as night` gives",
    "Result": "what `night.run(...)` gives",
    "Summary": "`night.summary`",
    "Left": "an entry of `night.summary.left`",
    "Imported": "what `rd.dead.import_(...)` gives",
    "Exported": "what `rd.dead.export(...)` gives",
    "Health": "what `await rd.health()` gives",
    "QueueNumbers": "what an entry of `await rd.queues.list()` has, too",
    "QueueView": "an entry of `await rd.queues.list()`; it has all of `QueueNumbers`",
    "Span": "`queue.waited` and `queue.took`",
    "Newcomers": "what `await rd.groups.new()` gives",
    "Newcomer": "an entry of `new.since_deploy` and `new.last_hour`",
    "Deploy": "`new.deploy`",
    "Page": "what `rd.jobs.list(...)` and `rd.dead.list(...)` give",
    "Event": "what `handle.events()` and `rd.jobs.story(id)` give",
    "Subscription": "what `rd.subscribe(...)` gives",
    "Sessions": "`rd.sessions`",
    "Notices": "`rd.notices`",
    "Workflow": "what `rd.workflow(...)` gives",
    "Step": "what `workflow.add(...)` gives",
    "WorkflowHandle": "what `await workflow.start()` and `await rd.workflows.get(...)` give",
    "Workflows": "`rd.workflows`",
    "WorkflowStatus": "what `await handle.status()` gives, and an entry of `await rd.workflows.list()`",
    "StepStatus": "an entry of `status.steps`",
    "Redrives": "`rd.redrives`",
    "Plan": "what `await rd.redrives.plan(...)` gives",
    "Chosen": "an entry of `plan.groups`",
    "Estimate": "`plan.estimate`",
    "RedriveRun": "what `await rd.redrives.start(...)` and `get(...)` give",
    "GroupScore": "an entry of `run.by_group`",
    "Canary": "`run.canary`",
    "ItemPage": "what `await rd.redrives.items(...)` gives",
    "ItemView": "an entry of `page.items`",
    "Acted": "what a verb of `rd.dead` gives for many jobs, and what `await rd.dead.undo(...)` gives",
    "Act": "an entry of `await rd.dead.acts()`",
    "EditPreview": "what `await rd.dead.preview_edit(...)` gives",
    "FieldError": "an entry of `preview.errors`",
    "EffectChoice": "an entry of `preview.effects`",
    "Note": "an entry of `await rd.dead.notes(...)`",
    "PurgePlan": "what `await rd.dead.purge_plan(...)` gives",
    "Comebacks": "`rd.comebacks`",
    "EffectRecord": "an entry of `await rd.jobs.effects(...)` and `await rd.effects.list()`",
    "Usage": "`attempt.usage`, and what `await rd.sessions.costs(...)` gives",
    "Scheduled": "an entry of `await rd.schedules()`",
}

WORDS = {
    "Redrive": {
        "settings": "The settings in force, read-only.",
        "jobs": "Single jobs: get, list, result, cancel, approve, reject, effects, resolve, erase.",
        "dead": "Dead letters: list, show, redrive, edit, preview_edit, diff, reassign, defer, recall, move_lane, "
        "discard, restore, note, undo, acts, purge, add, import_, export.",
        "comebacks": "Brings back dead letters whose cause may have healed, as workers do by themselves: work.",
        "groups": "The error groups of the dead letters: list, show, resolve, ignore, reopen, note.",
        "queues": "Queues: list, pause, resume.",
        "sessions": "Sessions: grants, grant, revoke, costs, inbox, acknowledge, questions.",
        "workflows": "Workflows that were started: get, list.",
        "redrives": "Many dead letters at once: plan, start, get, list, live, items, follow, pause, resume, cancel, "
        "advance.",
        "notices": "What people are told: waiting, deliver, troubles.",
        "reports": "Weeks, months and moments in numbers: weekly, monthly, failures, activity, load, glance, notify.",
    },
    "Acted": {
        "verb": "What was done.",
        "act_id": "What `undo` takes.",
        "number": "How many jobs were meant.",
        "moved": "How many of them it was done to.",
        "left": "How many it was not.",
    },
    "Act": {
        "id": "What `undo` takes.",
        "verb": "What was done.",
        "at": "When, in seconds since 1970.",
        "who": "Who did it.",
        "why": "The reason that was given.",
        "moved": "How many of them it was done to.",
        "refused": "How many it could not be done to.",
        "undone": "How many were put back.",
        "undone_at": "When it was taken back.",
        "undone_by": "Who took it back.",
    },
    "EditPreview": {
        "job_id": "The job.",
        "task": "Its task.",
        "ok": "Whether the edit can be made as it stands.",
        "text": "All of it in a sentence.",
        "errors": "What is wrong, by field.",
        "effects": "What was done outside, and what becomes of that.",
    },
    "FieldError": {"field": "Where, e.g. `turns[0].text`.", "problem": "What is wrong with it."},
    "EffectChoice": {
        "name": "Given to `ctx.once`.",
        "status": "intended, landed, absent or unknown.",
        "then": "What the edited run does about it.",
    },
    "Note": {"at": "When, in seconds since 1970.", "who": "Who wrote it.", "text": "What it says."},
    "PurgePlan": {"number": "How many.", "token": "What `confirm=` takes.", "sample": "Some of them."},
    "Triaged": {"redriven": "Brought back with what has worked.", "deferred": "Put off to a person."},
    "Task": {"name": "What it is enqueued by.", "queue": "Where its jobs go, unless an option says otherwise."},
    "JobHandle": {"id": "The job's id.", "job": "The job as last seen."},
    "Context": {
        "job": "The job, as it was claimed.",
        "results": "What the steps before this one have returned, by name (workflows).",
    },
    "BlockingContext": {
        "job": "The job, as it was claimed.",
        "results": "What the steps before this one have returned, by name (workflows).",
    },
    "Job": {
        "id": "32 hexadecimal characters; jobs with a key derive it from queue and key.",
        "queue": "Whose policy holds.",
        "task": "Which function runs it.",
        "agent": "Who does the work.",
        "state": "Where it stands.",
        "priority": "0 (critical) to 3 (low); `priority_name` says it in words.",
        "run_at": "Not before this time (seconds since 1970, UTC, like all times here).",
        "created_at": "When it was accepted.",
        "updated_at": "When it was last changed.",
        "payload": "JSON text; `arguments` is the same, decoded.",
        "run": "How often it was started.",
        "attempts": "How many attempts were settled as success or failure.",
        "allowed": "How many attempts it may have so far.",
        "worker": "Who runs it, or ran it last.",
        "started_at": "When its last run began.",
        "lease": "Seconds without a heartbeat after which it counts as lost.",
        "key": "Its idempotency key.",
        "session_id": "Who asked.",
        "model": "The model it runs with.",
        "reason": "Why it is in the queue; plain enqueues are `direct`.",
        "crashes": "How many workers ended while it ran.",
        "grants": "How often a redrive gave it fresh attempts.",
        "first_failed_at": "When it first failed; `max_age` counts from here.",
        "held_at": "Since when it is held.",
        "held_seconds": "How long it was held before, in all.",
        "because": "Why it is dead, held or discarded.",
        "lane": "Of a dead letter: `manual`, or `delayed` if it comes back by itself.",
        "category": "Of the last failure: what kind.",
        "detail": "Of the last failure: what exactly.",
        "subclass": "Of the last failure: Transient, Logic, Resource or Authority.",
        "fingerprint": "The same for failures of the same kind: the id of the error group.",
        "error_class": "The class of the last exception.",
        "error": "The last exception in one line, without secrets.",
        "recommendation": "What a person can do.",
        "history": "Every attempt that has something to tell.",
        "options": "What the caller asked for this job alone.",
        "changes": "What retries do differently from the payload.",
        "ended": "Whether it is done, dead, discarded or purged.",
        "priority_name": "critical, high, normal or low.",
        "short_id": "The last eight characters of the id, enough for every command.",
    },
    "Attempt": {
        "run": "Which start of the job this was.",
        "outcome": "done, failed, lost, snoozed, released, held or cancelled.",
        "failure": "What was seen.",
        "cause": "What it means.",
        "decision": "What was done about it, and why.",
        "usage": "What the task reported as spent.",
        "changes": "What this attempt ran with, beside the payload.",
        "fingerprint": "Of its failure: the group.",
        "tier": "Where a retry waits: `immediate` (on the spot) or `delayed`; of a letter, its lane.",
    },
    "Budget": {
        "tokens": "Input and output tokens together.",
        "output_tokens": "Output tokens.",
        "cost": "In your currency.",
        "seconds": "Of running.",
    },
    "Failure": {
        "kind": "How it came: an exception, a signal of the task, a result (`soft`), a timeout, a lost worker.",
        "types": "The class and those it derives from, with their modules, the most specific first.",
        "message": "What it said, without secrets.",
        "status": "An HTTP status.",
        "code": "The provider's own code; `codes` has all of them.",
        "error_kind": "The kind that the exception or the result names.",
        "errno": "The operating system's number.",
        "sqlstate": "A database's code.",
        "headers": "Those of the answer that say something about limits.",
        "retry_after": "Seconds to wait, wherever that was said.",
        "frames": "The innermost lines of the traceback.",
        "cause": "What it was raised from.",
        "members": "Of an exception group.",
        "recommendation": "What `GiveUp` recommends.",
        "error_class": "The bare name of the class.",
        "summary": "Class and message in one line.",
    },
    "Cause": {
        "category": "transient, conditional, permanent, control or unknown.",
        "detail": "What exactly.",
        "heals": "at_once, later, changed, person or unknown.",
        "rule": "The name of the rule that said so.",
        "subclass": "Transient, Logic, Resource or Authority.",
        "retry_after": "Seconds that the failure asks to wait.",
    },
    "Adapt": {
        "messages": "The conversation.",
        "prompt": "A text.",
        "context": "A list of texts or documents.",
        "model": "The model.",
        "instructions": "The system prompt.",
        "max_output_tokens": "The output limit.",
    },
    "Model": {
        "context": "Tokens it may read.",
        "larger": "Instead of it, when the prompt is too long.",
        "other": "Instead of it, when it refuses or repeats itself.",
    },
    "Agent": {"does": "Kinds of work.", "models": "From the smallest to the largest."},
    "Explanation": {
        "failure": "What was seen.",
        "cause": "What it means.",
        "decision": "What would be done: a `RetryLater`, a `Bury` or a `Hold`, each with `why`.",
    },
    "GroupView": {
        "group": "What the store counts: its fingerprint, task, error, burials.",
        "state": "What was said of it: status, limits, story.",
        "trend": "The last day against the day before.",
        "day_before": "Burials noticed in the day before.",
        "suggestion": "What to do, and how often that has worked.",
        "lessons": "What was tried, and how often it worked.",
        "samples": "Its latest dead letters.",
        "fingerprint": "Its id.",
        "short": "The beginning of it, enough for every command.",
        "status": "unresolved, resolved or ignored.",
    },
    "Report": {
        "kind": "weekly or monthly.",
        "tz": "Whose calendar.",
        "rows": "The periods in order; the last one still goes on.",
        "total": "All of them together.",
        "strategies": "What was tried, the most tried first.",
        "latest": "The period that still goes on.",
    },
    "Row": {
        "name": "`2026-11`, `2026-W47`, an agent, or `total`.",
        "label": "The same for people.",
        "since": "When it begins.",
        "until": "When it ends, or now.",
        "complete": "Whether it is over.",
        "processed": "Jobs that came to an end for the first time: done, or dead.",
        "died": "Dead letters, each once.",
        "auto": "Of those, done without a person.",
        "open": "Of those, coming back by themselves.",
        "deferred": "Of those, put off at least once.",
        "auto_share": "Of the dead letters.",
        "human_share": "Of the dead letters.",
        "person_mttr": "The same of what a person resolved or let go.",
        "empty": "Nothing was processed.",
    },
    "StrategyRate": {"strategy": "What was changed.", "tried": "Worked or not.", "rate": "The share that worked."},
    "CauseRow": {
        "category": "transient, conditional, permanent, control or unknown.",
        "detail": "What exactly.",
        "buried": "Of those, the ones that made dead letters.",
        "buried_before": "The same in the period before.",
        "more": "The difference.",
    },
    "FailureLog": {
        "tz": "Whose days.",
        "more_letters": "Whether there are more of them.",
        "until": "When it ends.",
        "failed": "Attempts that failed, in all.",
        "buried": "Of those, the ones that made dead letters.",
    },
    "FailureLine": {
        "day": "`2026-11-16`.",
        "buried": "Of those, the ones that made dead letters.",
    },
    "Activity": {
        "step": "Seconds in a bucket.",
        "starts": "When each bucket begins, in seconds since 1970.",
        "total": "All queues together.",
    },
    "Series": {"flows": "By move: how often in each bucket.", "quiet": "Nothing is there and nothing happened."},
    "AgentLoad": {
        "agent": "None for jobs without one.",
        "retried": "Attempts that failed and were tried again.",
        "buried": "Jobs that died.",
    },
    "Glance": {
        "at": "When it was taken.",
        "sentence": "Health in words.",
        "running_number": "How many run in all.",
        "activity": "The series behind it.",
    },
    "QueueGlance": {
        "due": "Waiting, and due.",
        "paused": "Nobody takes from it.",
        "done": "Done a minute.",
        "failing": "Failed a minute, for good or to be tried again.",
    },
    "TroubleGlance": {
        "dead": "How many of its jobs are dead now.",
        "buried": "How many it buried in all.",
        "short": "The beginning of the fingerprint, enough for every command.",
    },
    "Policy": POLICY_WORDS,
    "Outcome": {
        "status": "ok, queued_for_retry, queued, timeout, failed, needs_consent or held.",
        "operation_id": "The job's id; none where nothing is stored (`read_only=True`).",
        "result": "What it returned, up to 100,000 characters.",
        "error": "The last failure in one line, without secrets.",
        "error_kind": "What exactly: the kind that the error names, else our detail.",
        "retry_at": "When it is tried again.",
        "queue_reason": "retry, deferred_submit, scheduled_job or direct.",
        "registry_auto_recovered": "Something that the task needs was away and is back.",
        "truncated": "The result is longer than an answer; `rd.jobs.result(id)` has all of it.",
    },
    "Approval": {
        "question": "As it was asked.",
        "asked_at": "When.",
        "subject": "What it is about: the input, the agent and the details, as a hash.",
        "details": "What was shown with it.",
        "expires_at": "Until when an answer counts.",
        "by": "Who answered.",
        "answered_at": "When.",
        "why": "What was said about it.",
    },
    "Grant": {
        "id": "What `revoke` takes.",
        "session_id": "Whose yes it is.",
        "at": "When.",
        "by": "Who said so.",
        "expires_at": "Until when it counts.",
        "revoked_at": "Since when it counts no more.",
        "why": "What was said about it.",
    },
    "Notice": {
        "id": "What `acknowledge` takes; the same event always makes the same one.",
        "kind": "retry_success, retry_exhausted, needs_consent, …",
        "level": "acknowledgement or actionable.",
        "audience": "session, user or both.",
        "title": "In one line.",
        "text": "In some more.",
        "at": "When it happened.",
        "queue": "Of its job.",
        "task": "Of its job.",
        "job_id": "The job, if it is about one.",
        "session_id": "Whose inbox it is in.",
        "fingerprint": "Of a failure: its group.",
        "truncated": "The result is longer than a message; `rd.jobs.result(id)` has all of it.",
        "actionable": "Somebody has to do something.",
        "priority": "high or normal.",
    },
    "Message": {
        "kind": "Of its notices.",
        "level": "acknowledgement or actionable.",
        "title": "In one line.",
        "text": "The rest.",
        "at": "When the first of them happened.",
        "count": "How many notices it tells.",
        "alike": "The same for messages that say the same.",
        "actionable": "Somebody has to do something.",
    },
    "WorkflowHandle": {"id": "Of the workflow, and of its first step's job.", "name": "As it was given."},
    "WorkflowStatus": {
        "id": "Of the workflow, and of its first step's job.",
        "name": "As it was given.",
        "state": "running, blocked, complete or discarded.",
        "steps": "In the order in which they were added.",
        "created_at": "When it was started.",
        "session_id": "Who asked.",
        "failed": "The steps that are dead letters.",
        "complete": "Every step is done.",
    },
    "StepStatus": {
        "name": "In the workflow.",
        "task": "What it runs.",
        "job_id": "Its job.",
        "state": "PENDING, RUNNING, RETRY_PENDING, BLOCKED, HELD, FAILED, DONE, DISCARDED or FORGOTTEN.",
        "after": "The steps it waits for, by name.",
        "attempts": "How many were settled.",
        "because": "Why it is dead, held or discarded.",
        "error": "The last failure in one line.",
        "recommendation": "What a person can do.",
    },
    "Plan": {
        "number": "How many were chosen.",
        "chosen": "The filter, in words.",
        "queues": "How many of each.",
        "token": "For `start`: exactly these, or nothing.",
        "warnings": "What else to know, in words.",
    },
    "Chosen": {
        "fingerprint": "The group; None for those without one, and for the row that stands for all smaller groups.",
        "task": "Of its first dead letter.",
        "error_class": "Of its first dead letter.",
        "error": "Of its first dead letter, shortened.",
        "number": "How many were chosen.",
    },
    "Estimate": {"tokens": "Read and written, for one attempt each.", "sampled": "How many jobs were asked."},
    "RedriveRun": {
        "id": "Of the redrive; a part that no other has is enough.",
        "state": "canary, moving, paused, settling, finished or cancelled.",
        "who": "Who started it.",
        "why": "What for.",
        "at": "When it was started.",
        "total": "How many dead letters it is about.",
        "by_group": "The score of each group.",
        "skipped_because": "How many for which reason.",
        "succeeded": "Moved, and done.",
        "failed_again": "Moved, and dead once more.",
        "canary": "Those that went first, if any.",
        "ended_at": "When it was over.",
        "story": "Who started, paused, resumed or cancelled it, and why.",
        "short_id": "The end of its id.",
    },
    "GroupScore": {
        "fingerprint": "The group; None for those without one, and for the row that stands for all smaller groups.",
        "task": "Of its first dead letter.",
        "error_class": "Of its first dead letter.",
        "number": "How many of the redrive are of this group.",
        "moved": "Went back to their queue.",
        "skipped": "Were no longer dead, or would have died again at once.",
        "succeeded": "Moved, and done.",
        "failed_again": "Moved, and dead once more.",
        "discarded": "Let go by somebody after they were moved.",
        "open": "Moved, and not ended yet.",
    },
    "Canary": {
        "size": "How many go first.",
        "pass_rate": "The share that must succeed.",
        "moved": "How many have gone.",
        "succeeded": "Of these, done.",
        "failed_again": "Of these, dead once more.",
        "verdict": "passed or failed; None before it is judged.",
        "score": "How many of those that have ended succeeded, in words.",
        "judged_at": "When.",
        "open": "Of these, not ended yet.",
    },
    "ItemPage": {"items": "Some hundreds of them.", "cursor": "For the next page."},
    "ItemView": {
        "id": "Of the job.",
        "fingerprint": "The group it was in.",
        "task": "Of that group.",
        "status": "pending, skipped, moved, succeeded, failed_again or discarded.",
        "why": "Why it was skipped, failed again or was let go.",
    },
    "EffectRecord": {
        "name": "Given to `ctx.once`.",
        "key": "What the receiver was given.",
        "status": "intended, landed, absent or unknown.",
        "at": "When that became known.",
        "run": "Which start of the job did it.",
        "agent": "Who did the work.",
        "result": "What came back.",
        "note": "What is known beside that: an error, who resolved it.",
    },
    "Usage": {"input_tokens": "Read.", "output_tokens": "Written.", "cost": "In your currency."},
    "Scheduled": {
        "name": "`nightly#0`: the task, and which of its schedules.",
        "task": "What runs.",
        "line": "The cron line.",
        "tz": "Its time zone.",
        "next_slot": "When it fires next.",
        "job": "The last job's id.",
    },
    "Many": {"duplicates": "How many were there already.", "accepted": "How many were not refused."},
    "Rate": {"count": "Starts.", "per": "Seconds."},
}
"""What the source itself does not say of its attributes."""

HIDDEN = {
    "Act": {"chunks"},
    "Job": {"token", "version", "payload_hash", "options_json", "changes_json"},
    "Notice": {"turn", "told"},
    "Message": {"keys"},
    "RedriveRun": {"position", "open_in", "pace", "paused_in", "unjudged", "items_kept"},
    "Canary": {"start"},
    "Notices": {"quiet", "look", "prune"},
    "Sessions": {"prune"},
}
"""Attributes and methods that are redrive's own business."""

WIRING = {
    "accept", "accept_now", "result_of", "events_of", "tell_workers", "make_scheduler", "make_ending", "run_blocking",
    "numbers", "store", "take_in", "make_approval", "make_rejection", "heard", "courier", "cooling", "ready",
    "expired", "handed_in", "prune_acts",
}  # fmt: skip
"""Methods that redrive's own parts call; users have better ones."""


@dataclass(frozen=True)
class Source:
    """A module, read."""

    names: dict[str, ast.stmt]
    docs: dict[str, str]
    """What the string below an assignment says."""
    taken: dict[str, str]
    """Names it has from another module of ours, which tells of them."""


@cache
def source(module: str) -> Source:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"no module {module}")
    body = ast.parse(Path(spec.origin).read_text("utf-8")).body
    named: dict[str, ast.stmt] = {}
    taken: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redrive"):
            taken |= {alias.name: node.module or "" for alias in node.names}
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            named[node.name] = node
        for name in _assigned(node):
            named[name] = node
    return Source(named, attribute_docs(body), taken)


def home(name: str, module: str) -> str:
    """The module that a name is written in, which may be another than the one it is found in."""
    found = source(module)
    return module if name in found.names else home(name, found.taken[name])


def _assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def attribute_docs(body: list[ast.stmt]) -> dict[str, str]:
    """Names and the string literals that follow their assignment."""
    found = {}
    for node, below in pairwise(body):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            for name in _assigned(node):
                found[name] = inspect.cleandoc(below.value.value)
    return found


# The pages ----------------------------------------------------------------------------------------------------------


def api() -> str:
    errors = {name for name in redrive.__all__ if _WHERE[name] == "redrive.errors"}
    told = {name for names in ABOUT.values() for name in names}
    if missing := set(redrive.__all__) - errors - told:
        raise SystemExit(f"tools/reference.py: ABOUT has no place for {sorted(missing)}")
    parts = []
    for heading, names in ABOUT.items():
        parts.append(f"## {heading}\n")
        parts += [entry(name, _WHERE[name], f"redrive.{name}") for name in names]
    parts.append("## What these give you\n\nYou need not import these; they come back from what is above.\n")
    parts += [entry(name, module, name, REACHED_AS[name]) for module, names in BESIDE.items() for name in names]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts) + testing())


def testing() -> str:
    """redrive.testing, with everything public in it."""
    module = "redrive.testing"
    if importlib.util.find_spec(module) is None:
        return ""
    public = [
        name
        for name, node in source(module).names.items()
        if not name.startswith("_") and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return "\n## Testing\n\n" + "\n".join(entry(name, module, f"redrive.testing.{name}") for name in public)


def errors() -> str:
    import redrive.errors

    rows = []
    for name, node in source("redrive.errors").names.items():
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(code(ast.unparse(base)) for base in node.bases)
            public = code(f"redrive.{name}") if name in redrive.__all__ else code(f"redrive.errors.{name}")
            rows.append((f'<a id="{name.lower()}"></a>{public}', bases, doc(node)))
    tree = inspect.cleandoc(redrive.errors.__doc__ or "").partition("\n\n")[2]
    return f"```text\n{tree}\n```\n\n{table(('error', 'is a', 'meaning'), rows)}"


# One name -----------------------------------------------------------------------------------------------------------


def entry(name: str, module: str, shown: str, reached: str = "") -> str:
    module = home(name, module)
    node = source(module).names[name]
    lines = [f"### `{shown}`\n"]
    if reached:
        lines.append(f"This is {reached}.\n")
    if isinstance(node, ast.ClassDef):
        lines += _class(node, name, module)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines += [_fenced(signature(node, node.name)), "", doc(node), ""]
    else:
        lines += [_alias(name, module, node), ""]
    return "\n".join(lines)


def _alias(name: str, module: str, node: ast.stmt) -> str:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Name):
        return f"Another name of `redrive.{value.id}`."
    return source(module).docs.get(name, "")


def _class(node: ast.ClassDef, name: str, module: str) -> list[str]:
    lines = [doc(node), ""]
    init = next((method for method in _methods(node) if method.name == "__init__"), None)
    if init is not None and name in redrive.__all__ and name not in _MADE_FOR_YOU:
        lines += [_fenced(signature(init, name, without_self=True)), ""]
    if rows := _rows(node, name, module):
        columns = ("attribute", "type", "default", "meaning")
        used = [place for place in range(4) if any(row[place] for row in rows)]
        lines += [table([columns[i] for i in used], [[row[i] for i in used] for row in rows]), ""]
    for method in _shown_methods(node, module):
        text = signature(method, method.name, without_self=True)
        lines += [_fenced(text), "", doc(method), ""]
    return lines


_MADE_FOR_YOU = {"Task", "JobHandle", "Context", "BlockingContext"}
"""Classes whose instances redrive makes."""


def _fenced(text: str) -> str:
    return f"```python\n{text}\n```"


def _rows(node: ast.ClassDef, name: str, module: str) -> list[tuple[str, str, str, str]]:
    """The attributes to show, with our words where the source has none; defaults only where users make instances."""
    words = dict(WORDS.get(name, {}))
    rows = []
    for attribute, kind, default, said in _fields(node, module):
        ours = words.pop(attribute, "")
        if attribute not in HIDDEN.get(name, ()):
            rows.append((code(attribute), kind, default if name in _YOU_MAKE else "", said or ours))
    if set(words) - _SET_IN_INIT:
        raise SystemExit(f"tools/reference.py, WORDS: {name} has no {sorted(words)}")
    return [*((code(attribute), "", "", said) for attribute, said in words.items()), *rows]


_YOU_MAKE = {"Policy", "Rate", "Budget", "Adapt", "Model", "Agent", "Spike"}
_SET_IN_INIT = {
    "settings", "jobs", "dead", "groups", "queues", "sessions", "workflows", "notices", "redrives", "reports",
    "comebacks", "job", "results", "id", "name",
}  # fmt: skip


def _fields(node: ast.ClassDef, module: str) -> Iterator[tuple[str, str, str, str]]:
    """Struct fields, documented instance attributes and properties."""
    docs = attribute_docs(node.body)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and _is_public(item.target.id):
            default = code(ast.unparse(item.value)) if item.value is not None else ""
            if not (kind := _kind(item.annotation)).startswith("ClassVar"):  # declares what `public()` shows
                yield item.target.id, code(kind), default, docs.get(item.target.id, "")
        if isinstance(item, ast.Assign):
            for name in _assigned(item):
                if _is_public(name):
                    yield name, "", "", docs.get(name, "")
    for method in _inherited(node, module):
        if method.name == "__init__":
            for target, said in _documented_attributes(method):
                yield target, "", "", said
        elif _is_property(method) and _is_public(method.name) and method.name not in WIRING:
            returns = code(_kind(method.returns)) if method.returns is not None else ""
            yield method.name, returns, "", doc(method)


MARKED = {"At": "float", "Share": "float", "Name": "str", "Outside": "Any"}
"""Types of `core.view` and `core.job` that say how a value is shown, and what it is."""


class _Unmarked(ast.NodeTransformer):
    """Takes from a type what only says how a value is shown."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(MARKED.get(node.id, node.id))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        is_marked = isinstance(node.value, ast.Name) and node.value.id == "Annotated"
        inner = node.slice.elts[0] if is_marked and isinstance(node.slice, ast.Tuple) else None
        return self.generic_visit(node) if inner is None else self.visit(inner)


def _kind(annotation: ast.expr) -> str:
    return ast.unparse(_Unmarked().visit(ast.parse(ast.unparse(annotation), mode="eval")))


def _documented_attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    for node, below in pairwise(init.body):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)):
            continue
        name = node.targets[0].attr
        if _is_public(name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield name, inspect.cleandoc(str(below.value.value))


def _inherited(node: ast.ClassDef, module: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Methods, with those of parents that no reader could look up: private ones, parts of Redrive, and Shown."""
    methods = []
    for parent in node.bases:
        if isinstance(parent, ast.Name) and parent.id == "Shown":
            shown = source("redrive.core.view").names["Shown"]
            methods += _methods(shown) if isinstance(shown, ast.ClassDef) else []
            continue
        if not isinstance(parent, ast.Name) or not (parent.id.startswith("_") or parent.id.endswith("Methods")):
            continue
        there = home(parent.id, module)
        known = source(there).names[parent.id]
        methods += _inherited(known, there) if isinstance(known, ast.ClassDef) else []
    return methods + _methods(node)


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]


def _shown_methods(node: ast.ClassDef, module: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public methods in order; of overloads the one that says most, where it says more than the method itself."""
    by_name: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    ours = WIRING | HIDDEN.get(node.name, set())
    for method in _inherited(node, module):
        if _is_public(method.name) and not _is_property(method) and method.name not in ours:
            by_name.setdefault(method.name, []).append(method)
    return [_fullest(variants) for variants in by_name.values()]


def _fullest(
    variants: list[ast.FunctionDef | ast.AsyncFunctionDef],
) -> ast.FunctionDef | ast.AsyncFunctionDef:
    itself = variants[-1]
    longest = max(variants, key=lambda method: len(ast.unparse(method.args)))
    if any(argument.arg == "options" for argument in [itself.args.kwarg] if argument) and longest is not itself:
        longest.body = itself.body
        return longest
    return itself


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _is_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "property" for mark in method.decorator_list)


def doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.get_docstring(node) or ""


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, without_self: bool = False) -> str:
    """As one would write it, on several lines where it is long."""
    arguments = [_plain(argument) for argument in _arguments(node.args, skip_first=without_self)]
    keyword = "async " if isinstance(node, ast.AsyncFunctionDef) and not _is_manager(node) else ""
    told = node.returns is not None and node.name != "__init__"
    returns = f" -> {_plain(ast.unparse(node.returns))}" if told and node.returns is not None else ""
    call = f"{keyword}{name}({', '.join(arguments)}){returns}"
    if len(call) <= 100:
        return call
    return f"{keyword}{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returns}"


def _plain(text: str) -> str:
    """Without what only the source's own module understands."""
    return text.replace("builtins.", "").replace("DEFAULT_WHO", f'"{DEFAULT_WHO}"')


def _is_manager(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("contextmanager" in ast.unparse(mark) for mark in node.decorator_list)


def _arguments(arguments: ast.arguments, *, skip_first: bool) -> list[str]:
    """Each argument as text. The split of `ast.unparse` would stumble over commas inside annotations."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += arguments.defaults
    listed = [_argument(*pair) for pair in zip(plain, defaults, strict=True)]
    if arguments.posonlyargs:
        listed.insert(len(arguments.posonlyargs), "/")
    if skip_first:
        listed = listed[1:]
    if listed[:1] == ["/"]:
        listed = listed[1:]
    if arguments.vararg is not None:
        listed.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        listed.append("*")
    listed += [_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return listed + ([f"**{_argument(arguments.kwarg, None)}"] if arguments.kwarg is not None else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation is not None else ""
    if default is None:
        return f"{argument.arg}{kind}"
    return f"{argument.arg}{kind}{' = ' if kind else '='}{ast.unparse(default)}"
