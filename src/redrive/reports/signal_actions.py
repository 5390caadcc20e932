"""What a pain does without code: `[signals] run = "…"` starts a command, `enqueue = "investigate"` enqueues a task.

Both are channels of the courier, so a command that cannot be started and a store that cannot take the job are tried
again. Each pain acts once: that it lasts and is told again starts nothing anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shlex
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
"""So many of the last errors go along."""
START_SECONDS: Final = 5.0
"""A command that fails within so long is started again; one that runs for longer goes on by itself."""
_running: set[asyncio.Task[None]] = set()


class SignalActions:
    """Does what `[signals]` says about a pain."""

    def __init__(self, core: Core, watch: Watch, enqueuer: Enqueuer) -> None:
        self._core = core
        self._watch = watch
        self._enqueuer = enqueuer

    def channels(self) -> list[Channel]:
        """Lists the channels that `[signals]` names."""
        said, found = self._core.settings.signals, []
        if said.run:
            name = f"run:{shlex.split(said.run)[0]}"
            found.append(Channel(name, lambda message: self._run(said.run, message), one_by_one=True))
        if said.enqueue:
            name = f"enqueue:{said.enqueue}"
            found.append(Channel(name, lambda message: self._enqueue(said.enqueue, message), one_by_one=True))
        return found

    async def _enqueue(self, task: str, message: Message) -> None:
        """Once per pain: its key names the pain and when it began. The task's own pains start nothing.

        A pain that is told again after a kill finds its job under the key, with the health of that time as its payload.
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
        """The command gets the pain as JSON on its standard input, and its kind and severity as variables."""
        notice = message.notice
        if not await self._acts(notice, "run"):
            return
        said = {
            "KIND": notice.kind,
            "QUEUE": notice.queue,
            "ABOUT": read_subject(notice),
            "SEVERITY": f"{notice.severity:g}",
            "MESSAGE": notice.text,
        }
        environ = os.environ | {f"REDRIVE_PAIN_{name}": value for name, value in said.items()}
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
        """Whether no action has helped against this pain yet: it is new, or earlier actions failed."""
        if notice.severity <= 0 or notice.turn <= 1:
            return notice.severity > 0
        kept = await HURTING.get(self._core.store, notice.id.removeprefix(PAIN))
        return kept is not None and kept.value.since == notice.at and how not in kept.value.acted

    async def _remember(self, notice: Notice, how: str) -> None:
        """Remembers it as long as the pain lasts."""

        def with_it(known: Hurting | None) -> Hurting | None:
            if known is None or known.since != notice.at or how in known.acted:
                return known
            return msgspec.structs.replace(known, acted=(*known.acted, how))

        await HURTING.update(self._core.store, notice.id.removeprefix(PAIN), with_it)

    async def _about(self, notice: Notice) -> dict[str, Any]:
        """What an investigator needs: the pain, health, the group, and the last errors."""
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
        """The group that the notice names, else that of the latest error."""
        name = notice.fingerprint or next((job.fingerprint for job in errors if job.fingerprint), None)
        found = await self._core.store.groups(fingerprints=[name]) if name else []
        return _plain(msgspec.to_builtins(found[0])) if found else None

    async def _last_errors(self, notice: Notice) -> list[Job]:
        """Of the queue that hurts, or of what is parked for what is down."""
        held = Filter(states=(State.held,), held_for=notice.id.partition("/")[2])
        filters = [
            Filter(states=(State.dead,), queue=notice.queue),
            Filter(states=(State.waiting,), queue=notice.queue, failed=True),
            held,
        ]
        found = [job for chosen in filters for job in (await self._core.store.find(chosen, limit=ERRORS)).jobs]
        failed = [
            breaker.job
            for breaker in await self._watch.breakers()
            if breaker.job and breaker.key == read_subject(notice)
        ]
        found += [job for job in await self._core.store.get(failed) if job.error]
        return sorted({job.id: job for job in found}.values(), key=lambda job: (not job.error, -job.updated_at))[
            :ERRORS
        ]


async def _feed(process: asyncio.subprocess.Process, body: bytes, command: str) -> None:
    """A command that does not read its input may close it."""
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
    """The ids of the jobs whose words stand in what an investigator is given."""
    if isinstance(value, dict):
        named = {value[name] for name in ("job_id", "sample") if isinstance(value.get(name), str)}
        return named.union(*map(_quoted_ids, value.values()))
    return set[str]().union(*map(_quoted_ids, value)) if isinstance(value, list) else set()


def _plain(value: Any) -> Any:
    """Texts from outside are masked."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
