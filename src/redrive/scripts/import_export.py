"""Imports other programs' queues from JSONL without losing a line; exports dead letters and completed ids."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import msgspec

from redrive.core.checks import optional_name
from redrive.core.commit import Proposal, decide_and_commit
from redrive.core.job import Job, State, iso
from redrive.core.store import Filter
from redrive.engine.bus import BusEvent
from redrive.engine.paging import read_pages
from redrive.errors import CommitUnknown, InvalidInput, InvalidOption
from redrive.jobs import dead_letter, jsonl, records
from redrive.jobs.jsonl import Line
from redrive.jobs.records import FailureRecord
from redrive.scripts.failure_records import FailureRecorder, failed_again
from redrive.scripts.file_tail import Tail

if TYPE_CHECKING:
    from redrive.jobs.core import Core

CHUNK: Final = 1_000
CHUNK_BYTES: Final = 16 * 1024 * 1024
LOOK_EVERY: Final = 0.5
"""Seconds between two looks at a followed file to which nothing was appended."""
log = logging.getLogger("redrive")
COUNTED: Final = ("read", "imported", "updated", "duplicates", "completed", "aside", "closed", "unread")
PROBLEMS_KEPT: Final = 1_000
"""Problems that are listed one by one; the others are counted, and stand in the aside file."""
_SPACE: Final = 4
"""How many times larger than the payload limit a line may be: it holds spaces and other fields."""

Source = str | Path | Iterable[bytes | str]
Target = str | Path | IO[bytes] | None
Form = Literal["dead", "waiting"]
Pages = AsyncIterator[list[bytes]]
"""Lines to be written, a page at a time."""
Progress = Callable[[int], None]


class Imported(msgspec.Struct, frozen=True):
    """What became of every line: `read` is the sum of imported, updated, duplicates, completed and aside."""

    read: int = 0
    imported: int = 0
    updated: int = 0
    """Known already, with fewer tries: one more failure of the same dead letter."""
    duplicates: int = 0
    completed: int = 0
    """Not imported, because the completed ids name them."""
    aside: int = 0
    """Kept aside with line number and reason, because they could not be imported."""
    closed: int = 0
    """Dead letters of this store whose work is done, as the completed ids say."""
    unread: int = 0
    """Lines of the completed ids that cannot be read: the jobs they name were not left out."""
    problems: list[tuple[int, str]] = []
    """(line, why) of the first thousand that were kept aside or, with `completed:`, could not be read."""
    kept_in: str | None = None
    """The file that holds the lines kept aside."""
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        return self.aside == 0 and self.unread == 0


class Exported(msgspec.Struct, frozen=True):
    """How many records were written, and where; without a path they are here."""

    count: int
    path: str | None = None
    lines: list[str] = []


# -- in


@dataclass(eq=False)
class Import:
    """One import. Lines are read, understood and inserted a thousand at a time, whatever the size of the file."""

    core: Core
    recorder: FailureRecorder
    source: Source
    born: dead_letter.BirthRules
    mapping: records.Mapping = records.OWN
    completed: str | Path | Iterable[str] | None = None
    aside: str | Path | None = None
    dry_run: bool = False
    who: str = "api"
    why: str | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self._aside = Aside(_aside_path(self.source, self.aside))
        self._completed: set[bytes] = set()
        self._closed: set[str] = set()
        self._caps: dict[str, int] = {}
        self._counts = dict.fromkeys(COUNTED, 0)
        self._seen: dict[bytes, int] = {}
        self._problems: list[tuple[int, str]] = []

    async def run(self) -> Imported:
        await self._close_completed()
        with contextlib.ExitStack() as files:
            lines = await asyncio.to_thread(_open, self.source, self._line_limit, files)
            while chunk := await asyncio.to_thread(_take_chunk, lines):
                await self._take(chunk)
        return self._conclude()

    def _conclude(self) -> Imported:
        if self._counts["imported"] and not self.dry_run:
            queue = self.born.queue or self.born.task or ""
            self.core.bus.publish(BusEvent("imported", queue, self.born.now, data=dict(self._counts)))
        kept_in = str(self._aside.path) if self._counts["aside"] and self._aside.path and not self.dry_run else None
        return Imported(**self._counts, problems=self._problems, kept_in=kept_in, dry_run=self.dry_run)

    @property
    def _line_limit(self) -> int:
        return max(jsonl.LONGEST, _SPACE * self.core.settings.payload_limit)

    async def _take(self, chunk: list[Line]) -> None:
        jobs: list[tuple[Line, Job]] = []
        bad: list[tuple[Line, str]] = []
        done: list[str] = []
        for line in chunk:
            if line.number == 1:
                self._seen.clear()  # equal lines without a job_id are counted by the file
            if line.blank:
                continue
            self._counts["read"] += 1
            try:
                record = self._read(line)
            except InvalidInput as error:
                bad.append((line, _reason(line, error)))
                continue
            if _digest(record.job_id) in self._completed:
                done.append(dead_letter.find_id(record, self.born))
            else:
                jobs.append((line, self._job(record)))
        self._counts["completed"] += len(done)
        await self._close(done)
        bad += await (self._rehearse(jobs) if self.dry_run else self._insert(jobs))
        await self._keep_aside(bad)
        if self.progress is not None:
            self.progress(sum(len(line.raw) + 1 for line in chunk))

    def _read(self, line: Line) -> FailureRecord:
        if line.cut:
            raise InvalidInput(field="line", problem=f"is longer than {self._line_limit} bytes")
        record = records.parse(line.raw, self.mapping, limit=self.core.settings.payload_limit)
        if not record.derived:
            return record
        digest = _digest(record.job_id)
        self._seen[digest] = self._seen.get(digest, 0) + 1
        return msgspec.structs.replace(record, job_id=dead_letter.number_id(record.job_id, self._seen[digest]))

    def _job(self, record: FailureRecord) -> Job:
        """Make the job of a record, with the cap of its queue where the queue has one."""
        queue, _ = dead_letter.find_place(record, self.born)
        return dead_letter.make_job(record, msgspec.structs.replace(self.born, cap=self._cap(queue)))

    def _cap(self, queue: str) -> int:
        if queue not in self._caps:
            self._caps[queue] = self.core.registry.queue_policy(queue).max_attempts or dead_letter.CAP
        return self._caps[queue]

    async def _insert(self, jobs: list[tuple[Line, Job]]) -> list[tuple[Line, str]]:
        """Insert the jobs that are new, compare those that are known; return the lines that contradict a known job."""
        bad = []
        answers = await self.core.store.insert([job for _, job in jobs]) if jobs else []
        for (line, job), answer in zip(jobs, answers, strict=True):
            if not answer.duplicate:
                self._counts["imported"] += 1
            elif not dead_letter.same_work(answer.job, job):
                known = f" (job {answer.job.short_id})"
                bad.append((line, _describe_conflict(answer.job, known)))
            else:
                further = _is_further(answer.job, job) and await self._add_failure(job)
                self._counts["updated" if further else "duplicates"] += 1
        return bad

    async def _add_failure(self, job: Job) -> bool:
        """Add a failure to a dead letter whose record tells of more tries; return whether it was new."""

        async def decide() -> Proposal[bool]:
            (known,) = await self.core.store.get([job.id])
            further = _is_further(known, job)
            moves = failed_again(known, job, self._cap(job.queue), job.attempts) if further else ()
            return Proposal(f"job {job.key!r}", further, moves, done="given one more failure")

        try:
            further, _ = await decide_and_commit(self.core.store, decide)
        except CommitUnknown:  # it was added a moment ago, or is added now
            await decide_and_commit(self.core.store, decide)
            return True
        return further

    async def _rehearse(self, jobs: list[tuple[Line, Job]]) -> list[tuple[Line, str]]:
        """Count what an import would do, without doing it."""
        bad = []
        known = {job.id: job for job in await self.core.store.get([job.id for _, job in jobs])}
        for line, job in jobs:
            digest = _digest(job.id)
            first = known.get(job.id)
            if first is None and digest not in self._seen:
                self._seen[digest] = 1
                self._counts["imported"] += 1
            elif first is not None and not dead_letter.same_work(first, job):
                bad.append((line, _describe_conflict(job)))
            else:
                self._counts["updated" if first is not None and _is_further(first, job) else "duplicates"] += 1
        return bad

    async def _keep_aside(self, bad: list[tuple[Line, str]]) -> None:
        self._note("aside", [(line.number, why) for line, why in bad])
        if bad and not self.dry_run:
            await asyncio.to_thread(self._aside.keep, bad, iso(self.born.now))

    def _note(self, count: str, problems: list[tuple[int, str]]) -> None:
        self._counts[count] += len(problems)
        self._problems += problems[: PROBLEMS_KEPT - len(self._problems)]

    # -- what is done already

    async def _close_completed(self) -> None:
        """Read the ids that are done: their lines are left out, and their dead letters in this store are resolved."""
        if self.completed is None:
            return
        with contextlib.ExitStack() as files:
            ids = await asyncio.to_thread(_read_completed, self.completed, self.mapping.job_id, files)
            while chunk := await asyncio.to_thread(lambda: list(islice(ids, CHUNK))):
                await self._note_completed(chunk)

    async def _note_completed(self, chunk: list[tuple[int, str | InvalidInput]]) -> None:
        ids = [id for _, id in chunk if isinstance(id, str)]
        self._note("unread", [(number, f"completed: {bad}") for number, bad in chunk if isinstance(bad, InvalidInput)])
        self._completed.update(map(_digest, ids))
        await self._close([job_id for job_id in ids if len(job_id) == 32])
        queue = self.born.queue or self.born.task or dead_letter.UNNAMED
        number = 0
        while ids:
            by_generation = {dead_letter.nth_id(queue, job_id, number): job_id for job_id in ids}
            ids = [by_generation[id] for id in await self._close(list(by_generation))]
            number += 1

    async def _close(self, ids: list[str]) -> list[str]:
        """Resolve the dead letters among these jobs; return the ids that the store knows."""
        known = await self.core.store.get(ids) if ids else []
        dead = [job for job in known if job.state is State.dead and job.id not in self._closed]
        self._closed.update(job.id for job in dead)
        if self.dry_run:
            self._counts["closed"] += len(dead)
        else:
            why = self.why or "the completed ids name it"
            self._counts["closed"] += await self.recorder.close(dead, who=self.who, why=why)
        return [job.id for job in known]


def _take_chunk(lines: Iterator[Line]) -> list[Line]:
    """Takes the next lines: a thousand, or fewer large ones, so that no file fills the memory."""
    taken: list[Line] = []
    size = 0
    while len(taken) < CHUNK and size < CHUNK_BYTES and (line := next(lines, None)) is not None:
        taken.append(line)
        size += len(line.raw)
    return taken


def _is_further(known: Job, job: Job) -> bool:
    """Whether a record tells of a failure that the dead letter does not know."""
    both_dead = known.state is State.dead and job.state is State.dead
    return both_dead and job.attempts > known.attempts and not dead_letter.has_failures(known, job.history)


def _describe_conflict(job: Job, known: str = "") -> str:
    return f"job_id: {job.key or job.id!r} stands for another payload already{known}"


def _reason(line: Line, error: InvalidInput) -> str:
    if line.ended or line.cut or "is not JSON" not in str(error):
        return str(error)
    return f"torn: the line does not end, its writer may not be done with it; import it again later ({error})"


def _digest(text: str) -> bytes:
    """Shortens an id, so that many need little memory."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def _open(source: Source, longest: int, files: contextlib.ExitStack) -> Iterator[Line]:
    if isinstance(source, str | Path):
        return jsonl.read_lines(files.enter_context(path_of(source).open("rb")), longest)
    if hasattr(source, "readline"):
        file: Any = source
        return jsonl.read_lines(file, longest)
    return jsonl.number_lines(source)


