"""`rd.dead`: lists dead letters, and carries out the verbs of a person, or of an agent for that person."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast, overload

from redrive.core.checks import check_id, check_limit
from redrive.core.job import Job, Json, State
from redrive.core.store import Page
from redrive.deadletters import edit
from redrive.deadletters.acts import Acts
from redrive.deadletters.bulk_run import PASS_RATE
from redrive.deadletters.filters import make_filter
from redrive.deadletters.group import GroupView
from redrive.deadletters.input_edits import EditPreview, PatchPreview
from redrive.deadletters.orders import carry_out, make_order, make_revival, read_words
from redrive.deadletters.purge import Purging
from redrive.deadletters.redrives import How
from redrive.deadletters.triage import Act, Acted
from redrive.deadletters.undo import Undoing
from redrive.deadletters.verbs import VERBS, Note, find_verb
from redrive.errors import InvalidInput
from redrive.jobs.core import DEFAULT_WHO, find_job
from redrive.reports import input_diff

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from redrive.deadletters.bulk_run import RedriveRun
    from redrive.deadletters.groups import Groups
    from redrive.deadletters.purge import PurgePlan
    from redrive.deadletters.redrives import Redrives
    from redrive.jobs.core import Core
    from redrive.jobs.records import Mapping as Fields
    from redrive.scripts.failure_records import FailureRecorder
    from redrive.scripts.import_export import Exported, Form, Imported, Source, Target


class Dead:
    """Dead letters: failed jobs, their causes, and the verbs of triage.

    The verbs of triage take one id and return the job; or take `ids=[…]`, or the filters of `list` (all=True for
    everything), and return the result for all jobs. `undo` takes any act back, except a purge.
    """

    def __init__(
        self, core: Core, acts: Acts, redrives: Redrives, groups: Groups, recorder: Callable[[], FailureRecorder]
    ) -> None:
        """Keeps the services. `recorder` is called late, because it depends on enqueueing, which needs this class."""
        self._core = core
        self._acts = acts
        self._redrives = redrives
        self._groups = groups
        self._recorder = recorder
        self._undoing = Undoing(core, acts, redrives, groups)
        self._purging = Purging(core, acts)

    async def list(self, *, limit: int = 100, cursor: str | None = None, **filters: Any) -> Page:
        """Lists the newest first. Filters: queue, task, agent, lane, because, category, detail, error_class, …"""
        chosen = make_filter({**filters, "state": "dead"})
        return await self._core.store.find(chosen, cursor, check_limit(limit))

    async def show(self, id: str) -> Job:
        """Reads one dead letter with every attempt, its cause, the decision and the reason."""
        return await find_job(self._core.store, id, (State.dead,))

    async def groups(self, **filters: Any) -> builtins.list[GroupView]:
        """Lists the error groups, unresolved ones first; `rd.groups` resolves or ignores groups."""
        return await self._groups.list(**filters)

    @overload
    async def redrive(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def redrive(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> RedriveRun: ...
    async def redrive(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        **filters: Any,
    ) -> Job | RedriveRun:
        """Sends the job back to its queue: same id, key and history; fresh attempts if they were used up.

        Many jobs at once are a bulk redrive, which workers carry out: see `rd.redrives`.
        """
        if id is None:
            return await self._redrives.start(ids, all=all, who=who, why=why, **filters)
        return cast(Job, await self._act("redrive", {}, id, ids, filters, all=all, who=who, why=why))

    async def revive(self, id: str, *, who: str, why: str) -> Job:
        """Redrives for a program, which has not checked the job: one whose effect may have landed stays dead."""
        return await carry_out(self._core, make_revival(self._core, who, why), id)

    @overload
    async def do(self, verb: str, id: str, *, who: str = ..., why: str | None = ..., **words: Any) -> Job: ...
    @overload
    async def do(
        self,
        verb: str,
        *,
        ids: Sequence[str] = ...,
        all: bool = ...,
        who: str = ...,
        why: str | None = ...,
        where: Mapping[str, Any] | None = ...,
        **words: Any,
    ) -> Acted | RedriveRun: ...
    async def do(
        self,
        verb: str,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **words: Any,
    ) -> Job | Acted | RedriveRun:
        """Carries out a verb of triage by name, on one job by id, or on many by ids, `where` (the filters) or all=True.

        The verb's words are keyword arguments, as in `rd.dead.defer`.
        """
        row = find_verb(verb)
        if id is None and verb == "redrive":
            read_words(self._core, row, words)
            return await self._redrives.start(ids, all=all, who=who, why=why, **(where or {}))
        if id is None and verb == "edit":
            return await self.edit_many(ids=ids, all=all, who=who, why=why, where=where, **words)
        return await self._act(verb, words, id, ids, where or {}, all=all, who=who, why=why)

    async def _act(
        self,
        verb: str,
        words: Mapping[str, Any],
        id: str | None,
        ids: Sequence[str],
        filters: Mapping[str, Any],
        *,
        all: bool,
        who: str,
        why: str | None = None,
    ) -> Job | Acted:
        """Carries out a verb, with its words as the caller gave them, on one job or on many."""
        if id is not None and (ids or filters or all):  # the two would name different jobs
            raise InvalidInput(field=min(filters, default="ids"), problem="give one id, or ids or a filter, not both")
        row = VERBS[verb]
        read = read_words(self._core, row, words, many=id is None) if row.words or words else {}
        if id is None:
            return await self._acts.many(row, read, ids, filters, all=all, who=who, why=why)
        order = make_order(self._core, row, read, who, why)
        if verb == "edit":
            return await edit.edit(self._core, id, order, read["repeat"])
        return await carry_out(self._core, order, id)

    @overload
    async def reassign(self, id: str, *, agent: str, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def reassign(
        self,
        *,
        agent: str,
        ids: Sequence[str] = ...,
        all: bool = ...,
        who: str = ...,
        why: str | None = ...,
        where: Mapping[str, Any] | None = ...,
        **filters: Any,
    ) -> Acted: ...
    async def reassign(
        self,
        id: str | None = None,
        *,
        agent: str,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Sends the job back to its queue for another agent. Consents given for the old agent do not count for the new.

        `agent` names the new agent; `where={"agent": "writer"}` gives filters whose names the verb uses itself.
        """
        chosen = {**filters, **(where or {})}
        return await self._act("reassign", {"agent": agent}, id, ids, chosen, all=all, who=who, why=why)

    @overload
    async def defer(
        self, id: str, *, owner: str, until: datetime | timedelta | float, who: str = ..., why: str | None = ...
    ) -> Job: ...
    @overload
    async def defer(
        self,
        *,
        owner: str,
        until: datetime | timedelta | float,
        ids: Sequence[str] = ...,
        all: bool = ...,
        who: str = ...,
        why: str | None = ...,
        where: Mapping[str, Any] | None = ...,
        **filters: Any,
    ) -> Acted: ...
    async def defer(
        self,
        id: str | None = None,
        *,
        owner: str,
        until: datetime | timedelta | float,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Sets the job aside for `owner` until a time, or for a span from now. The job comes back automatically.

        `where={"owner": "ada"}` gives filters whose names the verb uses itself.
        """
        words, chosen = {"owner": owner, "until": until}, {**filters, **(where or {})}
        return await self._act("defer", words, id, ids, chosen, all=all, who=who, why=why)

    @overload
    async def recall(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def recall(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> Acted: ...
    async def recall(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Makes a deferred job a dead letter again before its time."""
        return await self._act("recall", {}, id, ids, filters, all=all, who=who, why=why)

    async def edit(
        self,
        id: str,
        payload: dict[str, Json],
        *,
        repeat: Sequence[str] = (),
        who: str = DEFAULT_WHO,
        why: str | None = None,
    ) -> Job:
        """Sends the job back to its queue with another input. Keeps the enqueued payload; receivers get a new key.

        Effects of `ctx.once` that have landed are kept, except those named in `repeat`, which are done again.
        """
        words = {"payload": payload, "repeat": repeat}
        return cast(Job, await self._act("edit", words, check_id("id", id), (), {}, all=False, who=who, why=why))

    async def preview_edit(self, id: str, payload: Mapping[str, Json]) -> EditPreview:
        """Previews an edit: differences in words, errors by field, voided consents, landed effects, tainted texts.

        Changes nothing.
        """
        return await edit.preview(self._core, id, payload)

    async def edit_many(
        self,
        patch: Mapping[str, Json],
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        canary: int = 0,
        pass_rate: float = PASS_RATE,
        rate: float | None = None,
        token: str | None = None,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> RedriveRun:
        """Edits many dead letters in the same way and redrives them, as one run that `rd.redrives` lists.

        `patch` is a JSON merge patch (RFC 7396): the fields to change; null removes one. Each job keeps the payload as
        it was enqueued. If the patched input does not fit the task, or changes nothing, the job is skipped.
        `canary`, `pass_rate`, `rate` and `token` are those of `rd.redrives.start`; `undo` takes the run's id.
        """
        words = read_words(self._core, VERBS["edit"], {"patch": patch}, many=True)
        how = How(canary, pass_rate, rate, token)
        chosen = {**filters, **(where or {})}
        return await self._redrives.begin(
            VERBS["edit"], words, ids, chosen, all=all, who=who, why=why, how=how, some=True
        )

    async def preview_edit_many(
        self,
        patch: Mapping[str, Json],
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> PatchPreview:
        """Previews `edit_many`: how many jobs change, samples of the differences, errors by field, refusals.

        Changes nothing. With the preview's `token`, `edit_many` edits exactly these jobs or none.
        """
        words = read_words(self._core, VERBS["edit"], {"patch": patch}, many=True)
        return await edit.preview_many(
            self._core, self._redrives, words["patch"], ids, {**filters, **(where or {})}, all=all
        )

    async def diff(self, id: str, one: int, other: int, *, secrets: bool = False) -> builtins.list[str]:
        """Lists how the inputs of two runs of a job differ, in words; empty if they are equal. Secrets are masked."""
        return input_diff.difference(self._core, await find_job(self._core.store, id), one, other, secrets=secrets)

    async def inputs(self, id: str, *, secrets: bool = False) -> dict[int, Json]:
        """Returns the input of each run of a job. Secrets are masked."""
        return input_diff.inputs(self._core, await find_job(self._core.store, id), secrets=secrets)

    @overload
    async def move_lane(self, id: str, lane: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def move_lane(
        self,
        *,
        lane: str,
        ids: Sequence[str] = ...,
        all: bool = ...,
        who: str = ...,
        why: str | None = ...,
        where: Mapping[str, Any] | None = ...,
        **filters: Any,
    ) -> Acted: ...
    async def move_lane(
        self,
        id: str | None = None,
        lane: str = "",
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Moves the job to `delayed` (it comes back automatically) or `manual` (it waits for a person).

        `where={"lane": …}` filters by the present lane."""
        chosen = {**filters, **(where or {})}
        return await self._act("move_lane", {"lane": lane}, id, ids, chosen, all=all, who=who, why=why)

    @overload
    async def discard(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def discard(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> Acted: ...
    async def discard(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Discards the job, which can be restored."""
        return await self._act("discard", {}, id, ids, filters, all=all, who=who, why=why)

    @overload
    async def restore(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def restore(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> Acted: ...
    async def restore(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Makes a discarded job a dead letter again, in the manual lane."""
        return await self._act("restore", {}, id, ids, filters, all=all, who=who, why=why)

    @overload
    async def note(self, id: str, text: str, *, who: str = ...) -> Job: ...
    @overload
    async def note(
        self, *, text: str, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., **filters: Any
    ) -> Acted: ...
    async def note(
        self,
        id: str | None = None,
        text: str = "",
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = DEFAULT_WHO,
        **filters: Any,
    ) -> Job | Acted:
        """Writes a note on the job for the next reader; the job does not move."""
        return await self._act("note", {"text": text}, id, ids, filters, all=all, who=who)

    async def matching(self, verb: str, ids: Sequence[str] = (), *, all: bool = False, **filters: Any) -> int:
        """Counts the jobs that a verb would act on now, for a question before the act."""
        return await self._acts.matching(verb, ids, filters, all=all)

    async def notes(self, id: str) -> Sequence[Note]:
        """Lists the notes on a job, oldest first."""
        return await self._acts.notes(id)

    async def acts(self, limit: int = 50) -> Sequence[Act]:
        """Lists the acts on dead letters and groups, by whom and why, the latest first."""
        return await self._acts.latest(check_limit(limit))

    async def undo(self, act_id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> Acted:
        """Takes an act back: puts jobs that have not changed since back where they were, and reports the others.

        `act_id` is the act's id, or a job's id for the last act on that single job. A purge cannot be taken back.
        """
        return await self._undoing.undo(act_id, who, why)

    async def prune_acts(self) -> int:
        """Drops what undo no longer needs, and old acts. The scheduler calls `prune_acts`."""
        return await self._acts.prune()

    async def add(
        self, job_id: str, payload: Json, error: BaseException | type[BaseException] | str | None = None, **said: Any
    ) -> Job:
        """Records a failed job, like `redrive.to_dead_letter`, with its options: attempt, task, queue, lane, …"""
        from redrive.scripts.failure_records import check_details

        return await self._recorder().add(job_id, payload, error, check_details(said))

    async def take_in(self, job: Job) -> Job:
        """Records a dead letter that waited beside the store. The same failure counts once, another also counts."""
        from redrive.scripts.failure_records import NewDeadLetter

        return await self._recorder().take_in(NewDeadLetter(job))

    async def import_(
        self,
        source: Source,
        *,
        queue: str | None = None,
        task: str | None = None,
        mapping: Fields | Mapping[str, str] | None = None,
        completed: str | Path | Iterable[str] | None = None,
        aside: str | Path | None = None,
        as_: Form = "dead",
        dry_run: bool = False,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        progress: Callable[[int], None] | None = None,
        follow: asyncio.Event | None = None,
    ) -> Imported:
        """Imports lines of JSON: redrive's, or another program's by `mapping`. A repeated import changes nothing.

        Skips ids that `completed` names, and closes their dead letters in the store. Lines that cannot be imported are
        kept in `aside` (`<path>.aside.jsonl`), with number and reason. With `follow`, lines that other programs append
        to the files are imported as well, until the event is set; a renamed or truncated file is fine.
        """
        from redrive.scripts import import_export

        return await import_export.import_(
            self._core, self._recorder(), source, queue=queue, task=task, mapping=mapping, completed=completed,
            aside=aside, as_=as_, dry_run=dry_run, who=who, why=why, progress=progress, follow=follow,
        )  # fmt: skip

    async def export(
        self,
        path: Target = None,
        *,
        secrets: bool = False,
        overwrite: bool = False,
        append: bool = False,
        **filters: Any,
    ) -> Exported:
        """Writes dead letters as lines of JSON that `import_`, grep and jq read. Takes the filters of `list`."""
        from redrive.scripts import import_export

        chosen = make_filter({**filters, "state": "dead"})
        how = {"secrets": secrets, "overwrite": overwrite, "append": append}
        return await import_export.export(self._core, path, chosen, **how)

    async def purge_plan(self, ids: Sequence[str] = (), *, all: bool = False, **filters: Any) -> PurgePlan:
        """Counts the dead letters that a purge would remove for good, and makes a token for exactly these."""
        return await self._purging.plan(ids, filters, all=all)

    async def purge(
        self,
        ids: Sequence[str] = (),
        *,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        all: bool = False,
        confirm: str | None = None,
        **filters: Any,
    ) -> int:
        """Removes contents for good, by id or by filter (dead letters only); keeps the keys. Returns the number.

        `confirm` is the token of `purge_plan`: nothing is removed unless the jobs are exactly the counted ones.
        """
        return await self._purging.purge(await self._acts.meant("purge", ids, filters, all=all), who, why, confirm)
