"""Turns exceptions into failures of plain data. No other module touches exception objects.

No exception object makes `capture` raise, and the size of a failure is bounded.
"""

from __future__ import annotations

import hashlib
import linecache
import re
import time
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, Final, Literal

import msgspec

from redrive.core.job import Ending, Failure
from redrive.core.redact import redact_text
from redrive.errors import GiveUp, InvalidOption, Retry, Signal
from redrive.failures.classify import Rule, known_detail, reads_data
from redrive.failures.classify.classes import TWINS, calls_models
from redrive.failures.classify.retry_after import wait_of
from redrive.failures.fingerprint import fingerprint
from redrive.failures.http_answers import (
    address_of,
    bodies_of,
    body_text,
    codes_of,
    headers_of,
    is_limited,
    response_of,
    rpc_code_of,
    rpc_status_of,
    status_of,
    wait_asked,
)
from redrive.failures.model_calls import in_application, names_a_model
from redrive.failures.safe_getattr import attribute, clean, some, text_of, traits
from redrive.failures.soft import find_soft_failure

__all__ = [
    "capture",
    "capture_lost_lease",
    "capture_name",
    "capture_own_signal",
    "capture_timeout",
    "find_soft_failure",
    "get_ready",
    "guard_rule",
    "qualified",
    "words_of",
]

MESSAGE_LIMIT: Final = 2_000
CHAIN_LIMIT: Final = 5
NODES: Final = 25
"""Number of failures kept of one error with all the errors that it wraps and groups."""
FRAMES: Final = 50
"""Number of steps kept of one error with all the errors that it wraps and groups."""
TRACE_LIMIT: Final = 16_000
"""Characters that the steps and their source lines may take together."""
LINE_LIMIT: Final = 200
APP_FRAMES: Final = 3
_STEPS: Final = 100
OUTPUT_LIMIT: Final = 1_000_000
_SIMPLE: Final = frozenset({ValueError, TypeError, KeyError, RuntimeError, AttributeError, IndexError})
"""Builtin exceptions that carry nothing but a message."""


def capture(error: BaseException, *, now: float | None = None) -> Failure:
    """Turns an exception into a failure. `now` is for servers that answer with an instant."""
    kind: Any = type(error)
    try:
        if kind in _SIMPLE and _only_says(error):
            frames, source = _trace_again(tuple(_steps(error.__traceback__)))
            return Failure("exception", _types(kind), redact_text(words_of(error)), frames=frames, source=source)
        failure = _ErrorReader(time.time() if now is None else now).at(error, 0)
        return _mark_model_asked(failure, error) if reads_data(failure) else failure
    except KeyboardInterrupt:
        raise
    except BaseException as odd:  # noqa: BLE001 - an unreadable exception is still a failure with a name
        return _capture_unreadable(error, odd)


@cache
def get_ready() -> None:
    """Imports and compiles what reading a failure needs: when one comes, no descriptor may be left for it."""
    failure = capture(RuntimeError("getting ready"))
    in_application(__file__)
    fingerprint(failure, "getting ready")


def _mark_model_asked(failure: Failure, error: BaseException) -> Failure:
    """Adds whether a model was asked: only for data that does not fit, whose meaning depends on the model."""
    frames = (frame for link in _chain(error) for _, frame, _ in _walk(link.__traceback__))
    asked = _shows_a_model(failure, CHAIN_LIMIT) or any(map(names_a_model, frames))
    return msgspec.structs.replace(failure, model_asked=True) if asked else failure


