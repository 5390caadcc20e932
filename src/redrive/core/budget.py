"""What all attempts of a job together may spend: tokens, money, seconds."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.checks import MOST, check_number, check_range
from redrive.core.job import Attempt, Budget, Job, Usage
from redrive.errors import InvalidOption


def check_budget(said: object) -> Budget:
    """Tokens are whole; money and seconds are numbers; none of them is below 0."""
    if not isinstance(said, Budget):
        raise InvalidOption(field="budget", problem="must be a redrive.Budget")
    for name in ("tokens", "output_tokens"):
        if (value := getattr(said, name)) is not None:
            check_range(f"budget.{name}", value, 0, MOST)
    for name in ("cost", "seconds"):
        if (value := getattr(said, name)) is not None:
            check_number(f"budget.{name}", value)
    return said


def check_usage(input_tokens: object, output_tokens: object, cost: object) -> Usage:
    """What was spent is counted against budgets: what is no amount would be lost there."""
    return Usage(
        check_range("usage.input_tokens", input_tokens, 0, MOST),
        check_range("usage.output_tokens", output_tokens, 0, MOST),
        check_number("usage.cost", cost),
    )


def recent(job: Job) -> Sequence[Attempt]:
    """Attempts since a person last brought the job back: a fresh start has a fresh budget."""
    return [attempt for attempt in job.history if attempt.run > job.fresh_from]


def sum_usage(job: Job, usage: Usage | None) -> Usage:
    """What the recent attempts have used, the present one included."""
    total = usage or Usage()
    for attempt in recent(job):
        total = total + attempt.usage if attempt.usage is not None else total
    return total


def seconds_run(job: Job, now: float) -> float:
    runs = [(attempt.started_at, attempt.ended_at) for attempt in recent(job)] + [(job.started_at, now)]
    return sum(max(0.0, end - start) for start, end in runs if start is not None and end is not None)


def find_overspent(budget: Budget, job: Job, usage: Usage | None, now: float) -> str | None:
    """Which part of the budget is used up, in words."""
    used = sum_usage(job, usage)
    for name, limit, amount in (
        ("tokens", budget.tokens, used.input_tokens + used.output_tokens),
        ("output tokens", budget.output_tokens, used.output_tokens),
        ("money", budget.cost, used.cost),
        ("seconds", budget.seconds, seconds_run(job, now)),
    ):
        if limit is not None and amount >= limit:
            return f"{amount:g} of {limit:g} {name}"
    return None


def compute_rest(budget: Budget, job: Job, usage: Usage | None, now: float) -> Budget:
    """What is still there of each part that has a limit."""
    used = sum_usage(job, usage)
    return Budget(
        tokens=_rest(budget.tokens, used.input_tokens + used.output_tokens),
        output_tokens=_rest(budget.output_tokens, used.output_tokens),
        cost=None if budget.cost is None else max(0.0, budget.cost - used.cost),
        seconds=None if budget.seconds is None else max(0.0, budget.seconds - seconds_run(job, now)),
    )


def _rest(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)
