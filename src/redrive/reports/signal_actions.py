"""Acts on pains without code: `[signals] run = "…"` starts a command, `enqueue = "investigate"` enqueues a task.

Both are channels of the courier, so a command that cannot be started and a store that cannot take the job are tried
again. Each pain acts once: a pain that lasts and is sent again starts nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.commit import commit
from redrive.core.documents import INVESTIGATED
from redrive.core.job import Job, State, iso
from redrive.core.notice import Message, Notice
from redrive.core.pain import PAIN, Hurting, read_subject
from redrive.core.redact import redact_text
from redrive.core.store import Filter
from redrive.errors import KeyReused
from redrive.notices.courier import Channel, Undelivered
from redrive.reports.pains import HURTING

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.jobs.enqueuer import Enqueuer
    from redrive.reports.watch import Watch

log = logging.getLogger("redrive.signals")
ERRORS: Final = 5
"""Number of last errors that are passed to the action."""
START_SECONDS: Final = 5.0
"""Seconds within which a command that fails is started again; a command that runs for longer is left running."""
_running: set[asyncio.Task[None]] = set()


class SignalActions:
    """Channels that perform the actions of `[signals]` for a pain."""

    def __init__(self, core: Core, watch: Watch, enqueuer: Enqueuer) -> None:
        self._core = core
        self._watch = watch
        self._enqueuer = enqueuer

    def channels(self) -> list[Channel]:
        """Lists the channels that `[signals]` names."""
        signals = self._core.settings.signals
        program = shlex.split(signals.run)[0] if signals.run else ""
        actions = (
            ("run", signals.run, program, self._run),
            ("enqueue", signals.enqueue, signals.enqueue, self._enqueue),
        )
        return [
            Channel(f"{how}:{name}", partial(perform, what), one_by_one=True)
            for how, what, name, perform in actions
            if what
        ]

    async def _enqueue(self, task: str, message: Message) -> None:
        """Enqueues the task once per pain: the key names the pain and its start. The task's own pains start nothing.

        A pain that is sent again after a kill finds its job under the key, with the health of that time as payload.
        """
        notice = message.notice
        if notice.queue == self._core.registry.queue_of_task(task) or not await self._acts(notice, "enqueue"):
            return
        which = hashlib.sha256(notice.id.encode()).hexdigest()[:16]
        key = f"pain:{notice.kind}:{which}:{int(notice.at * 1000)}"
        about_it = await self._about(notice)
        try:
            options = {"idempotency_key": key, "on_duplicate": "return"}
            started = (await self._enqueuer.accept(task, about_it, options)).job
        except KeyReused as known:
            log.warning("[signals] enqueue: this pain has its job already: %s", known)
        else:
            quoted = sorted(_quoted_ids({**about_it, "job_id": notice.job_id}))
            puts = [INVESTIGATED.put(f"{id}.{started.id}", started.id) for id in quoted]
            await commit(self._core.store, puts=puts, what=f"the jobs that {started.id} quotes are known")
        await self._remember(notice, "enqueue")

    async def _run(self, command: str, message: Message) -> None:
        """Starts the command, with the pain as JSON on standard input, and in environment variables."""
        notice = message.notice
        if not await self._acts(notice, "run"):
            return
        facts = {
            "KIND": notice.kind,
            "QUEUE": notice.queue,
            "ABOUT": read_subject(notice),
            "SEVERITY": f"{notice.severity:g}",
            "MESSAGE": notice.text,
        }
        environ = os.environ | {f"REDRIVE_PAIN_{name}": value for name, value in facts.items()}
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command), stdin=asyncio.subprocess.PIPE, env=environ, start_new_session=True
            )
        except OSError as error:
            raise Undelivered(f"[signals] run: cannot start {command!r}: {error}") from None
        body = msgspec.json.encode(await self._about(notice))
        waiting = asyncio.create_task(_feed(process, body, command))
        _running.add(waiting)
        waiting.add_done_callback(_running.discard)
        done, _ = await asyncio.wait({waiting}, timeout=START_SECONDS)
        if done and process.returncode:
            raise Undelivered(f"[signals] run: {command!r} ended with status {process.returncode}")
        await self._remember(notice, "run")

    async def _acts(self, notice: Notice, how: str) -> bool:
        """Returns whether the action `how` is still to be performed: the pain is new, or the action failed before."""
        if notice.severity <= 0 or notice.turn <= 1:
            return notice.severity > 0
        kept = await HURTING.get(self._core.store, notice.id.removeprefix(PAIN))
        return kept is not None and kept.value.since == notice.at and how not in kept.value.acted

    async def _remember(self, notice: Notice, how: str) -> None:
        """Records that the action was performed, as long as the pain lasts."""

        def with_it(known: Hurting | None) -> Hurting | None:
            if known is None or known.since != notice.at or how in known.acted:
                return known
            return msgspec.structs.replace(known, acted=(*known.acted, how))

        await HURTING.update(self._core.store, notice.id.removeprefix(PAIN), with_it)

    async def _about(self, notice: Notice) -> dict[str, Any]:
        """Gathers what an investigator needs: the pain, health, the group, and the last errors."""
        errors = await self._last_errors(notice)
        pain = {
            "kind": notice.kind,
            "queue": notice.queue,
            "severity": notice.severity,
            "message": notice.text,
            "since": iso(notice.at),
            "about": read_subject(notice),
        }
        return {
            "pain": pain,
            "health": _plain((await self._watch.health()).public()),
            "group": await self._group(notice, errors),
            "errors": [_show(job) for job in errors],
        }

    async def _group(self, notice: Notice, errors: list[Job]) -> dict[str, Any] | None:
        """Reads the group that the notice names, else the group of the latest error."""
        name = notice.fingerprint or next((job.fingerprint for job in errors if job.fingerprint), None)
        groups = await self._core.store.groups(fingerprints=[name]) if name else []
        return _plain(msgspec.to_builtins(groups[0])) if groups else None

    async def _last_errors(self, notice: Notice) -> list[Job]:
        """Reads the last errors of the pain's queue, or of jobs parked for the downstream that is down."""
        held = Filter(states=(State.held,), held_for=notice.id.partition("/")[2])
        filters = [
            Filter(states=(State.dead,), queue=notice.queue),
            Filter(states=(State.waiting,), queue=notice.queue, failed=True),
            held,
        ]
        jobs = [job for chosen in filters for job in (await self._core.store.find(chosen, limit=ERRORS)).jobs]
        failed = [
            breaker.job
            for breaker in await self._watch.breakers()
            if breaker.job and breaker.key == read_subject(notice)
        ]
        jobs += [job for job in await self._core.store.get(failed) if job.error]
        return sorted({job.id: job for job in jobs}.values(), key=lambda job: (not job.error, -job.updated_at))[:ERRORS]


async def _feed(process: asyncio.subprocess.Process, body: bytes, command: str) -> None:
    """Writes the input of a command and waits until the command ends. The command may close its input unread."""
    await process.communicate(body)
    if process.returncode:
        log.warning("[signals] run: %r ended with status %s", command, process.returncode)


def _show(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": str(job.state),
        "attempts": job.attempts,
        "error": redact_text(job.error) if job.error else None,
        "at": iso(job.updated_at),
    }


def _quoted_ids(value: Any) -> set[str]:
    """Collects the ids of the jobs that are quoted in the payload of an investigator."""
    if isinstance(value, dict):
        named = {value[name] for name in ("job_id", "sample") if isinstance(value.get(name), str)}
        return named.union(*map(_quoted_ids, value.values()))
    return set[str]().union(*map(_quoted_ids, value)) if isinstance(value, list) else set()


def _plain(value: Any) -> Any:
    """Masks all texts in a value, as they may come from outside."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