def _shows_a_model(failure: Failure, depth: int) -> bool:
    here = failure.model_call or calls_models(failure.types)
    return here or (depth > 0 and any(_shows_a_model(part, depth - 1) for part in failure.wrapped))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors from which it was raised."""
    link: BaseException | None = error
    for _ in range(CHAIN_LIMIT + 1):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _only_says(error: BaseException) -> bool:
    """Returns whether an exception has only a message: nothing wrapped, nothing attached."""
    bare = not error.__dict__ and error.__cause__ is None and error.__context__ is None
    return bare and (not error.args or (len(error.args) == 1 and type(error.args[0]) is str))


def capture_name(error: BaseException) -> Failure:
    """Captures only the classes of an exception that raises when anything else of it is read."""
    return Failure(_kind(error), _bare_types(type(error)), "<unreadable>")


def _capture_unreadable(error: BaseException, odd: BaseException) -> Failure:
    """Captures an exception that cannot be read in full: its classes, and its message if that is readable."""
    kind: Any = type(error)
    try:
        return Failure(_kind(error), _bare_types(kind), redact_text(words_of(error)), body=f"unreadable: {type(odd)!r}")
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - its name must do
        return capture_name(error)


_MODEL_OPERATIONS: Final = frozenset({"InvokeModel", "InvokeModelWithResponseStream", "Converse", "ConverseStream"})
"""Operation names of Bedrock for calling a model."""


class _ErrorReader:
    """Reader of an error and of the errors it wraps, with a budget of nodes, so that no graph of errors is endless."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._left = NODES
        self._frames_left = FRAMES
        self._trace_left = TRACE_LIMIT

    def at(self, error: BaseException, depth: int) -> Failure:
        self._left -= 1
        kind: Any = type(error)
        seen = {} if isinstance(error, Signal) else traits(error)  # a signal carries its own fields
        types = _types(kind)
        message = words_of(error)
        steps = _steps(error.__traceback__)
        frames, source = self._trace(steps)
        plain = Failure(
            kind=_kind(error),
            types=types,
            message=redact_text(message),
            errno=_errno(error),
            frames=frames,
            cause=self._below(_cause(error, seen), depth),
            members=self._members(error, depth),
            origin=_origin(steps),
            source=source,
        )
        return self._with_traits(plain, error, seen, message) if seen or isinstance(error, Signal) else plain

    def _with_traits(self, plain: Failure, error: BaseException, seen: dict[str, Any], message: str) -> Failure:
        response = response_of(seen)
        headers = headers_of(seen, response)
        bodies = bodies_of(seen, response)
        codes = codes_of(seen, bodies, response)
        status = status_of(seen, response) if not isinstance(error, SystemExit) else None
        made_up = plain.types[0].startswith("litellm.")  # its requests are made up to satisfy a base class
        host, model_call = (None, True) if made_up else address_of(seen, response)
        model_call = model_call or seen.get("operation_name") in _MODEL_OPERATIONS
        asked = wait_asked(seen, headers, bodies, is_limited(status, codes), self._now, message)
        return msgspec.structs.replace(
            plain,
            status=status,
            code=codes[0] if codes else None,
            error_kind=text_of(seen.get("error_kind"), 100),
            sqlstate=_sqlstate(seen),
            headers=headers,
            retry_after=wait_of(error.after, self._now) if isinstance(error, Retry) else asked,
            recommendation=_read_recommendation(error) if isinstance(error, GiveUp) else None,
            body=body_text(seen, bodies, response, message),
            codes=codes,
            rpc_code=rpc_code_of(seen),
            rpc_status=rpc_status_of(seen, plain.types),
            retryable=_retryable(seen),
            host=host,
            model_call=model_call,
            output_hash=_output_hash(error, seen, plain.types),
        )

    def _trace(self, steps: list[Step]) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
        """Reads the frames of one error, within the budget that all errors of this reader share."""
        frames, source = _trace(steps, self._frames_left, self._trace_left)
        self._frames_left -= len(frames)
        self._trace_left -= _size(frames, source)
        return frames, source

    def _below(self, cause: BaseException | None, depth: int) -> Failure | None:
        return self.at(cause, depth + 1) if cause is not None and depth < CHAIN_LIMIT and self._left > 0 else None

    def _members(self, error: BaseException, depth: int) -> tuple[Failure, ...]:
        if not isinstance(error, BaseExceptionGroup) or depth >= CHAIN_LIMIT:
            return ()
        found = []
        for member in _choose_members(error.exceptions):
            if self._left <= 0:
                break
            found.append(self.at(member, depth + 1))
        return tuple(found)


