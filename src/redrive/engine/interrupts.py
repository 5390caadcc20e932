"""Who wants a process to end: a signal from outside, or a task that only looks like one.

The handler of a signal runs in the middle of whatever the main thread executes, so an exception that it raises looks as
if the task had raised it. Handlers are therefore wrapped while tasks run, and the wrapper counts those that raised.
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from redrive.engine.attempt_state import running_attempt
from redrive.errors import Signal

log = logging.getLogger("redrive.worker")
T = TypeVar("T")
_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
ENDING: Final = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Signals by which people and process managers end a process. Those of timers belong to whoever set the timer."""
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
"""Those that end a worker."""


def ends_a_process(error: BaseException) -> bool:
    """Whether an exception is one that tasks have no reason to raise: no error, no signal to redrive, no cancellation.

    A group is judged by its members.
    """
    return not isinstance(error, Exception | Signal | asyncio.CancelledError | BaseExceptionGroup)


class _Wrapped:
    """Stands in for the handler of a signal and notes that the handler raised."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.handler(*arguments)
        except BaseException as error:
            _handlers.raised += ends_a_process(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handler, name)  # whoever looks at the handler sees the one that was set


class _Handlers:
    """The handlers of this process, wrapped for as long as anything needs it."""

    def __init__(self) -> None:
        self.raised = 0
        """How often a handler has raised what ends a process."""
        self._users = 0

    def wrap(self) -> None:
        """Wrap the handlers that are Python functions; again, for those that were set meanwhile."""
        for number in ENDING:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Wrapped):
                signal.signal(number, _Wrapped(handler))

    def join(self) -> None:
        self._users += 1
        self.wrap()
        _watch_simulated_signals()

    def leave(self) -> None:
        """Put the handlers back with the last user; one that was set meanwhile stays."""
        self._users -= 1
        if self._users:
            return
        for number in ENDING:
            handler = signal.getsignal(number)
            if isinstance(handler, _Wrapped):
                signal.signal(number, handler.handler)
        _forget_simulated_signals()


_handlers = _Handlers()


class Interrupts:
    """Knows whether a signal has interrupted what runs on the main thread since `join`.

    `elsewhere`: a thread of the person's own, other than the main one. No handler runs there, and whoever interrupts
    such a thread does so by raising in it.
    """

    def __init__(self, *, elsewhere: bool = False) -> None:
        self._elsewhere = elsewhere
        self._since = _handlers.raised
        self._joined = False

    def join(self) -> None:
        self._since = _handlers.raised
        if not self._joined and on_main_thread():
            self._joined = True
            watch_own_signals()
            _handlers.join()

    def leave(self) -> None:
        if self._joined and on_main_thread():
            self._joined = False
            _handlers.leave()

    def renew(self) -> None:
        """See to handlers that were set since `join`."""
        if self._joined:
            _handlers.wrap()

    def __enter__(self) -> Interrupts:
        self.join()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def told(self) -> bool:
        """A handler has raised."""
        return _handlers.raised > self._since

    def explain(self, error: BaseException) -> bool:
        """Whether the person, and not the task, is behind this exception."""
        return self.told or (self._elsewhere and isinstance(error, KeyboardInterrupt | SystemExit))


def on_main_thread() -> bool:
    """Whether this code runs where the handlers of signals do."""
    return threading.current_thread() is threading.main_thread()


class LoopThread(threading.Thread):
    """Runs an event loop of redrive's own. Only tasks raise there: a person interrupts the thread that waits for it."""


def on_users_thread() -> bool:
    """Whether this code runs in a thread that a person has started beside the main one, and may raise in."""
    return not on_main_thread() and not isinstance(threading.current_thread(), LoopThread)


# ---- signals that a task sends to its own process


class _Own:
    """What tasks of this process did to it."""

    watched = False
    ended_by: str | None = None
    """The job that told this process to end, in words."""


def ended_by_a_job() -> str | None:
    """The job that sent SIGINT or SIGTERM to its own process, in words."""
    return _Own.ended_by


def watch_own_signals() -> None:
    """Note which task signals its own process. Nothing else can tell: a handler does not hear who sent a signal."""
    if not _Own.watched:
        _Own.watched = True
        sys.addaudithook(_audit)


class _Noting:
    """Stands in for a function that signals this process and raises no audit event."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        _note(next(iter((*arguments, *named.values())), signal.SIGINT))
        return self.function(*arguments, **named)


_SIMULATING: Final = ((signal, "raise_signal"), (_thread, "interrupt_main"))


def _watch_simulated_signals() -> None:
    """The same for the two functions that raise no audit event, while tasks run."""
    for module, name in _SIMULATING:
        function = getattr(module, name)
        if not isinstance(function, _Noting):
            setattr(module, name, _Noting(function))


def _forget_simulated_signals() -> None:
    """Put the two functions back; one that was set meanwhile stays."""
    for module, name in _SIMULATING:
        function = getattr(module, name)
        if isinstance(function, _Noting):
            setattr(module, name, function.function)


_SENDS: Final = frozenset({"os.kill", "os.killpg", "signal.pthread_kill"})


def _audit(event: str, arguments: tuple[Any, ...], sends: frozenset[str] = _SENDS) -> None:
    """Hear every audit event. `sends` is an argument because an interpreter that ends clears this module before it."""
    if event in sends and _is_own(event, arguments[0]):
        _note(arguments[1])


def _is_own(event: str, target: int) -> bool:
    if event == "os.kill":
        return target in (os.getpid(), 0, -1, -os.getpgid(0))
    return event == "signal.pthread_kill" or target in (0, os.getpgid(0))


def _note(number: int) -> None:
    state = running_attempt.get()
    if state is None or number not in ENDING:
        return
    state.signalled = signal.Signals(number).name
    if number in STOPPING:
        _Own.ended_by = f"job {state.job.short_id} ({state.job.task}) sent {state.signalled} to its own process"


# ---- a process of ours


def run_until_signalled(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, and go on where a task ends the event loop: only a signal ends the process."""
    with asyncio.Runner() as runner, Interrupts() as interrupts:
        loop = runner.get_loop()
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                log.critical("a task has cancelled every task of this process, which ends; its jobs run again")
                raise SystemExit(1) from None
            except (KeyboardInterrupt, SystemExit, RuntimeError) as error:
                if task.done() or interrupts.told:
                    raise
                log.critical("a task has ended the event loop, which goes on: %r", error)
