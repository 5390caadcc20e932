"""What a person can do about a failure, in one sentence per detail."""

from __future__ import annotations

from typing import Final

from redrive.core.job import Cause

RESOLVE: Final = "Look at the receiver. Then `redrive resolve ID --landed` or `--not-landed`."
"""For an unknown outcome."""


COMES_BACK: Final = "Nothing to do: it comes back by itself. If it fails again then: "
"""Before the advice of a dead letter that comes back by itself."""
AFTER_THE_WAIT: Final = "Redrive it when the time that was asked for is over, or discard it."
"""For a dead letter that was asked to wait and does not come back by itself."""


def for_a_person(recommendation: str | None, because: str | None) -> str | None:
    """The advice of a dead letter that does not come back by itself any more."""
    if because == "asked_to_wait":
        return AFTER_THE_WAIT
    return recommendation.removeprefix(COMES_BACK) if recommendation else recommendation


def advise_unknown(seen: str | None) -> str:
    """What to do about an unknown outcome. `seen` is what the task's verifiers saw; None where it has none."""
    if seen is None:
        return f"{RESOLVE} Or give the task a verifier."
    return f"Seen outside: {seen}. {RESOLVE}" if seen else RESOLVE


def advise_landed(seen: str | None) -> str:
    """What to do before a task with effects is brought back."""
    return f"Seen outside: {seen}. Redrive it if that is right." if seen else "See what landed, then redrive."


ADVICE: Final[dict[str, str]] = {
    "network": "See whether the receiver is up and reachable, then redrive.",
    "timeout": "See whether the receiver is slow or the timeout too short, then redrive.",
    "server_error": "The receiver is failing. Redrive when it is healthy again.",
    "rate_limited": "Lower the queue's rate or concurrency, then redrive.",
    "provider_overloaded": "The provider is overloaded. Redrive later or with another model.",
    "contention": "Something else holds the resource. Redrive when it is free.",
    "own_limits": "This machine ran out of memory, file descriptors or space for the store. Make room, then redrive.",
    "credentials": "Renew the credentials, then redrive.",
    "credentials_expired": "Refresh the expired token. Redrive brings it back at once.",
    "authority": "Give the needed permission, or let another agent do it, then redrive.",
    "impossible_task": "It cannot be done as asked. Change what is asked, or discard it.",
    "dependency_gone": "What it needs is not there any more. Bring it back or point the job elsewhere, then redrive.",
    "needs_human": "A person must act first: do what the message says, then redrive.",
    "invalid_input": "The input is refused as it stands. Correct it, then redrive, or discard it.",
    "invalid_output": "Look at what the model answered; tighten the prompt or the schema, then redrive.",
    "hallucination_loop": "The model repeats a wrong answer. Change the prompt, the model or the agent, then redrive.",
    "model_confusion": "The model lost its way. Make the task plainer or choose another model, then redrive.",
    "refusal": "The model refuses. Reword the task, choose another model, or let a person do it.",
    "token_budget": "It needs more tokens than it may use. Raise the limit or ask for less, then redrive.",
    "data_integrity": "What it refers to is gone or not there. Restore it or discard the job.",
    "quota": "Raise the quota or top up the balance, then redrive.",
    "bug": "This is a programming error. Fix the code, deploy, then redrive.",
    "interrupted_itself": "The task ends its own process (sys.exit, a signal, a cancellation). Fix it, redrive.",
    "context_overflow": "The prompt is too long. Shorten the context or split the task, then redrive.",
}

RULE_ADVICE: Final[dict[str, str]] = {
    "unfit_data": "Look at what the source sent: it is not what the task expects (often an HTML page instead of JSON, "
    "or a changed format). Correct the source or the code that reads it, then redrive. If a model wrote it, adapt= on "
    "the task says so.",
}
"""The same for what no detail tells, by the rule that knew it."""


def advice_for(cause: Cause, otherwise: str) -> str:
    """Return what a person can do about a cause: what its rule advises, else its detail, else `otherwise`."""
    return RULE_ADVICE.get(cause.rule) or ADVICE.get(cause.detail, otherwise)