def capture_lost_lease(worker: str | None, ending: Ending = "died") -> Failure:
    """Makes the failure of a lease that ended while its job was running."""
    said = f"{_ENDINGS[ending].format(worker=worker or 'unknown')} while it ran"
    return Failure("lease_expired", ("redrive.LeaseExpired",), said)


_ENDINGS: Final[dict[Ending, str]] = {
    "died": "the process of worker {worker} ended",
    "lapsed": "the lease of worker {worker} lapsed",
    "frozen": "worker {worker} stood still for longer than its lease",
    "stopped": "worker {worker} was told to stop",
}


def capture_own_signal(signal: str) -> Failure:
    """Makes the failure of a task that told its own process to end, and was still running when the worker ended."""
    return Failure("interrupted", ("redrive.SignalledItself",), f"it sent {signal} to its own process")


def _kind(error: BaseException) -> Literal["signal", "exception", "interrupted"]:
    """Returns the kind of a failure. `interrupted` ends a process, a generator or a task, and not just a call."""
    if isinstance(error, Signal):
        return "signal"
    return "exception" if isinstance(error, Exception | BaseExceptionGroup) else "interrupted"


def capture_timeout(seconds: float) -> Failure:
    return Failure("timeout", ("builtins.TimeoutError",), f"still running after its timeout of {seconds:g} s")


def guard_rule(name: str, rule: Rule, tell: Callable[[str, BaseException], None]) -> Rule:
    """Wraps a user's rule: if the rule raises or returns no known detail, the wrapper reports that and returns None."""

    def ask(failure: Failure) -> str | None:
        try:
            answer: object = rule(failure)
        except Exception as error:  # noqa: BLE001 - user code; the error is reported
            tell(name, error)
            return None
        if answer is None:
            return None
        detail = known_detail(answer) if isinstance(answer, str) else None
        if detail is None:
            tell(name, InvalidOption(field=name, problem=f"answered {_show(answer)}, which is not a detail"))
        return detail

    return ask


def _show(value: object) -> str:
    try:
        return clean(repr(value), 100)
    except Exception:  # noqa: BLE001 - a value whose repr raises still has a type
        return f"a {type(value).__name__}"


# ---- names


@lru_cache(maxsize=1024)
def _types(kind: Any) -> tuple[str, ...]:
    """Lists the qualified names of the MRO; a library's renamed twin counts as the original."""
    entries = [entry for entry in kind.__mro__ if entry not in (object, BaseException, Exception)]
    return tuple(qualified(entry) for entry in entries or [kind])


def _bare_types(kind: type) -> tuple[str, ...]:
    """Lists the qualified names of the MRO of a class whose own attributes cannot be trusted."""
    entries: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return tuple(qualified(entry) for entry in entries if not any(entry is end for end in (object, BaseException)))


def qualified(kind: type) -> str:
    """Returns the name under which a class is matched."""
    module = attribute(kind, "__module__")
    name: str = type.__dict__["__qualname__"].__get__(kind)
    package, dot, rest = (clean(module, 200) if isinstance(module, str) else "unknown").partition(".")
    return re.sub(r"^(httpx|httpcore)\._\w+\.", r"\1.", f"{TWINS.get(package, package)}{dot}{rest}.{clean(name, 200)}")


def words_of(said: object) -> str:
    """Returns the text of an exception, or of a value in an exception, as the store can keep it."""
    try:
        return clean(str(said), MESSAGE_LIMIT)
    except Exception:  # noqa: BLE001 - an exception whose __str__ raises still has a name
        return f"<{type.__dict__['__name__'].__get__(type(said))} without a readable message>"


def _read_recommendation(signal: GiveUp) -> str | None:
    return redact_text(words_of(signal.recommendation)) or None if signal.recommendation else None


