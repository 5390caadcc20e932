"""Says what to write instead of an option that does not exist."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_OF_TASKS: Final = {
    "name": 'the name goes first: @rd.task("name")',
    "retries": "max_attempts counts the first try, too: retries=3 is max_attempts=4",
    "max_retries": "max_attempts counts the first try, too: max_retries=3 is max_attempts=4",
    "cron": 'it is called schedule: schedule="0 3 * * *"',
    "key": 'it is called idempotency_key: idempotency_key="order_{order_id}"',
    "bind": "give the function a first parameter `ctx: redrive.Context`",
    "time_limit": "it is called timeout",
    "soft_time_limit": "it is called timeout",
    "rate_limit": "it is called rate: rate=redrive.Rate(10, per=60)",
    "retry_backoff": "it is called backoff, and base sets the first wait",
    "retry_delay": "it is called base: the first wait, in seconds",
    "delay": "it belongs to one job: task.options(delay=…).enqueue(…)",
    "priority": "it belongs to one job: task.options(priority=…).enqueue(…)",
}
_OF_JOBS: Final = {
    "key": 'it is called idempotency_key: options(idempotency_key="order_17")',
    "id": 'it is called idempotency_key: options(idempotency_key="order_17")',
    "task_id": 'it is called idempotency_key: options(idempotency_key="order_17")',
    "countdown": "it is called delay",
    "eta": "it is called run_at",
    "expires": "it is called max_age",
    "retries": "max_attempts counts the first try, too: retries=3 is max_attempts=4",
    "max_retries": "max_attempts counts the first try, too: max_retries=3 is max_attempts=4",
    "session": "it is called session_id",
    "timeout": "it belongs to the task: @rd.task(timeout=…)",
    "transaction": "it is called within: options(within=session)",
}


def hint_for_task(name: str, known: Collection[str]) -> str:
    """What to write instead of an unknown option of `rd.task`."""
    return _hint(name, known, _OF_TASKS)


def hint_for_job(name: str, known: Collection[str]) -> str:
    """What to write instead of an unknown option of one job."""
    return _hint(name, known, _OF_JOBS)


def _hint(name: str, known: Collection[str], hints: dict[str, str]) -> str:
    if name in hints:
        return hints[name]
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
