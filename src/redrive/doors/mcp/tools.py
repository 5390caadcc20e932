"""Defines the tools that read: how things stand, what failed, why, and what would help. None of them moves a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from redrive.api.explain import why_rule
from redrive.core.job import Attempt, Job, Json, State, iso
from redrive.doors.mcp.answers import Desk, held_step, outside_advice, replace_words, tool
from redrive.doors.mcp.wording import without_none
from redrive.engine.inputs import make_effective_input
from redrive.errors import InvalidInput, JobDead, JobDiscarded
from redrive.jobs.tasks import JobHandle
from redrive.reports.morning import headline, in_words
from redrive.reports.needs import FOR_A_PERSON, lasting

if TYPE_CHECKING:
    from redrive.deadletters.group import GroupView
    from redrive.reports.needs import Need
    from redrive.reports.queue_numbers import QueueView
    from redrive.retries.breaker import Breaker

QUEUES: Final = 20
ROWS: Final = 20
SESSIONS: Final = 1_000
"""How many sessions are remembered: those that asked last."""
ATTEMPTS: Final = 8
"""How many of a job's attempts an explanation has: the latest."""
EXCERPT: Final = 1_000
"""Characters of a payload in an explanation."""
SHORT: Final = 160
"""Characters of an error in a list."""
WAIT: Final = 60
"""Seconds that `operation` waits at most: clients give up on a tool after a minute or so."""

Id = Annotated[str, Field(description="A job's id, or a part that only one job has.", min_length=3, max_length=64)]
Name = Annotated[str | None, Field(max_length=200)]
Rows = Annotated[int, Field(ge=1, le=100, description="How many at most.")]


