"""Tables for the pages on failures: how they are recognised, what is done about them, what stands in between.

Where the code decides, the table is made by asking it (every HTTP status is classified, every way is planned), so that
a page cannot say something else. Words are checked for being whole, as in tables.py.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import get_args

from redrive.core import agents, policy
from redrive.core.change import AddConstraint, AddInstruction, Change, CompressContext, SetAgent, SetModel, SimplifyTask
from redrive.core.job import Attempt, Failure, Job, State
from redrive.core.presets import PRESETS
from redrive.deadletters import group
from redrive.failures import classify, soft
from redrive.failures.classify import codes as known_codes
from redrive.failures.classify.classes import FIRM_CLASSES, STATUS_CLASSES, UNFIT_CLASSES, package_of
from redrive.jobs import records
from redrive.reports import needs as insight_needs
from redrive.retries import breaker, remedies, strategy
from redrive.retries.decision import Abilities, Case
from redrive.scripts import cycle_rules
from tools.tables import POLICY_WORDS, code, must_match, said, table

HOUR = 3600.0


def _gathered(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """(what, detail) pairs by detail, in the order of the details, each thing once."""
    found: dict[str, list[str]] = {detail: [] for detail in classify.DETAILS}
    for what, detail in pairs:
        if what not in found[detail]:
            found[detail].append(what)
    return {detail: names for detail, names in found.items() if names}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)


# Recognising --------------------------------------------------------------------------------------------------------


def rules() -> str:
    rows = [(str(number), code(name), classify.RULE_NOTES[name]) for number, (name, _) in enumerate(classify.RULES, 1)]
    return table(("", "rule", "knows the failure by"), rows)


HEAL_WORDS = {
    "at_once": "by itself, soon",
    "later": "by itself, with time",
    "changed": "if it is tried differently",
    "person": "when a person acts",
    "unknown": "not known",
}

FATES = {
    "outcome_unknown": "held for a person; retried if the task is idempotent",
    "preempted": "started again at once, costs no attempt; after repeated crashes it runs alone, see Crashes",
    "released": "given back, costs no attempt",
    "own_limits": "waits for room, costs no attempt, up to 50 times (3 times for memory)",
    "suspended": "held until a person answers, costs no attempt",
    "credentials_expired": "dead letter that comes back by itself after an hour, six hours and a day",
}
"""Details that are handled in a special way."""


def _fate(detail: str, category: str) -> str:
    if detail in FATES:
        return FATES[detail]
    if category == "conditional":
        way = remedies.WAYS.get(detail, remedies.OTHERWISE)
        return f"tried again {_how(detail)} after {way.delay:g} s, then a dead letter"
    return {
        "transient": "retried until the attempts are used up",
        "permanent": "dead letter at once",
        "unknown": f"at most {strategy.UNKNOWN_TRIES - 1} more tries; with `idempotent=True`, all of them",
    }[category]


def _how(detail: str) -> str:
    return "changed" if remedies.WAYS.get(detail, remedies.OTHERWISE).plan(example(detail), 1) else "once"


def details() -> str:
    rows = [
        (code(name), category, HEAL_WORDS[heals], subclass, _fate(name, category))
        for name, (category, heals, subclass) in classify.DETAILS.items()
    ]
    return table(("detail", "category", "heals", "sub-class", "what happens"), rows)


def statuses() -> str:
    """Every status from 300 to 599 is asked for; the most frequent answers are "any other"."""
    found = {status: classify.classify(Failure(types=("x.X",), status=status)).detail for status in range(300, 600)}
    usual = {"3xx": found[333], "4xx": found[488], "5xx": found[588]}
    named = [(str(status), detail) for status, detail in found.items() if detail != usual[f"{status // 100}xx"]]
    families = {status[0] for status, _ in named}
    named += [(f"any other {family}" if family[0] in families else family, usual[family]) for family in usual]
    rows = sorted((", ".join(names), code(detail)) for detail, names in _gathered(named).items())
    return table(("status", "detail"), rows)


def classes() -> str:
    """Hundreds of classes, one row per library: what each detail is raised as."""
    firm = _by_library(FIRM_CLASSES | dict.fromkeys(UNFIT_CLASSES, "invalid_output"))
    weak = _by_library(STATUS_CLASSES)
    libraries = sorted(firm.keys() | weak.keys(), key=lambda name: (name == PYTHON, name.lower()))
    rows = [
        (code(name) if name != PYTHON else name, _cell(firm.get(name, {})), _cell(weak.get(name, {})))
        for name in libraries
    ]
    return table(("library", "classes", "classes, where no HTTP status says more"), rows)


PYTHON = "Python itself"


def _by_library(listed: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    pairs: dict[str, list[tuple[str, str]]] = {}
    for name, detail in listed.items():
        package = package_of(name)
        own = package.partition(".")[0] in sys.stdlib_module_names
        shown = name.removeprefix("builtins.") if own else name.rpartition(".")[2]
        pairs.setdefault(PYTHON if own else package, []).append((shown, detail))
    return {library: _gathered(found) for library, found in pairs.items()}


def _cell(by_detail: Mapping[str, list[str]]) -> str:
    return "<br>".join(f"**{detail}**: {_listed(names)}" for detail, names in by_detail.items())


def codes() -> str:
    """As the providers spell them, more or less: case and separators do not count."""
    firm = _gathered(_spelled(known_codes._CODES_BY_DETAIL))
    weak = _gathered(_spelled(known_codes._WEAK_CODES_BY_DETAIL))
    starts = _gathered((f"{start}…", detail) for start, detail in known_codes._CODE_STARTS)
    rows = [
        (code(detail), _listed([*firm.get(detail, ()), *starts.get(detail, ())]), _listed(weak.get(detail, ())))
        for detail in classify.DETAILS
        if detail in firm or detail in weak or detail in starts
    ]
    return table(("detail", "codes", "codes, where no HTTP status says more"), rows)


def _spelled(listed: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(word, detail) for detail, words in listed.items() for word in words.split()]


def numbers() -> str:
    """Codes of databases and remote procedures."""
    columns = {
        "SQL state": _gathered(known_codes.SQLSTATES.items()),
        "SQLite": _gathered((name.removeprefix("SQLITE_"), what) for name, what in known_codes.SQLITE_NAMES.items()),
        "gRPC": _gathered(known_codes.GRPC.items()),
        "JSON-RPC, MCP": _gathered((str(number), what) for number, what in known_codes.JSON_RPC.items()),
    }
    found = [detail for detail in classify.DETAILS if any(detail in column for column in columns.values())]
    rows = [(code(detail), *(_listed(column.get(detail, ())) for column in columns.values())) for detail in found]
    return table(("detail", *columns), rows)


def phrases() -> str:
    rows = [
        (code("context_overflow"), ", ".join(f'"{phrase}"' for phrase in classify.OVERFLOW_PHRASES)),
        (code("quota"), ", ".join(f'"{phrase}"' for phrase in classify.QUOTA_PHRASES)),
    ]
    return table(("detail", "phrases"), rows)


def stops() -> str:
    """Why a model may stop without having done its work."""
    rows = [(code(detail), _listed(reasons)) for detail, reasons in _gathered(soft._STOPS.items()).items()]
    return table(("detail", "the model stopped with"), rows)


def aliases() -> str:
    rows = [(code(detail), _listed(names)) for detail, names in _gathered(classify.ALIASES.items()).items()]
    return table(("detail", "is also understood as"), rows)


# Deciding -----------------------------------------------------------------------------------------------------------

_FLEET = agents.AgentFleet(
    {"one": agents.Agent(("example",)), "the next agent that does such work": agents.Agent(("example",))},
    {"small": agents.Model(larger="the next larger model", other="another model")},
)


def example(detail: str) -> Case:
    """A job that has everything a plan may ask for."""
    job = Job(
        "0" * 32, "example", "example", "one", State.running, 2, 0.0, 1, 0.0, 0.0, '{"max_tokens": 1001}', run=1,
        started_at=0.0, model="small",
    )  # fmt: skip
    failure = Failure(types=("x.X",), message="what it said")
    cause = classify.cause_of(detail, "example", failure)
    return Case(job, failure, cause, policy.DEFAULT, 0.0, abilities=Abilities(_FLEET))


def ways() -> str:
    conditional = [name for name, (category, *_) in classify.DETAILS.items() if category == "conditional"]
    must_match(remedies.WAYS, conditional, "WAYS (retries/remedies.py)")
    columns = ("detail", "after", "first changed try", "second", "if the task takes none of it")
    return table(columns, [(code(detail), *_way(detail, way)) for detail, way in remedies.WAYS.items()])


def _way(detail: str, way: remedies.Way) -> tuple[str, ...]:
    first, second = (way.plan(example(detail), rung) for rung in (1, 2))
    further = [change for change in second if change not in first]
    otherwise = "tried again as it is" if way.blind else "dead letter at once"
    again = "none" if way.most == 1 else _plan(further) or "the same"
    return f"{way.delay:g} s", _plan(first) or "nothing", again, otherwise


def _plan(changes: Iterable[Change]) -> str:
    return "<br>".join(map(_change, changes))


def _change(change: Change) -> str:
    name = code(remedies.change_name(change))
    match change:
        case CompressContext():
            return f"{name} to {change.max_tokens:,} tokens"
        case SimplifyTask():
            return f"{name}: {change.max_output_tokens:,} tokens of output where the limit was 1,001"
        case SetModel():
            return f"{name}: {change.model}"
        case SetAgent():
            return f"{name}: {change.agent}"
        case AddInstruction() | AddConstraint():
            return f'{name}: "{change.text}"'
        case _:
            raise SystemExit(f"tools/failures.py: no words for {change}")


STRATEGY_WORDS = {
    "if_lost": (
        "The worker's process ended, or its lease lapsed.",
        f"Run again at once; no attempt is used. After {strategy.CRASHES_BEFORE_ALONE} crashes it runs alone and waits "
        "after each further one; after `max_crashes` of those: dead letter (`crash_loop`).",
    ),
    "if_released": ("The failure says that the work was given back.", "Retried; no attempt is used."),
    "if_own_limits": (
        "This process had no memory or file descriptors left, or its own store no space.",
        "Waits 5 s, doubling to 60 s, and runs again; no attempt is used, up to 50 times (3 times for memory).",
    ),
    "if_gave_up": ("`GiveUp`, or a class of `give_up_on=`.", "Dead letter (`terminated`)."),
    "if_suspended": ("It waits for an approval or an answer.", "Held (`approval`)."),
    "if_uncertain": ("It is unknown whether the effect landed.", "Held (`outcome_unknown`), unless `idempotent=True`."),
    "if_manual": ("The task leaves every failure to a person.", "Dead letter (`permanent`)."),
    "if_exhausted": (
        "This was the last allowed attempt, and it does not heal by a change.",
        "Dead letter (`attempts_exhausted`).",
    ),
    "if_too_old": ("It has been failing for longer than `max_age`.", "Dead letter (`too_old`)."),
    "if_over_budget": ("The job's budget is spent.", "Dead letter (`budget_exhausted`)."),
    "retry_on_the_spot": (
        "It heals at once, and a caller waits.",
        f"On the spot: {strategy.SPOT_TRIES} tries in all, after {strategy.SPOT_WAIT:g} s and "
        f"{2 * strategy.SPOT_WAIT:g} s.",
    ),
    "if_permanent": (
        "Waiting does not heal it.",
        "Dead letter (`permanent`). Expired credentials [come back](#comebacks) after an hour.",
    ),
    "if_unknown": (
        "No rule knows the failure.",
        f"At most {strategy.UNKNOWN_TRIES - 1} more tries, then a dead letter (`not_known_to_heal`), unless "
        "`idempotent=True`.",
    ),
    "if_told_to_wait_long": (
        "A server asks for a wait longer than `max_wait`.",
        "Dead letter (`asked_to_wait`) in the `delayed` lane, with that time.",
    ),
    "try_changed": (
        "It heals only if something changes.",
        "Tried again changed, on top of the attempts: the table above. No rung left: dead letter (`changes_used_up`).",
    ),
    "if_told_when": (
        "The failure says when to come back.",
        f"Retried then, at most 10 % later; no sooner than {strategy.SAFE_WAIT:g} s or the backoff, whichever is less.",
    ),
    "divert": (
        "Anything else, in a script.",
        "Dead letter (`diverted`): the `delayed` lane if it may heal, changed where that helps; else `manual`.",
    ),
}


def order() -> str:
    lists = {
        "worker": strategy.CATEGORIZED,
        "`plain`": strategy.PLAIN,
        "script": strategy.CYCLE,
    }
    names = {column: [each.__name__.removeprefix("_") for each in listed] for column, listed in lists.items()}
    must_match(STRATEGY_WORDS, dict.fromkeys(name for listed in names.values() for name in listed), "STRATEGY_WORDS")
    assert strategy.RETRY_AFTER_JITTER == 0.10
    rows = [
        (*words, *("yes" if name in listed else "" for listed in names.values()))
        for name, words in STRATEGY_WORDS.items()
    ]
    rows.append(("None of these.", "Retried by the queue's backoff.", "yes", "yes", ""))
    return table(("when", "then", *names), rows)


# Before and around --------------------------------------------------------------------------------------------------


def models() -> str:
    rows = [(f"{code(start)}…", f"{size:,}") for start, size in agents.CONTEXTS.items()]
    return table(("model", "may read, in tokens"), [*rows, ("any other", f"{agents.USUAL_CONTEXT:,}")])


def fleet() -> str:
    rows = [(code(name), _listed(agent.does)) for name, agent in PRESETS["seven_agents"].agents.items()]
    return table(("agent", "does"), rows)


def breaker_options() -> str:
    names = [name for name in POLICY_WORDS if name.startswith("breaker_")]
    rows = [(code(name), said(getattr(policy.DEFAULT, name)), POLICY_WORDS[name]) for name in names]
    return table(("option", "default", "meaning"), rows)


def opening() -> str:
    ordered = [detail for detail in classify.DETAILS if detail in breaker.OPENING]
    return _listed(ordered)


FIELD_WORDS = {
    "job_id": "The job's id. Without one, the line itself is the identity.",
    "payload": "The whole input: all that is needed to run it again. Without one, the whole line.",
    "error_class": "The class of the exception; decides whether waiting heals it.",
    "attempt": "Tries so far.",
    "failed_at": "When it failed, in UTC. A time without a zone counts as UTC; a number is seconds or milliseconds "
    "since 1970.",
    "error": "What the exception said, without secrets.",
    "task": "The function that runs it.",
    "queue": "Its queue; without one, the task's name.",
    "agent": "The agent that did the work.",
    "session_id": "The session that asked for the work.",
    "created_at": "When the work was accepted.",
    "model": "The model it ran with.",
    "status": "An HTTP status.",
    "lane": "`manual` or `delayed`.",
    "category": "The category of the failure.",
    "detail": "What exactly failed; a [detail](../failures.md#what-it-means-and-what-is-done).",
    "reason": "Why it is dead; `because` everywhere else.",
    "recommendation": "What a person can do.",
    "key": "Its idempotency key.",
    "fingerprint": "Its [group](groups.md).",
    "redrive_id": "Its id here: the same job, wherever the line is imported.",
}


def fields() -> str:
    """What an export writes and which names an import can map."""
    failure = Failure(types=("x.X",), status=500)
    whole = Job(
        "0" * 32, "q", "t", "a", State.dead, 2, 0.0, 1, 0.0, 0.0, "{}", key="k", session_id="s", model="m", error="e",
        error_class="E", lane="manual", category="transient", detail="network", because="imported",
        recommendation="r", fingerprint="f", history=(Attempt(1, "failed", ended_at=0.0, failure=failure),),
    )  # fmt: skip
    written, mapped = records.make_record(whole), records.Mapping.__struct_fields__
    must_match(FIELD_WORDS, dict.fromkeys((*mapped, *written)), "FIELD_WORDS")
    assert tuple(written)[:5] == records.FIVE
    rows = [
        (f"**{code(name)}**" if name in records.FIVE else code(name), "yes" if name in mapped else "", words)
        for name, words in FIELD_WORDS.items()
    ]
    return table(("field", "`--map`", "meaning"), rows)


STATUS_WORDS = {
    "done": "It ran here and succeeded.",
    "skipped": 'It was done already in this cycle (or ever, with `repeat="never"`). Nothing ran.',
    "diverted": "It failed and may heal: it is in the `delayed` lane, and the next cycle runs it first.",
    "running_elsewhere": "Another process has it right now.",
    "discarded": "A person or a program cancelled or discarded it.",
    "needs_you": "It failed and waiting does not help, it is held, or its job_id stands for "
    "[another input](#another-input): a person must look.",
}


def cycle_statuses() -> str:
    must_match(STATUS_WORDS, cycle_rules.WORDS, "STATUS_WORDS")
    rows = [(code(name), cycle_rules.WORDS[name][1], STATUS_WORDS[name]) for name in cycle_rules.WORDS]
    return table(("status", "in the summary", "meaning"), rows)


_NIGHT = f"{insight_needs.STUCK_AFTER / HOUR:.0f} hours"
NEED_WORDS = {
    "store_failed": "The store cannot be used: it stopped after a failed write, or its file cannot be opened.",
    "process_gone": "A process is gone, or was not seen since its lease ended, and left running jobs behind.",
    "outcome_unknown": "An effect may or may not have happened; only a person can find out.",
    "approval": "A task asked a question (`ctx.approval`) and waits for the answer.",
    "consent": "A task waits for consent.",
    "dead_manual": "Dead letters in the manual lane, one line per group. Those of ignored groups are left out. "
    f"Also those of the delayed lane that failed on {insight_needs.STALE_DAYS} different days.",
    "conflicting_input": "A cycle was given another input for a job that it had done; the input is kept.",
    "cycle_missing": "A cycle ran regularly and did not run this time.",
    "cycle_died": "A cycle's script ended before its end.",
    "cycle_short": "A cycle had fewer than half of its usual jobs.",
    "stalled": "A running job has shown no progress for longer than `stalled_after`, by default 15 minutes or ten "
    "times what its task usually takes.",
    "loop_blocked": "A task keeps the event loop of a worker from running anything else.",
    "unattended": f"Due for two minutes, and no live worker takes it; or due for {_NIGHT}; or a slot of a "
    "schedule that no live worker fires.",
    "backed_up": "More jobs of a queue are due than `health_depth` allows.",
    "deferred_overdue": "The time a dead letter was deferred to has come; or one in the delayed lane "
    f"was not fetched for {_NIGHT}.",
    "spooled": "Jobs wait in the spool, because the store could not take them.",
    "disk_low": f"Less than {insight_needs.DISK_LOW // 2**20} MB are free where the database is.",
    "clock_jumped": "The clock of a machine jumped: nothing is removed by age until the new time has held for a day.",
    "replica_lag": "A replica is behind its log. (Fleets only.)",
    "channel_failed": "A notification channel does not take messages; they wait.",
}


def needs() -> str:
    must_match(NEED_WORDS, get_args(insight_needs.NeedKind), "NEED_WORDS")
    return table(("kind", "what it is"), [(code(name), words) for name, words in NEED_WORDS.items()])


ALERT_WORDS: dict[group.Kind, str] = {
    "new": "A group that was never seen before.",
    "regressed": "Another job of a resolved group died.",
    "unignored": "An ignored group passed its limit.",
}


def alerts() -> str:
    must_match({str(kind): words for kind, words in ALERT_WORDS.items()}, get_args(group.Kind), "ALERT_WORDS")
    rows = [
        (code(kind), words, f"{group.severity(kind, 1):g}", f"{group.severity(kind, group.SYSTEMIC):.2f}")
        for kind, words in ALERT_WORDS.items()
    ]
    return table(("alert", "when", "severity with 1 dead letter", f"with {group.SYSTEMIC}"), rows)


TREND_WORDS = {
    "new": "First seen less than a day ago.",
    "growing": "More deaths in the last day than in the day before.",
    "steady": "As many deaths as in the day before.",
    "shrinking": "Fewer deaths than in the day before.",
    "quiet": "No deaths for a day; some of its dead letters are still there.",
    "cured": "No deaths for a day, and none of its dead letters is left.",
}


def trends() -> str:
    must_match(TREND_WORDS, get_args(group.Trend), "TREND_WORDS")
    return table(("trend", "meaning"), [(code(name), words) for name, words in TREND_WORDS.items()])
