"""Tables for the docs, from the tables of the code. What the code says in numbers is said here in words, once.

A new move, field, reason or rule without its words here ends the generation: nothing new stays undocumented.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from redrive.config import _PLAIN, Settings
from redrive.core import lifecycle, policy
from redrive.core.agents import Agent, Model
from redrive.core.classify import DeclaredRule
from redrive.core.job import DEAD_REASONS, HOLD_REASONS, PRIORITIES
from redrive.core.notices import NotifyPolicy
from redrive.core.policy import Policy
from redrive.runtime.delivery import DeliveryPolicy


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


def span(seconds: float) -> str:
    """Seconds as people say them."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:g} s"


def must_match(words: Mapping[str, object], names: Iterable[str], what: str) -> None:
    names = list(names)
    missing, gone = [n for n in names if n not in words], [n for n in words if n not in names]
    if missing or gone:
        raise SystemExit(f"tools/tables.py, {what}: no words for {missing}, words for nothing: {gone}")


# The lifecycle ------------------------------------------------------------------------------------------------------


def moves() -> str:
    rows = [(code(move.name), _states(move.sources), _states(move.to), move.note) for move in lifecycle.MOVES.values()]
    return table(("move", "from", "to", "what happened"), rows)


def _states(states: Sequence[object]) -> str:
    return ", ".join(code(state) if state else "(new)" for state in states)


def diagram() -> str:
    return f"```mermaid\n{lifecycle.diagram()}\n```"


DEAD_WORDS = {
    "attempts_exhausted": "It failed as often as it may: its attempts, its changed tries, or three times with an error "
    "that nobody knows.",
    "terminated": "The task raised `GiveUp`, or an error of `give_up_on=`.",
    "unroutable": "It was due for an hour, and no live worker knows its task.",
    "preflight_rejected": "A [check before the run](preflight.md) said no; no attempt was used.",
    "context_overflow": "The prompt did not fit the model, also after it was shortened.",
    "permanent": "The failure is of a kind that waiting does not heal.",
    "too_old": "It kept failing for longer than `max_age`.",
    "crash_loop": "It ended its worker process three times, the last time running alone.",
    "budget_exhausted": "Its attempts together spent the budget.",
    "outcome_unknown": "Nobody knows whether its effect landed, and nobody looked for a week, or "
    '`on_lost="dead_letter"` forbids a second start.',
    "diverted": "It failed in a [script](howto/scripts.md): it comes back in the next cycle, or needs eyes.",
    "imported": "It failed elsewhere and was brought here.",
    "restored": "It was discarded, and a person wanted it back.",
}

HOLD_WORDS = {
    "approval": "[A person must answer](consent.md#questions).",
    "consent": "[The session must agree](consent.md).",
    "outcome_unknown": "An effect was begun and nobody knows whether it landed. "
    "[Somebody must look](effects.md#what-is-held).",
    "circuit_open": "What it calls is down. It [comes back by itself](breakers.md).",
    "blocked": "Another [step of its workflow](howto/workflows.md) must be done first.",
    "deferred": "Somebody put it off.",
}

NOT_YET = {"deferred"}
"""Hold reasons that nothing gives today; the words are kept ready in the schema."""


def dead_reasons() -> str:
    must_match(DEAD_WORDS, DEAD_REASONS, "DEAD_WORDS")
    return table(("reason", "why it is dead"), [(code(name), words) for name, words in DEAD_WORDS.items()])


def hold_reasons() -> str:
    must_match(HOLD_WORDS, HOLD_REASONS, "HOLD_WORDS")
    rows = [(code(name), words) for name, words in HOLD_WORDS.items() if name not in NOT_YET]
    return table(("reason", "what it waits for"), rows)


# Policies -----------------------------------------------------------------------------------------------------------