class ReadingTools:
    """Holds a method for each tool that reads. A model reads the docstring of the method."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._rd = desk.rd
        self._wording = desk.wording
        self._were_down: dict[str | None, frozenset[str]] = {}
        """The keys of the breakers that were down when each session last asked."""

    def tools(self) -> list[Tool]:
        tools = (self.status, self.operation, self.failures, self.explain_failure, self.failure_groups, self.morning)
        return [tool(self._desk, method, reads=True) for method in tools]

    # -- how things stand

    async def status(self) -> dict[str, Any]:
        """Health in words, what is down or answers again since you last asked, the queues that need eyes, the
        operations that wait for a retry or their turn, and how many notices of this session are unread."""
        health, operations = await self._rd.health(), await self._rd.operations()
        session = self._desk.session
        unread = await self._rd.sessions.unread(session) if session is not None else 0
        queues = [queue for queue in await self._rd.queues.list() if queue.needs_eyes]
        down = [breaker for breaker in await self._rd.breakers() if breaker.down]
        return {
            "health": health.status,
            "needs_a_person": len(health.needs),
            "issues": [self._wording.line(issue) for issue in health.issues[:ROWS]],
            **_count_left_out("issues", len(health.issues) - ROWS),
            "down": [self._down(breaker) for breaker in down[:ROWS]],
            **self._list_recovered(frozenset(breaker.key for breaker in down)),
            "queues_that_need_eyes": [self._queue(queue) for queue in queues[:QUEUES]],
            **_count_left_out("queues", len(queues) - QUEUES),
            "retry_queue": {name: operations[name] for name in ("queued", "by_reason", "next_retry_at")},
            "recent_operations": [self._recent(row) for row in operations["recent"][:ROWS]],
            "tools_can_write": self._desk.writes,
            **without_none(session=session, unread_notices=unread if session is not None else None),
            "next": _begin(unread, needs=bool(health.needs)),
        }

    def _down(self, breaker: Breaker) -> dict[str, Any]:
        return {"what": self._wording.line(breaker.key), "cause": breaker.cause, "since": iso(breaker.since)}

    def _list_recovered(self, down: frozenset[str]) -> dict[str, list[str]]:
        """List what was down when this session last asked and has answered since."""
        session = self._desk.session
        back = sorted(self._were_down.pop(session, frozenset()) - down)
        self._were_down[session] = down
        if len(self._were_down) > SESSIONS:
            self._were_down.pop(next(iter(self._were_down)))
        return {"answers_again": [self._wording.line(key) for key in back[:ROWS]]} if back else {}

    def _queue(self, queue: QueueView) -> dict[str, Any]:
        counts = {name: getattr(queue, name) for name in ("due", "retrying", "running", "held", "parked", "dead")}
        return {"queue": self._wording.line(queue.name), "paused": queue.paused, **counts, **_pace(queue)}

    def _recent(self, row: dict[str, Any]) -> dict[str, Any]:
        facts = {name: row.get(name) for name in ("operation_id", "status", "retry_at", "max_retries")}
        kind = self._wording.optional_line(row.get("error_kind"), 100)
        return without_none(facts | {"error_kind": kind, "task": self._wording.line(row["task"])})

    async def operation(
        self,
        operation_id: Id,
        offset: Annotated[int, Field(ge=0, description="Read a long result on from this character.")] = 0,
        wait_seconds: Annotated[
            float,
            Field(ge=0, le=WAIT, description="Wait so long for its end instead of asking again and again."),
        ] = 0,
    ) -> dict[str, Any]:
        """How one operation (a job) stands: done with its result, queued, still running, failed, or waiting for a
        person. Only `status: ok` is success."""
        job = await self._rd.jobs.get(operation_id)
        if wait_seconds and not job.ended:
            await self._wait(job, wait_seconds)
        outcome = await self._rd.outcome(job.id)
        if not offset:
            return await self._desk.describe(outcome)
        if outcome.status != "ok":
            raise InvalidInput(field="offset", problem=f"there is no result yet to read from {offset} on")
        rest = await self._desk.result(await self._rd.jobs.get(job.id), offset)
        return {"operation_id": job.id, "status": "ok", **rest}

    async def _wait(self, job: Job, seconds: float) -> None:
        """Wait until the job ends or the time is up. The caller reads how it ended."""
        try:
            await JobHandle[Any](self._rd.jobs, job).result(timeout=seconds)
        except (TimeoutError, JobDead, JobDiscarded):
            return

    # -- what failed

    async def failures(
        self,
        queue: Name = None,
        task: Name = None,
        agent: Name = None,
        session_id: Name = None,
        lane: Annotated[str | None, Field(description="manual: needs a person; delayed: comes back by itself.")] = None,
        because: Annotated[str | None, Field(description="e.g. attempts_exhausted, permanent, crash_loop.")] = None,
        detail: Annotated[str | None, Field(description="The cause, e.g. rate_limited, credentials.")] = None,
        error_class: Annotated[str | None, Field(description="e.g. TimeoutError.")] = None,
        error_kind: Annotated[str | None, Field(description="A kind that any attempt of the job reported.")] = None,
        group: Annotated[str | None, Field(description="A fingerprint from `failure_groups` or `morning`.")] = None,
        limit: Rows = ROWS,
        cursor: Annotated[str | None, Field(description="`next_cursor` of the page before.")] = None,
    ) -> dict[str, Any]:
        """Dead letters, the latest first, one short row each: jobs that failed and are not retried by themselves.
        Every filter that is given must match."""
        filters = {"queue": queue, "task": task, "agent": agent, "session_id": session_id, "lane": lane}
        filters |= {"because": because, "detail": detail, "error_class": error_class, "error_kind": error_kind}
        fingerprint = (await self._rd.groups.find(group, field="group")).fingerprint if group else None
        page = await self._rd.dead.list(limit=limit, cursor=cursor, fingerprint=fingerprint, **filters)
        rows = [self._row(job) for job in page.jobs]
        more = {"next_cursor": page.cursor} if page.cursor else {}
        step = f"`explain_failure` {rows[0]['id']} says why." if rows else "No dead letters match: nothing to do here."
        return {"failures": rows, **more, "next": step}

    def _row(self, job: Job) -> dict[str, Any]:
        line = self._wording.line
        return without_none(
            id=job.id,
            task=line(job.task),
            queue=line(job.queue),
            died_at=iso(job.updated_at),
            because=job.because,
            cause=job.detail,
            lane=job.lane,
            attempts=job.attempts,
            group=job.fingerprint,
            untrusted_error=self._wording.optional_line(job.error, SHORT),
        )

    async def explain_failure(self, failure_id: Id) -> dict[str, Any]:
        """One dead letter: its cause, the rule that says so in words, what was tried, what redrive recommends, and
        the next step."""
        job = await self._rd.dead.show(failure_id)
        if job.state is not State.dead:
            return {
                "id": job.id,
                "state": str(job.state),
                "explanation": f"It is {job.state}, not a dead letter.",
                "next": held_step(job) if job.state is State.held else f"Ask `operation` {job.id}.",
            }
        body = self._row(job) | {"died_because": self._decision(job), "cause": self._cause(job)}
        body |= {"tried": [self._tried(attempt) for attempt in job.history[-ATTEMPTS:]]}
        body |= self._advice(job) | await self._effects(job) | await self._group(job)
        body["untrusted_payload"] = self._wording.excerpt(self._input(job), EXCERPT)
        body["untrusted_error"] = self._wording.quote(job.error or "no error was recorded")
        return body | {"resource": f"redrive://jobs/{job.id}", "next": self._after(job, body)}

    def _input(self, job: Job) -> Json:
        """Return the input of the next run: the payload with its edits and changes."""
        return make_effective_input(job, self._rd.registry.handlers.get(job.task), self._rd.registry).payload

    def _decision(self, job: Job) -> str | None:
        """Return why the job is not retried, in words of redrive without those of the error."""
        last = job.history[-1] if job.history else None
        if last is None or last.decision is None:
            return None
        message = last.failure.message if last.failure else None
        return self._wording.line(replace_words(last.decision, (job.error, "its error"), (message, "its error")))

    def _cause(self, job: Job) -> dict[str, Any] | None:
        cause = next((attempt.cause for attempt in reversed(job.history) if attempt.cause), None)
        if cause is None:
            return None
        rule = f"{cause.rule or 'none'}: {why_rule(cause.rule)}" if cause.rule else "no rule knows it"
        named = {"category": cause.category, "detail": cause.detail, "heals": cause.heals.replace("_", " ")}
        return named | {"rule": self._wording.line(rule)}

    def _tried(self, attempt: Attempt) -> dict[str, Any]:
        failure = attempt.failure
        changed = [str(change.get("change")) for change in attempt.changes or ()]
        return without_none(
            run=attempt.run,
            outcome=attempt.outcome,
            ended_at=iso(attempt.ended_at),
            cause=attempt.cause.detail if attempt.cause else None,
            changed=changed or None,
            model=self._wording.optional_line(attempt.model),
            next_strategy=attempt.strategy,
            effects_seen=self._effects_seen(attempt),
            untrusted_error=self._wording.line(failure.summary, SHORT) if failure else None,
        )

    def _effects_seen(self, attempt: Attempt) -> dict[str, str] | None:
        """Return the verdicts of the task's verifiers on each effect."""
        when = f" {attempt.looked} it ran" if attempt.looked else ""
        verdicts = {self._wording.line(name): f"{seen}{when}" for name, seen in (attempt.effects or {}).items()}
        return verdicts or None

    def _advice(self, job: Job) -> dict[str, Any]:
        """Return the recommendation of redrive, or that of a task or an imported record as a text from outside."""
        outside = outside_advice(job)
        if outside:
            return {"untrusted_advice": self._wording.quote(outside)}
        return {"recommendation": self._wording.line(job.recommendation or "Look at it.", 600)}

    async def _effects(self, job: Job) -> dict[str, Any]:
        """List the effects of the job, which a repetition must take into account."""
        effects = await self._rd.jobs.effects(job.id)
        rows = [{"effect": self._wording.line(effect.name), "status": effect.status} for effect in effects[:ROWS]]
        return {"effects": rows, **_count_left_out("effects", len(effects) - ROWS)} if rows else {}

    async def _group(self, job: Job) -> dict[str, Any]:
        """Describe the job's error group, and what has helped against it."""
        view = await self._rd.groups.as_judged(job.fingerprint) if job.fingerprint else None
        if view is None:
            return {}
        outside = (await self._not_ours([view])).get(view.fingerprint, "")
        helps = self._wording.line(view.suggestion.text.replace(outside, "")) if view.suggestion.tried else None
        return {"alike": without_none(group=view.fingerprint, dead_now=view.dead, what_helped=helps)}

    def _after(self, job: Job, body: dict[str, Any]) -> str:
        open_effects = any(effect["status"] in ("intended", "unknown") for effect in body.get("effects", ()))
        if open_effects or job.may_have_landed:
            return "An effect may have landed. Have a person look outside before it is tried again."
        how = (
            f"`redrive_failure` {job.id} with a reason"
            if self._desk.writes
            else f"a person runs `redrive dead redrive {job.short_id} --why TEXT`"
        )
        if job.lane == "delayed":
            when = f" at {iso(job.comes_back_at)}" if job.comes_back_at is not None else ""
            return f"It comes back by itself{when}. To try it sooner: {how}."
        return f"First remove the cause, as advised above; then {how}. As it is, it would fail again."

    async def failure_groups(
        self,
        status: Annotated[str | None, Field(description="unresolved, ignored or resolved.")] = None,
        queue: Name = None,
        task: Name = None,
        limit: Rows = ROWS,
    ) -> dict[str, Any]:
        """The error groups of the dead letters, unresolved ones first: jobs that failed for one reason are one group,
        with how many are dead, the trend, and what has helped."""
        views = await self._rd.groups.list(status=status, queue=queue, task=task, limit=limit + 1)
        more = {"more": "There are more: raise `limit` or narrow it."} if len(views) > limit else {}
        step = f"`failures` with group={views[0].fingerprint} lists its jobs." if views else "There are no groups here."
        outside = await self._not_ours(views[:limit])
        rows = [self._group_row(view, ours=view.fingerprint not in outside) for view in views[:limit]]
        return {"groups": rows, **more, "next": step}

    async def _not_ours(self, views: Sequence[GroupView]) -> dict[str, str]:
        """Return, by group, the words of its suggestion that a task or an imported record chose."""
        latest = {view.letter.id: view for view in views if view.letter is not None}
        advice = {id: " ".join(text.split()) for id, text in (await self._read_advice(latest)).items()}
        return {latest[id].fingerprint: text for id, text in advice.items() if text in latest[id].suggestion.text}

    async def _read_advice(self, ids: Iterable[str]) -> dict[str, str]:
        """Read the recommendations that a task or an imported record gave, by job."""
        jobs = await self._rd.jobs.get_many([*ids])
        return {job.id: advice for job in jobs if (advice := outside_advice(job))}

    def _group_row(self, view: GroupView, *, ours: bool) -> dict[str, Any]:
        seen, line = view.group, self._wording.line
        return without_none(
            group=view.fingerprint,
            status=view.status,
            task=line(seen.task),
            queue=line(seen.queue),
            cause=seen.detail,
            dead_now=view.dead,
            died_in_all=seen.buried,
            trend=view.trend,
            last_at=iso(seen.last_at),
            **{"suggestion" if ours else "untrusted_advice": line(view.suggestion.text)},
            latest=seen.sample,
            untrusted_error=self._wording.optional_line(seen.error or seen.error_class, SHORT),
        )

    async def morning(
        self,
        hours: Annotated[float, Field(gt=0, le=24 * 366, description="The time to look back.")] = 24,
        queue: Name = None,
    ) -> dict[str, Any]:
        """The morning report: what needs a person and nothing else, what changed against the time before, and one
        line on a quiet day."""
        page = await self._rd.morning(timedelta(hours=hours), queue=queue)
        body: dict[str, Any] = {"headline": headline(page), "since": iso(page.since), "ok": page.ok}
        body |= {"done": page.done, "failed": page.failed, "delayed": page.delayed}
        body |= without_none(retrying=page.retrying)
        shown = page.needs[:ROWS]
        outside = await self._read_advice(need.job_id for need in shown if need.job_id)
        body["needs"] = [self._need(need, ours=need.job_id not in outside) for need in shown]
        body["changes"] = [self._wording.line(in_words(delta)) for delta in page.changes[:ROWS]]
        body |= _count_left_out("needs", len(page.needs) - ROWS) | _count_left_out("changes", len(page.changes) - ROWS)
        begin = f"Begin with the first: {_name_tool(page.needs[0])}" if page.needs else "Nothing needs a person."
        return body | {"next": begin}

    def _need(self, need: Need, *, ours: bool) -> dict[str, Any]:
        line = self._wording.line
        return without_none(
            kind=need.kind,
            jobs=need.count,
            task=line(need.task),
            queue=line(need.queue),
            latest=need.job_id,
            group=need.fingerprint,
            lasting=lasting(need) or None,
            untrusted_error=line(need.what, SHORT) or None,
            sentence=line(need.sentence, EXCERPT),
            **{"advice" if ours else "untrusted_advice": line(need.action)},
            look=_name_tool(need),
        )


