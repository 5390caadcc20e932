"""Tells a signal that ends the process from a task that raises the same exception.

The handler of a signal interrupts the code of the main thread at any point, so an exception from the handler looks as
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
"""Signals by which people and process managers end a process. Timer signals belong to the code that set the timer."""
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a worker."""


_END_NO_PROCESS: Final = (Exception, Signal, asyncio.CancelledError, BaseExceptionGroup)


def ends_a_process(error: BaseException) -> bool:
    """Tells whether an exception ends a process: no error, no signal to redrive, no cancellation.

    An exception group is judged by its members.
    """
    return not isinstance(error, _END_NO_PROCESS)


class _Wrapped:
    """A wrapper of a signal handler that counts the exceptions of the handler."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.handler(*arguments)
        except BaseException as error:
            _handlers.raised += ends_a_process(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handler, name)  # an inspected handler looks like the original one


class _Handlers:
    """The signal handlers of this process, wrapped while there are users of them."""

    def __init__(self) -> None:
        self.raised = 0
        """How often a handler has raised an exception that ends a process."""
        self._users = 0

    def wrap(self) -> None:
        """Wraps the handlers that are Python functions; a repeated call wraps those set meanwhile."""
        for number in ENDING:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Wrapped):
                signal.signal(number, _Wrapped(handler))

    def join(self) -> None:
        self._users += 1
        self.wrap()
        _watch_simulated_signals()

    def leave(self) -> None:
        """Restores the handlers when the last user leaves; a handler set meanwhile stays."""
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
    """A watch that knows whether a signal has interrupted the main thread since `join`.

    `elsewhere`: tasks run in a user's thread other than the main one. No handler runs there, and such a thread is
    interrupted by raising in it.
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
        """Wraps the handlers that were set since `join`."""
        if self._joined:
            _handlers.wrap()

    def __enter__(self) -> Interrupts:
        self.join()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def told(self) -> bool:
        """Whether a handler has raised since `join`."""
        return _handlers.raised > self._since

    def explain(self, error: BaseException) -> bool:
        """Tells whether the user, and not the task, caused this exception."""
        return self.told or (self._elsewhere and isinstance(error, KeyboardInterrupt | SystemExit))


def on_main_thread() -> bool:
    """Tells whether this code runs on the main thread, where signal handlers run."""
    return threading.current_thread() is threading.main_thread()


class LoopThread(threading.Thread):
    """A thread for redrive's own event loop. Only tasks raise there: users interrupt the thread that waits for it."""


def on_users_thread() -> bool:
    """Tells whether this code runs in a thread that users started beside the main one, and may raise in."""
    return not on_main_thread() and not isinstance(threading.current_thread(), LoopThread)


# ---- signals that a task sends to its own process


class _Own:
    """The signals that tasks sent to their own process."""

    watched = False
    ended_by: str | None = None
    """A description of the job that told this process to end."""


def ended_by_a_job() -> str | None:
    """Describes the job that sent SIGINT or SIGTERM to its own process."""
    return _Own.ended_by


def watch_own_signals() -> None:
    """Notes which task signals its own process. An audit hook is needed: a handler does not get the sender."""
    if not _Own.watched:
        _Own.watched = True
        sys.addaudithook(_audit)


class _Noting:
    """A wrapper of a function that signals this process without an audit event."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        _note(next(iter((*arguments, *named.values())), signal.SIGINT))
        return self.function(*arguments, **named)


_SIMULATING: Final = ((signal, "raise_signal"), (_thread, "interrupt_main"))


def _watch_simulated_signals() -> None:
    """Wraps the two signalling functions that raise no audit event, while tasks run."""
    for module, name in _SIMULATING:
        function = getattr(module, name)
        if not isinstance(function, _Noting):
            setattr(module, name, _Noting(function))


def _forget_simulated_signals() -> None:
    """Restores the two signalling functions; one that was replaced meanwhile stays."""
    for module, name in _SIMULATING:
        function = getattr(module, name)
        if isinstance(function, _Noting):
            setattr(module, name, function.function)


_SENDS: Final = frozenset({"os.kill", "os.killpg", "signal.pthread_kill"})


def _audit(event: str, arguments: tuple[Any, ...], sends: frozenset[str] = _SENDS) -> None:
    """Notes audit events that signal this process. `sends` is an argument, as the ending interpreter clears modules."""
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


# ---- a process of redrive


def run_until_signalled(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` like `asyncio.run`, but continues if a task ends the event loop: only a signal ends the process."""
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