POLICY_WORDS = {
    "max_attempts": "Attempts in all, the first included.",
    "backoff": "How the waits grow: a name from the table of backoffs or, in Python, a function from the number of "
    "failures to seconds.",
    "base": "The first wait, in seconds.",
    "cap": "No wait is longer than this, also where a server asks for more with Retry-After.",
    "jitter": "Waits differ at random by up to this part of themselves, so that retries do not come in step.",
    "lease": "Seconds without a heartbeat after which a running job counts as lost.",
    "max_age": "Seconds of failing, from the first failure on, after which it is no longer retried.",
    "on_lost": '`"retry"`, or `"dead_letter"` where a second start would do harm.',
    "strategy": '`"categorized"`: what waiting cannot heal is not retried. `"plain"`: every failure is retried until '
    "the attempts are used up.",
    "rungs": "How often a failure that needs a change is tried again, each time changed further.",
    "quote_errors": "Whether a retry may show the model what the failure said: shortened, fenced, marked as untrusted.",
    "breaker_after": "So many failures of one cause in a row open the breaker of what is called; 0: never.",
    "breaker_window": "Seconds within which they must come.",
    "breaker_pause": "Seconds before the first probe; doubles with each probe that fails, up to 300.",
    "breaker_release": "Parked jobs let go per second once a probe got through; doubles each second, up to 1,000.",
    "concurrency": "Jobs of the queue that run at once.",
    "rate": "Starts in so many seconds: `Rate(count, per)`, in the file `{ count = 10, per = 60 }`.",
    "scope": '`"process"`: concurrency and rate hold for each worker process. `"store"`: for all of them together.',
    "stalled_after": "A job that runs for longer is named by `health`; it is not stopped.",
    "health_depth": "More due jobs than this and the queue counts as backed up.",
    "pain_depth": "More due jobs than this send a signal.",
    "pain_dead": "More dead letters than this send a signal.",
    "criticality": "A label for people, shown in the numbers: " + ", ".join(code(name) for name in PRIORITIES) + ".",
    "retention": "Seconds until the payload and result of an ended job are dropped. Dead letters stay.",
}


def policy_fields() -> str:
    must_match(POLICY_WORDS, Policy.__struct_fields__, "POLICY_WORDS")
    rows = [(code(name), said(getattr(policy.DEFAULT, name)), words) for name, words in POLICY_WORDS.items()]
    return table(("option", "default", "meaning"), rows)


def said(value: object) -> str:
    """A value as one would write it in redrive.toml."""
    if value is None:
        return "none"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return code(f"{value:g}" if value < 100_000 else f"{value:.0f}")
    if isinstance(value, str):
        return code(f'"{value}"')
    return code(list(value)) if isinstance(value, tuple) else code(value)


def reasons() -> str:
    layers = {f"`{name}`": layer for name, layer in policy.REASONS.items()} | {"any, with `agent=`": policy.AGENT}
    rows = [
        (name, _differences(layer), _schedule(policy.merge(layer, policy.DEFAULT))) for name, layer in layers.items()
    ]
    return table(("reason", "differs from the defaults in", "waits, in seconds"), rows)


def _differences(layer: Policy) -> str:
    fields = {name: getattr(layer, name) for name in Policy.__struct_fields__}
    listed = [f"{name} {said(value)}" for name, value in fields.items() if value is not None]
    return ", ".join(listed) or "nothing"


def _schedule(whole: Policy) -> str:
    return ", ".join(f"{wait:g}" for wait in policy.schedule(whole)) or "none: one attempt"


def presets() -> str:
    rows = []
    for name, preset in policy.PRESETS.items():
        whole = policy.merge(preset, policy.DEFAULT)
        waits = policy.schedule(whole)
        rows.append(
            (code(name), str(whole.max_attempts), _schedule(whole), span(sum(waits)), str(whole.criticality)),
        )
    return table(("queue", "attempts", "waits, in seconds", "waits in all", "criticality"), rows)


BACKOFF_WORDS = {
    "doubling": "`base`, then twice as long each time. The default.",
    "adaptive": "Patient at first, then steady.",
    "fixed_10s": "Always ten seconds.",
    "exponential": "From ten seconds, doubling, at most two minutes; `base` does not matter.",
    "none": "At once.",
}


def backoffs() -> str:
    must_match(BACKOFF_WORDS, policy.BACKOFFS, "BACKOFF_WORDS")
    rows = []
    for name, words in BACKOFF_WORDS.items():
        whole = policy.merge(Policy(backoff=name, max_attempts=9), policy.DEFAULT)
        rows.append((code(name), _schedule(whole), words))
    return table(("name", "first eight waits with the default base and cap", "in words"), rows)


# Settings -----------------------------------------------------------------------------------------------------------