def _begin(unread: int, *, needs: bool) -> str:
    """Return what to look at after the status: first the notices of this session."""
    told = f"`inbox` has {unread} unread notice{'s' if unread > 1 else ''} for you. " if unread else ""
    more = "`morning` says what needs a person; `failures` lists dead letters." if needs else "Nothing needs a person."
    return f"{told}{more}"


def _pace(queue: QueueView) -> dict[str, float]:
    """Return how long the last successes waited and took, and the day's share of failed attempts, where known."""
    spans = {"wait_seconds": queue.waited, "run_seconds": queue.took}
    pace: dict[str, float | None] = {
        f"{name}_{part}": round(getattr(span, part), 3)
        for name, span in spans.items()
        if span is not None
        for part in ("p50", "p95")
    }
    rate = queue.failure_rate
    return without_none(pace | {"failure_rate": None if rate is None else round(rate, 3)})


def _count_left_out(what: str, number: int) -> dict[str, int]:
    """Return how many items a list lacks, as a field of the answer."""
    return {f"{what}_not_shown": number} if number > 0 else {}


def _name_tool(need: Need) -> str:
    """Return which tool or command shows more of a need."""
    if need.kind in (*FOR_A_PERSON, "unattended", "process_gone", "stalled", "loop_blocked") and need.job_id:
        return f"`operation` {need.job_id}"
    if need.kind == "outcome_unknown":  # of an effect without a job
        return f"a person runs `{need.command}`"
    if need.count > 1 and "--lane delayed" in need.command:
        return f"`failures` with lane=delayed and task={need.task}"
    if need.count > 1 and need.fingerprint:
        return f"`failures` with group={need.fingerprint}"
    return f"`explain_failure` {need.job_id}" if need.job_id else "a person runs `redrive doctor`"
