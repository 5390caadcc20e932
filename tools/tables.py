"""Tables for the docs, from the tables of the code. What the code says in numbers is said here in words, once.

A new move, field, reason or rule without its words here ends the generation: nothing new stays undocumented.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from redrive.config import _PLAIN, Settings
from redrive.core import lifecycle, policy
from redrive.core.agents import Agent, Model
from redrive.core.job import DEAD_REASONS, HOLD_REASONS, PRIORITIES
from redrive.core.notice import NotifyPolicy
from redrive.core.pain import SignalPolicy
from redrive.core.policy import Policy
from redrive.core.presets import PRESETS
from redrive.failures.classify import DeclaredRule
from redrive.http.delivery import DeliveryPolicy


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
    "attempts_exhausted": "It failed as often as it may.",
    "terminated": "The task raised `GiveUp`, or an error of `give_up_on=`.",
    "unroutable": "It was due for an hour, and no live worker knows its task.",
    "preflight_rejected": "A [check before the run](preflight.md) said no; no attempt was used.",
    "context_overflow": "The prompt did not fit the model, also after it was shortened.",
    "permanent": "The failure is of a kind that waiting does not heal.",
    "too_old": "It kept failing for longer than `max_age`.",
    "crash_loop": "Its worker's process ended `max_crashes` times (3) while the job ran alone in it.",
    "budget_exhausted": "Its attempts together spent the budget.",
    "outcome_unknown": "It is unknown whether its effect landed, and no person looked for a week, or "
    '`on_lost="dead_letter"` forbids a second start.',
    "diverted": "It failed in a [script](howto/scripts.md): it comes back in the next cycle, or needs eyes.",
    "imported": "It failed elsewhere and was brought here.",
    "restored": "It was discarded, and a person wanted it back.",
    "conflicting_input": "A [script](howto/scripts.md#another-input) gave a job_id that its cycle knows with another "
    "input. It has not run.",
    "asked_to_wait": "What it calls asked for a wait longer than `max_wait`. It comes back at the time that was asked "
    "for.",
    "changes_used_up": "It heals only if [something changes](strategies.md), and its changed tries are used up, or its "
    "task takes no change that would help.",
    "not_known_to_heal": "No rule knows its error, and it failed three times.",
}

HOLD_WORDS = {
    "approval": "[A person must answer](consent.md#questions).",
    "consent": "[The session must agree](consent.md).",
    "outcome_unknown": "An effect was begun, and it is unknown whether it landed. "
    "[A person must look](effects.md#what-is-held).",
    "circuit_open": "What it calls is down. It [comes back by itself](breakers.md).",
    "blocked": "Another [step of its workflow](howto/workflows.md) must be done first.",
    "deferred": "A person [deferred it](howto/triage.md#the-verbs) until a later time.",
}


def dead_reasons() -> str:
    must_match(DEAD_WORDS, DEAD_REASONS, "DEAD_WORDS")
    return table(("reason", "why it is dead"), [(code(name), words) for name, words in DEAD_WORDS.items()])


def hold_reasons() -> str:
    must_match(HOLD_WORDS, HOLD_REASONS, "HOLD_WORDS")
    rows = [(code(name), words) for name, words in HOLD_WORDS.items()]
    return table(("reason", "what it waits for"), rows)


# Policies -----------------------------------------------------------------------------------------------------------

POLICY_WORDS = {
    "max_attempts": "Attempts in all, the first included.",
    "backoff": "How the waits grow: a name from the table of backoffs or, in Python, a function from the number of "
    "failures to seconds.",
    "base": "The first wait, in seconds.",
    "cap": "No wait of redrive's own is longer than this, that of a changed try included.",
    "max_wait": "The longest wait, in seconds, that a server may ask for with Retry-After or a reset. A longer one "
    "makes a dead letter in the `delayed` lane that comes back at that time.",
    "jitter": "The part of a wait by which it varies at random, so that retries do not all come at once.",
    "lease": "Seconds without a heartbeat after which a running job counts as lost.",
    "max_age": "Seconds of failing, from the first failure on, after which it is no longer retried.",
    "on_lost": '`"retry"`, or `"dead_letter"` where a second start would do harm.',
    "comebacks": "Seconds after its death at which a dead letter comes back by itself, where its cause may heal. "
    "`[]` turns that off.",
    "max_crashes": "The number of processes that may end while the job runs alone in them, with waits between; then it "
    "becomes a dead letter.",
    "strategy": '`"categorized"`: what waiting cannot heal is not retried. `"plain"`: every failure is retried until '
    "the attempts are used up.",
    "rungs": "Changed tries that a job may have, all together, on top of its attempts; 0: none.",
    "changed_after": 'Seconds before a changed try: a number, or numbers by detail, `{"invalid_output": 5}`. Without '
    "it: what the table of strategies says, and 1 s where a caller waits.",
    "quote_errors": "Whether a retry may show the model what the failure said: shortened, fenced, marked as untrusted.",
    "breaker_after": "The number of consecutive failures of one cause that opens the breaker of the called service; 0: "
    "never.",
    "breaker_window": "Seconds within which these failures must happen.",
    "breaker_pause": "Seconds before the first probe; doubles with each probe that fails, up to 300.",
    "breaker_release": "Parked jobs that are released per second after a successful probe; doubles each second, up to "
    "1,000.",
    "concurrency": "Jobs of the queue that run at once.",
    "rate": "Starts in so many seconds: `Rate(count, per)`, in the file `{ count = 10, per = 60 }`.",
    "scope": '`"process"`: concurrency and rate hold for each worker process. `"store"`: for all of them together.',
    "timeout": "Seconds that an attempt may take, where its task does not say.",
    "stalled_after": "A job without progress for longer is named by `health`; it is not stopped. Without it: "
    "15 minutes, or ten times what its task usually takes.",
    "health_depth": "With more pending jobs than this the queue counts as backed up.",
    "pain_depth": "More pending jobs than this send a signal.",
    "pain_dead": "More dead letters for a person than this send a signal.",
    "criticality": "A label for people, shown in the numbers: " + ", ".join(code(name) for name in PRIORITIES) + ".",
    "retention": "Seconds until the payload and result of an ended job are dropped. Dead letters stay.",
    "fallback": "Whether work that the store cannot take waits in the spool; or a function that does the work if "
    "the spool fails, too.",
    "fallback_after": "Seconds that the store has to accept a job with a fallback.",
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
    rows = [(code(name), *_layer(layer)) for name, layer in policy.REASONS.items()]
    return table(("reason", "differs from the defaults in", "waits, in seconds"), rows)


def _layer(layer: Policy) -> tuple[str, str]:
    return _differences(layer), _schedule(policy.merge(layer, policy.DEFAULT))


def agent_policy() -> str:
    layer = PRESETS["seven_agents"].agent_policy or Policy()
    return table(("differs from the defaults in", "waits, in seconds"), [_layer(layer)])


def _differences(layer: Policy) -> str:
    fields = {name: getattr(layer, name) for name in Policy.__struct_fields__}
    listed = [f"{name} {said(value)}" for name, value in fields.items() if value is not None]
    return ", ".join(listed) or "nothing"


def _schedule(whole: Policy) -> str:
    return ", ".join(f"{wait:g}" for wait in policy.schedule(whole)) or "none: one attempt"


def preset_queues() -> str:
    rows = []
    for name, preset in PRESETS["agent_os"].queues.items():
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
    "url": "The database: a path, `sqlite:path`, or `:memory:` for a temporary file; or a fleet: `https://host:8420` "
    "(hubs, with commas between), `nats://host:4222/namespace`, `postgresql://host/database`. Not set: "
    "`$XDG_STATE_HOME/redrive/jobs.db`, and without that variable `~/.local/state/redrive/jobs.db`.",
    "preset": "[Presets](../presets.md): `agent_os`, `seven_agents`, or both as a list, in the variable with a comma "
    "between. Not set: no queues and no agents but yours.",
    "concurrency": "Jobs that one worker process runs at once.",
    "agent_concurrency": "Jobs of one agent that one worker process runs at once.",
    "agent_scope": "`process`, or `store`: `agent_concurrency` holds over all workers of all hosts.",
    "grace": "Seconds that running jobs have to finish when a worker is told to stop.",
    "poll": "Seconds between looks when nothing seems due. New work wakes a worker at once.",
    "payload_limit": "Bytes of a payload, as JSON.",
    "retention": "Seconds until the payload and result of ended jobs are dropped, where the queue does not say. "
    "Dead letters stay.",
    "key_retention": "Seconds until the idempotency keys of ended jobs are forgotten. Not set: never.",
    "replica": "With a `nats://` URL: keep a replica of the log in this process instead of asking hubs.",
    "replica_days": "A replica's file that was not opened for so many days is deleted before it is read.",
    "replica_folder": "Where this machine keeps its replicas and what belongs to them. Not set: a folder per fleet "
    "beside the default database.",
    "inbox": "The database in which [`within=`](../howto/transactions.md) leaves jobs, as `postgresql://…` or "
    "`sqlite:///…`: workers move them into the store. Not set: none.",
    "spool": "The folder of the spool. Not set: beside the database, `jobs.db-spool`.",
    "fallback": "Whether work that the store cannot take waits in the spool, where neither task nor queue says.",
    "fallback_after": "Seconds that the store has to accept a job with a fallback.",
    "trace_url": "Where a job's trace is shown: a URL with `{trace_id}`, for the link on the job's page and in"
    " `redrive dead show`. For example `https://traces.example.org/trace/{trace_id}`; Sentry and Logfire have such"
    " addresses, too.",
    "ring": "How many recent events the bus of a process remembers.",
    "repeats": "The number of equal actions without success, among the last `repeats_window` actions of a session, "
    "that make a [loop](../agents.md#an-agent-that-repeats-itself): the agent is told, then people. 0 turns it off.",
    "repeats_window": "The last actions of a session that are looked at.",
    "version": "Of your application; kept with each attempt, so that a resolved group knows which version brought it "
    "back.",
    "escalation": "The agent or person who owns dead letters that no retry and no other agent can solve. Not set: the "
    "preset's, and without a preset dead letters have no owner. Empty: no owner in any case.",
    "triage": "`false` is another way to say `comebacks = []`.",
    "comebacks": "When dead letters come back by themselves, in seconds after their death, for every queue and task "
    "that does not say: see [comebacks](../strategies.md#comebacks). `[]` turns it off.",
    "agents": "[Who does what](../strategies.md#other-agents-and-models), as tables `[agents.NAME]` with `does` and "
    "`models`; they go over those of the preset.",
    "agent_policy": "What holds for jobs with an agent where neither job, task, queue nor reason says, as a table "
    "`[agent_policy]` with the options of the [policies](../policies.md).",
    "models": "[What is known of models](../preflight.md#what-a-model-may-read), as tables `[models.NAME]` with "
    "`context`, `larger`, `other`.",
    "rules": "[Rules of your own](../failures.md#say-it-yourself) for failures, as tables `[[rules]]` with `detail` "
    "and any of `class`, `status`, `code`, `message`, `error_kind`.",
    "queues": "Policies by queue, as tables `[queues.NAME]`. The options are those of the [policies](../policies.md).",
    "delivery": "What HTTP deliveries may do, as a table `[delivery]`.",
    "notify": "The channels that tell people what they must know, as a table `[notify]`.",
    "signals": "What a pain does without code, as a table `[signals]`.",
}

DELIVERY_WORDS = {
    "allow": "Private addresses that deliveries may reach: networks, hosts, `host:port`, `*.suffix`.",
    "timeout": "Seconds for a whole delivery, where the job does not say.",
    "max_response": "Bytes of an answer that are kept, counted after decompression.",
    "credentials": "Which environment variables `auth`, `sign` and headers may name, as patterns.",
    "ca_file": "A file of certificates to trust instead of the system's. Without it, `SSL_CERT_FILE` and "
    "`SSL_CERT_DIR` do the same.",
}


TABLES = {name for name in Settings.__struct_fields__ if name not in _PLAIN}
"""Settings that are tables; no variable can set them."""


def settings() -> str:
    must_match(SETTING_WORDS, Settings.__struct_fields__, "SETTING_WORDS")
    return _fields(Settings, SETTING_WORDS, variables=True)


def delivery() -> str:
    must_match(DELIVERY_WORDS, DeliveryPolicy.__struct_fields__, "DELIVERY_WORDS")
    return _fields(DeliveryPolicy, DELIVERY_WORDS, variables=False)


NOTIFY_WORDS = {
    "urls": "Channels, as [Apprise](https://github.com/caronc/apprise) URLs or, where they hold a secret, as "
    "`env:NAME`. Needs the extra `notify`.",
    "page_after": "The number of dead letters within `page_window` that pages a person.",
    "page_window": "The seconds within which dead letters are counted for `page_after`.",
}


def notify() -> str:
    must_match(NOTIFY_WORDS, NotifyPolicy.__struct_fields__, "NOTIFY_WORDS")
    return _fields(NotifyPolicy, NOTIFY_WORDS, variables=False)


SIGNAL_WORDS = {
    "run": "A command, started without a shell, once for each pain; it gets the pain, health, the group and the last "
    "errors as JSON on its standard input.",
    "enqueue": "The name of a task that is enqueued once for each pain, with the same as its payload: `pain`, "
    "`health`, `group`, `errors`.",
}


def signals() -> str:
    must_match(SIGNAL_WORDS, SignalPolicy.__struct_fields__, "SIGNAL_WORDS")
    return _fields(SignalPolicy, SIGNAL_WORDS, variables=False)


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
    dict[str, Agent]: "tables",
    Policy | None: "table",
    dict[str, Model]: "tables",
    tuple[DeclaredRule, ...]: "tables",
    DeliveryPolicy: "table",
    NotifyPolicy: "table",
    SignalPolicy: "table",
    tuple[str, ...]: "list of texts",
    tuple[float, ...] | None: "list of numbers",
}


def kind(annotation: Any) -> str:
    return KINDS[annotation]