# ---- wrapped exceptions


_WRAPPED: Final = (
    "orig",
    "exc",
    "original_exception",
    "reason",
    "original_error",
    "cause",
    "os_error",
    "last_exception",
)
"""Attributes in which libraries keep the original exception, when they do not chain it."""


def _cause(error: BaseException, seen: dict[str, Any]) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    for name in _WRAPPED if seen else ():
        found = seen.get(name)
        if isinstance(found, BaseException) and found is not error:
            return found
    for argument in some(error.args):
        if isinstance(argument, BaseException) and argument is not error:
            return argument
    return None if error.__suppress_context__ else error.__context__


def _choose_members(members: tuple[BaseException, ...]) -> list[BaseException]:
    """Chooses some members of a group: one of each class first, so that the worst is among them."""
    chosen: dict[int, BaseException] = {}
    seen: set[int] = set()
    for place, member in enumerate(islice(members, 1_000)):
        if id(type(member)) not in seen and len(chosen) < CHAIN_LIMIT:
            seen.add(id(type(member)))
            chosen[place] = member
    for place, member in enumerate(members[:CHAIN_LIMIT]):
        if len(chosen) < CHAIN_LIMIT:
            chosen.setdefault(place, member)
    return [chosen[place] for place in sorted(chosen)]


# ---- attributes of exceptions


def _errno(error: BaseException) -> int | None:
    number = error.errno if isinstance(error, OSError) else None
    return int.__int__(number) if isinstance(number, int) and abs(number) < 1 << 31 else None


_STATES: Final = ("sqlstate", "pgcode", "sqlite_errorname")


def _sqlstate(seen: dict[str, Any]) -> str | None:
    """Returns the SQL state of the exception, or of the driver's exception that it wraps."""
    original = seen.get("orig")
    for owner in (seen, traits(original)) if isinstance(original, BaseException) else (seen,):
        for name in _STATES:
            found = text_of(owner[name], 40) if name in owner else None
            if found is not None:
                return found
    return "08000" if seen.get("connection_invalidated") is True else None


def _retryable(seen: dict[str, Any]) -> bool | None:
    """Returns whether an exception calls itself retryable.

    Libraries set `transient` on purpose; `retryable` is often only a default, so only True counts.
    """
    transient = seen.get("transient")
    if isinstance(transient, bool):
        return transient
    return True if seen.get("retryable") is True else None


# ---- the wrong output of a model


def _output_hash(error: BaseException, seen: dict[str, Any], types: tuple[str, ...]) -> str | None:
    """Returns a short hash of the output of a model, if the exception has the output."""
    output = _output(error, seen, types)
    if output is None:
        return None
    if isinstance(output, str):
        output = str.encode(output[:OUTPUT_LIMIT], "utf-8", "replace")
    return hashlib.sha256(output[:OUTPUT_LIMIT]).hexdigest()[:16]


def _output(error: BaseException, seen: dict[str, Any], types: tuple[str, ...]) -> str | bytes | None:
    for name in ("doc", "raw_output", "llm_output", "output", "line"):
        found = seen.get(name)
        if isinstance(found, str | bytes) and found:
            return found
    if types[0].startswith(("pydantic_core.", "pydantic.")):
        return _invalid_input(error)
    if "pydantic_ai.exceptions.UnexpectedModelBehavior" in types:
        body = seen.get("body")
        return body if isinstance(body, str) else None
    choices = attribute(seen.get("completion"), "choices")
    content = attribute(attribute(choices[0], "message"), "content") if isinstance(choices, list) and choices else None
    return content if isinstance(content, str) and content else None


def _invalid_input(error: BaseException) -> str | None:
    """Returns the locations and inputs that pydantic rejected, as text."""
    read = attribute(error, "errors")
    if not callable(read):
        return None
    try:
        parts = read(include_url=False, include_context=False)[:10]
        return repr([(part.get("loc"), part.get("input")) for part in parts])[:OUTPUT_LIMIT]
    except Exception:  # noqa: BLE001 - a value whose repr raises
        return None


