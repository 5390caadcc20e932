"""What a failure costs: exception → Failure → Cause → fingerprint → decision, in microseconds of CPU.

`python -m benchmarks.failing` prints the table. SDK errors stand here as classes of their shape, built around real
httpx2 responses: the reading is the same, and nothing has to be installed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from benchmarks.bench import Bench, Check
from redrive.core.job import Job, State
from redrive.core.policy import DEFAULT
from redrive.failures.capture import capture, find_soft_failure
from redrive.failures.classify import classify
from redrive.failures.fingerprint import fingerprint
from redrive.retries.decision import Case
from redrive.retries.strategy import decide

LIMIT_US = 100.0
"""What the whole way may take for a usual exception."""
NOW = 1_700_000_000.0


class StatusError(Exception):
    """As the SDKs of model providers build theirs."""

    def __init__(self, status: int, body: dict[str, object], headers: dict[str, str]) -> None:
        super().__init__(f"Error code: {status} - {body}")
        request = httpx2.Request("POST", "https://api.provider.example/v1/messages")
        self.request = request
        self.response = httpx2.Response(status, headers=headers, json=body, request=request)
        self.status_code = status
        self.body = body


def _answered(status: int, kind: str, message: str, **headers: str) -> StatusError:
    given = {"date": "Tue, 14 Nov 2023 22:13:20 GMT", "content-type": "application/json", "server": "edge"}
    limits = {f"x-ratelimit-{name}-{part}": "1" for name in ("requests", "tokens") for part in ("limit", "remaining")}
    return StatusError(status, {"type": "error", "error": {"type": kind, "message": message}}, given | limits | headers)


def _by_httpx(status: int) -> Exception:
    request = httpx2.Request("GET", "https://example.org/orders/17")
    try:
        httpx2.Response(status, text="no", request=request).raise_for_status()
    except httpx2.HTTPStatusError as error:
        return error
    raise AssertionError("a status that does not raise")


def _chained() -> Exception:
    try:
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except ConnectionResetError as reset:
            raise httpx2.ReadError("reset") from reset
    except httpx2.ReadError as read:
        error = RuntimeError("could not fetch the draft")
        error.__cause__ = read
        return error


def _not_json() -> Exception:
    try:
        json.loads('{"title": "a draft", "text": ' * 20)
    except ValueError as error:
        return error
    raise AssertionError("that was JSON")


CASES: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("no such order: 17"),
    "TimeoutError": lambda: TimeoutError("the read timed out"),
    "FileNotFoundError": lambda: FileNotFoundError(2, "No such file or directory", "draft.md"),
    "JSONDecodeError": _not_json,
    "httpx2.ConnectError": lambda: httpx2.ConnectError("Connection refused"),
    "httpx2 status 503": lambda: _by_httpx(503),
    "provider 429": lambda: _answered(429, "rate_limit_error", "slow down", **{"retry-after": "17"}),
    "provider 529 in a stream": lambda: _answered(200, "overloaded_error", "Overloaded"),
    "provider 400, too long": lambda: _answered(400, "invalid_request_error", "prompt is too long: 9 > 8"),
    "a chain of three": _chained,
    "a group of three": lambda: ExceptionGroup("many", [ValueError("a"), TimeoutError("b"), _by_httpx(429)]),
}


def _raised(make: Callable[[], BaseException]) -> BaseException:
    def inner() -> None:
        raise error

    error = make()
    try:
        inner()
    except BaseException as caught:
        return caught
    raise AssertionError("raising did not raise")


def _a_job() -> Job:
    return Job("0" * 32, "default", "bench", None, State.running, 2, NOW, 2, NOW, NOW, '{"n":1}', run=1)


def judge(error: BaseException, job: Job) -> str:
    """The whole way of one failure; what comes out is what would be written."""
    failure = capture(error, now=NOW)
    cause = classify(failure)
    fingerprint(failure, job.task, job.model)
    return decide(Case(job, failure, cause, DEFAULT, NOW)).why


def _each(action: Callable[[], object], rounds: int, repeats: int) -> float:
    """Microseconds of processor time of one call, in the best of several series.

    Nothing here waits for anything, so what makes a series slower is somebody else on the machine (as for `timeit`).
    """
    series = []
    for _ in range(repeats):
        began = time.thread_time_ns()
        for _ in range(rounds):
            action()
        series.append((time.thread_time_ns() - began) / rounds / 1000)
    return min(series)


def measure(rounds: int = 300, repeats: int = 7) -> dict[str, float]:
    """Microseconds per failure, by kind; and of the look at a result that is none."""
    job = _a_job()
    found = {name: _each(_judging(_raised(make), job), rounds, repeats) for name, make in CASES.items()}
    results: dict[str, object] = {"None": None, "a text": "done", "a small dict": {"id": 1, "state": "sent"}}
    for name, value in results.items():
        found[f"a result: {name}"] = _each(_looking(value), rounds * 10, repeats)
    return found


def mean(folder: Path) -> float:
    """Microseconds of the mean failure."""
    return statistics.mean(measure(rounds=100).values())


def _judging(error: BaseException, job: Job) -> Callable[[], object]:
    return lambda: judge(error, job)


def _looking(value: object) -> Callable[[], object]:
    return lambda: find_soft_failure(value)


def row_9(bench: Bench) -> list[Check]:
    """The dearest of the single failures: capture, classification, fingerprint and decision together."""
    found = bench.stages("judging failures", {f"{n + 1}": measure for n in range(bench.rounds(5))})
    times = {name: [one[name] for one in found.values()] for name in measure_names()}
    dearest = max(times, key=lambda name: statistics.median(times[name]))
    said = {name: f"{statistics.median(taken):.0f} µs" for name, taken in times.items()}
    reached = statistics.median(times[dearest])
    work = f"a failure captured, classified and decided (the dearest: {dearest})"
    return [Check(9, work, reached, "<", LIMIT_US, "µs", said, times)]


def measure_names() -> list[str]:
    """Single failures; a group is as many as it has members."""
    return [name for name in CASES if "group" not in name]


def main() -> dict[str, float]:
    found = measure()
    for name, micros in found.items():
        print(f"{name:32} {micros:9.2f} µs{'' if micros < LIMIT_US else '   MISS'}")
    return found


if __name__ == "__main__":
    main()