SETTING_WORDS = {
    "url": "The database: a path, `sqlite:path`, or `:memory:` for a temporary file. Not set: "
    "`$XDG_STATE_HOME/redrive/jobs.db`, and without that variable `~/.local/state/redrive/jobs.db`.",
    "concurrency": "Jobs that one worker process runs at once.",
    "agent_concurrency": "Jobs of one agent that one worker process runs at once.",
    "grace": "Seconds that running jobs have to finish when a worker is told to stop.",
    "poll": "Seconds between looks when nothing seems due. New work wakes a worker at once.",
    "payload_limit": "Bytes of a payload, as JSON.",
    "retention": "Seconds until the payload and result of ended jobs are dropped, where the queue does not say. "
    "Dead letters stay.",
    "key_retention": "Seconds until the idempotency keys of ended jobs are forgotten. Not set: never.",
    "spool": "The folder of the spool. Not set: beside the database, `jobs.db-spool`.",
    "ring": "How many recent events the bus of a process remembers.",
    "version": "Of your application; kept with each attempt, so that a resolved group knows which version brought it "
    "back.",
    "escalation": "The agent who gets what no other can do.",
    "triage": "Workers try the best known strategy once on what was escalated, and defer the rest to a person.",
    "triage_owner": "Whom they defer it to.",
    "triage_defer": "For how long, in seconds.",
    "agents": "[Who does what](../strategies.md#other-agents-and-models), as tables `[agents.NAME]` with `does` and "
    "`models`; replaces the built-in map.",
    "models": "[What is known of models](../preflight.md#what-a-model-may-read), as tables `[models.NAME]` with "
    "`context`, `larger`, `other`.",
    "rules": "[Rules of your own](../failures.md#say-it-yourself) for failures, as tables `[[rules]]` with `detail` "
    "and any of `class`, `status`, `code`, `message`, `error_kind`.",
    "queues": "Policies by queue, as tables `[queues.NAME]`. The options are those of the [policies](../policies.md).",
    "delivery": "What HTTP deliveries may do, as a table `[delivery]`.",
    "notify": "Whom to tell what people must know, as a table `[notify]`.",
}

DELIVERY_WORDS = {
    "allow": "Private addresses that deliveries may reach: networks, hosts, `host:port`, `*.suffix`.",
    "timeout": "Seconds for a whole delivery, where the job does not say.",
    "max_response": "Bytes of an answer that are kept, counted after decompression.",
    "credentials": "Which environment variables `auth`, `sign` and headers may name, as patterns.",
    "ca_file": "Certificates to trust instead of the system's.",
}


TABLES = {name for name in Settings.__struct_fields__ if name not in _PLAIN}
"""Settings that are tables of their own: no variable can say them."""


def settings() -> str:
    must_match(SETTING_WORDS, Settings.__struct_fields__, "SETTING_WORDS")
    return _fields(Settings, SETTING_WORDS, variables=True)


def delivery() -> str:
    must_match(DELIVERY_WORDS, DeliveryPolicy.__struct_fields__, "DELIVERY_WORDS")
    return _fields(DeliveryPolicy, DELIVERY_WORDS, variables=False)


NOTIFY_WORDS = {
    "urls": "Channels, as [Apprise](https://github.com/caronc/apprise) URLs or, where they hold a secret, as "
    "`env:NAME`. Needs the extra `notify`.",
    "page_after": "So many dead letters within `page_window` page a person.",
    "page_window": "Seconds.",
}


def notify() -> str:
    must_match(NOTIFY_WORDS, NotifyPolicy.__struct_fields__, "NOTIFY_WORDS")
    return _fields(NotifyPolicy, NOTIFY_WORDS, variables=False)


def _fields(struct: type[msgspec.Struct], words: Mapping[str, str], *, variables: bool) -> str:
    rows = []
    for field in msgspec.structs.fields(struct):
        default = "" if field.name in TABLES else said(field.default) if field.default != "" else "none"
        name = [code(field.name)] + ([_variable(field.name)] if variables else [])
        rows.append((*name, kind(field.type), default, words[field.name]))
    return table(("setting", *(["variable"] if variables else []), "type", "default", "meaning"), rows)


def _variable(name: str) -> str:
    return "in the file only" if name in TABLES else code(f"REDRIVE_{name.upper()}")


KINDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "number",
    float: "number",
    str | None: "text",
    int | None: "number",
    float | None: "number",
    dict[str, Policy]: "tables",
    dict[str, Agent] | None: "tables",
    dict[str, Model]: "tables",
    tuple[DeclaredRule, ...]: "tables",
    DeliveryPolicy: "table",
    NotifyPolicy: "table",
    tuple[str, ...]: "list of texts",
}


def kind(annotation: Any) -> str:
    return KINDS[annotation]