# ---- tracebacks


Step = tuple[str, str, str, int]
"""A module, its file, a function in it, and the line that was reached."""
_RUNNERS: Final = (
    "redrive.engine",
    "redrive.failures",
    "redrive.flows",
    "redrive.http",
    "redrive.notices",
    "redrive.scripts",
)
"""Packages that call a task or stand between a task and its failure: their steps say nothing about the task."""
_NOT_OURS: Final = "redrive.doors"
"""Package of redrive that counts as an application: the demo's tasks are there."""


def _walk(traceback: TracebackType | None) -> list[tuple[str, FrameType, int]]:
    """Lists module, frame and line of the task's own code and of the code it called; leaves out redrive's steps."""
    walked = []
    while traceback is not None:
        frame = traceback.tb_frame  # read once: Python announces every such reading to its audit hooks
        name = frame.f_globals.get("__name__")
        module = name if isinstance(name, str) else frame.f_code.co_filename
        if not module.startswith(_RUNNERS):
            walked.append((module, frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return walked[-_STEPS:]


def _steps(traceback: TracebackType | None) -> list[Step]:
    """Lists the steps of the task's own code and of the code it called, outermost first."""
    steps: list[Step] = []
    for module, frame, line in _walk(traceback):
        code = frame.f_code
        steps.append((module, code.co_filename, code.co_name, line))
    return steps


@lru_cache(maxsize=4096)
def _place(module: str, function: str, line: int) -> str:
    text = f"{module}:{function}:{line}"
    return text if len(text) <= 300 and text.isascii() else clean(text, 300)


def _place_of(step: Step) -> str:
    module, _, function, line = step
    return _place(module, function, line)


def _is_yours(step: Step) -> bool:
    """Returns whether a step is in the application's own code."""
    module, file, _, _ = step
    ours = module.startswith("redrive.") and not module.startswith(_NOT_OURS)
    return in_application(file) and not ours


@lru_cache(maxsize=1024)
def _trace_again(steps: tuple[Step, ...]) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Does the same as `_trace` for the steps of one plain error, which are often those of the error before it."""
    return _trace(list(steps), FRAMES, TRACE_LIMIT)


def _trace(steps: list[Step], most: int, room: int) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Lists the places of the steps and the application's source lines, innermost first, within the limits."""
    frames: list[str] = []
    source: list[str | None] = []
    for step in _choose_steps(steps, most):
        place = _place_of(step)
        _, file, _, number = step
        line = _source_line(file, number) if _is_yours(step) else None
        room -= len(place) + len(line or "")
        if room < 0:
            break
        frames.append(place)
        source.append(line)
    return tuple(frames), tuple(source)


def _choose_steps(steps: list[Step], most: int) -> list[Step]:
    """Chooses the steps to keep, innermost first: of a deep stack the innermost and the application's own."""
    if len(steps) > most:
        yours = [number for number, step in enumerate(steps) if _is_yours(step)][-(most // 2) :] if most > 1 else []
        inner = range(len(steps) - most + len(yours), len(steps))
        steps = [steps[number] for number in sorted({*yours, *inner})]
    return steps[::-1]


def _size(frames: tuple[str, ...], source: tuple[str | None, ...]) -> int:
    return sum(map(len, frames)) + sum(len(line) for line in source if line)


@lru_cache(maxsize=4096)
def _source_line(filename: str, line: int) -> str:
    """Reads one line of the application's source, masked and shortened; "" if the source cannot be read."""
    return redact_text(clean(linecache.getline(filename, line).strip(), LINE_LIMIT))


def _origin(steps: list[Step]) -> tuple[str, ...]:
    """Lists the innermost frames of the application, if a library raised."""
    if not steps or _is_yours(steps[-1]):
        return ()
    return tuple(_place_of(step) for step in reversed([step for step in steps if _is_yours(step)][-APP_FRAMES:]))
