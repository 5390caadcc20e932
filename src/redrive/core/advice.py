"""What a person can do about a failure, in one sentence per detail."""

from __future__ import annotations

from typing import Final

RESOLVE: Final = "Look at the receiver. Then `redrive resolve ID --landed` or `--not-landed`."
"""For an outcome that nobody knows."""

ADVICE: Final[dict[str, str]] = {
    "network": "See whether the receiver is up and reachable, then redrive.",
    "timeout": "See whether the receiver is slow or the timeout too short, then redrive.",
    "server_error": "The receiver is failing. Redrive when it is healthy again.",
    "rate_limited": "Lower the queue's rate or concurrency, then redrive.",
    "provider_overloaded": "The provider is overloaded. Redrive later or with another model.",
    "contention": "Something else holds the resource. Redrive when it is free.",
    "credentials": "Renew the credentials, then redrive.",
    "credentials_expired": "Refresh the expired token; it comes back by itself, or redrive it now.",
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
    "context_overflow": "The prompt is too long. Shorten the context or split the task, then redrive.",
}