def path_of(source: str | Path) -> Path:
    """Returns the path of a file of lines; refuses a folder."""
    path = Path(source).expanduser()
    if path.is_dir():
        raise InvalidInput(field="path", problem=f"{path} is a folder, not a file of JSON lines")
    return path


def _read_completed(
    source: str | Path | Iterable[str], path: str, files: contextlib.ExitStack
) -> Iterator[tuple[int, str | InvalidInput]]:
    """Reads completed ids: (line, id or the error). Without the file nothing counts as done, which is logged."""
    if isinstance(source, str | Path):
        file = Path(source).expanduser()
        if not file.exists():
            log.warning("there is no file of completed ids at %s: nothing counts as done", file)
            return
        lines = jsonl.read_lines(files.enter_context(file.open("rb")))
    else:
        lines = jsonl.number_lines(source)
    yield from ids_in(lines, path)


def ids_in(lines: Iterable[Line], path: str) -> Iterator[tuple[int, str | InvalidInput]]:
    """Reads one completed id per line; an error stands for a line that cannot be read."""
    for line in lines:
        if line.blank:
            continue
        try:
            yield line.number, records.read_completed_id(line.raw, path)
        except InvalidInput as error:
            yield line.number, error


class Aside:
    """Keeps lines that could not be imported: appended to a file with number and reason, synced, each line once."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._there: set[bytes] | None = None

    def keep(self, bad: list[tuple[Line, str]], at: str | None) -> None:
        if self.path is None:
            return
        if self._there is None:
            self._there = set(self._entries(self.path))
        fresh = []
        for line, why in bad:
            text = line.raw.decode("utf-8", "backslashreplace")
            name = _digest(f"{line.number}\0{text}")
            if name not in self._there:
                self._there.add(name)
                cut = {"cut": True} if line.cut else {}
                fresh.append(
                    msgspec.json.encode({"line": line.number, "why": why, "at": at, **cut, "text": text}) + b"\n"
                )
        if fresh:
            jsonl.append_lines(self.path, fresh)

    @staticmethod
    def _entries(path: Path) -> Iterator[bytes]:
        """Read what an earlier import of the same file kept. An entry is longer than its line: bytes are escaped."""
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in jsonl.read_lines(file, max(1, path.stat().st_size)):
                with contextlib.suppress(msgspec.MsgspecError, UnicodeError, KeyError, TypeError):
                    entry = msgspec.json.decode(line.raw)
                    yield _digest(f"{entry['line']}\0{entry['text']}")


def _aside_path(source: Source, given: str | Path | None) -> Path | None:
    if given is not None:
        return Path(given).expanduser()
    if isinstance(source, str | Path):
        return Path(f"{Path(source).expanduser()}.aside.jsonl")
    return None


class FollowedImport(Import):
    """An import that goes on with what is appended. What it keeps aside is logged at once, as a warning."""

    async def run_until(self, stop: asyncio.Event) -> Imported:
        """Import every line once it has ended, until `stop` is set; return what was done."""
        if self.dry_run:
            raise InvalidOption(field="follow", problem="changes the database, and dry_run does not; keep one")
        if not self._path.exists():
            log.warning("there is no file at %s yet: waiting for it", self.source)
        if not isinstance(self.completed, str | Path):
            await self._close_completed()
        with contextlib.ExitStack() as files:
            ids = self.completed
            tail = self._tail(ids, files) if isinstance(ids, str | Path) else None
            lines = self._tail(self._path, files)
            while not stop.is_set():
                if not await self._take_appended(tail, lines):
                    await _wait(stop)
        return self._conclude()

    @property
    def _path(self) -> Path:
        if not isinstance(self.source, str | Path):
            raise InvalidOption(field="follow", problem="needs the path of a file")
        return path_of(self.source)

    def _tail(self, source: str | Path, files: contextlib.ExitStack) -> Tail:
        tail = Tail(path_of(source), self._line_limit)
        files.callback(tail.close)
        return tail

    async def _take_appended(self, ids: Tail | None, lines: Tail) -> bool:
        """Import what was appended, completed ids first; False where nothing was."""
        self.born = msgspec.structs.replace(self.born, now=self.core.clock.now())
        while ids is not None and (done := await asyncio.to_thread(ids.take, CHUNK, CHUNK_BYTES)):
            await self._note_completed(list(ids_in(done, self.mapping.job_id)))
        chunk = await asyncio.to_thread(lines.take, CHUNK, CHUNK_BYTES)
        await self._take(chunk)
        return bool(chunk)

    def _note(self, count: str, problems: list[tuple[int, str]]) -> None:
        super()._note(count, problems)
        file = self.completed if count == "unread" else self.source
        for number, why in problems:
            log.warning("line %d of %s was not imported: %s", number, file, why)


async def _wait(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), LOOK_EVERY)


async def import_(
    core: Core,
    recorder: FailureRecorder,
    source: Source,
    *,
    queue: str | None = None,
    task: str | None = None,
    mapping: records.Mapping | Mapping[str, str] | None = None,
    as_: Form = "dead",
    follow: asyncio.Event | None = None,
    **options: Any,
) -> Imported:
    """Imports a source; with `follow`, goes on with what is appended to it until the event is set."""
    if as_ not in ("dead", "waiting"):
        raise InvalidOption(field="as_", problem=f"{as_!r} is neither dead nor waiting")
    state: Any = State(as_)
    born = dead_letter.BirthRules(
        core.clock.now(), optional_name("queue", queue), optional_name("task", task), state=state
    )
    options = {"mapping": records.read_mapping(mapping), **options}
    if follow is None:
        return await Import(core, recorder, source, born, **options).run()
    return await FollowedImport(core, recorder, source, born, **options).run_until(follow)


# -- out


async def export(core: Core, target: Target, chosen: Filter, *, secrets: bool = False, **how: bool) -> Exported:
    """Writes one record per line for each dead letter."""
    return await _write(_dead_letter_lines(core, chosen, secrets), target, **how)


async def export_completed(core: Core, target: Target, chosen: Filter, **how: bool) -> Exported:
    """Writes one id per line for each done job, the oldest first, as other programs know it."""
    lines = (
        [records.make_id_line(job) for job in page] async for page in read_pages(core.store, chosen, CHUNK, oldest=True)
    )
    return await _write(lines, target, **how)


async def _write(pages: Pages, target: Target, *, overwrite: bool = False, append: bool = False) -> Exported:
    """Writes the lines of all pages. A file is private, and has its name only once it is complete."""
    if target is None:
        lines = [line.decode().rstrip("\n") async for page in pages for line in page]
        return Exported(len(lines), None, lines)
    if not isinstance(target, str | Path):
        return Exported(await _write_all(pages, target.writelines))
    path = _target_path(target)
    if append:
        return Exported(await _write_all(pages, partial(jsonl.append_lines, path)), str(path))
    with jsonl.replace_file(path, overwrite=overwrite) as file:
        count = await _write_all(pages, file.writelines)
    return Exported(count, str(path))


def _target_path(target: str | Path) -> Path:
    path = Path(target).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput(field="path", problem=f"{path} cannot be a file: it is a folder, or its folder is missing")
    return path


async def _write_all(pages: Pages, write: Callable[[list[bytes]], object]) -> int:
    count = 0
    async for page in pages:
        await asyncio.to_thread(write, page)
        count += len(page)
    return count


async def _dead_letter_lines(core: Core, chosen: Filter, secrets: bool) -> Pages:
    """Reads dead letters with their history, a page at a time; one that leaves meanwhile is left out."""
    async for page in read_pages(core.store, chosen, CHUNK):
        jobs = [job for job in await core.store.get([job.id for job in page]) if job.state is State.dead]
        if jobs:
            yield [records.make_line(job, secrets=secrets) for job in jobs]
