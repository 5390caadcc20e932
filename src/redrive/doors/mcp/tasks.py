"""Implements the extension `io.modelcontextprotocol/tasks`: a job that goes on is a durable task with the job's id.

Only clients that declare the extension with their request get tasks, and only where the answer is not there within a
second; every other client, and every short call, is answered as before. Nothing of a task is kept beside its job, so
tasks outlast the server's process. `failed` is for errors of the protocol alone, says the specification: a dead letter
is a completed task whose result is an error, with the recommendation in its words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, Literal

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from redrive.core.job import Job, State, iso
from redrive.core.notice import comes_back
from redrive.doors.mcp.answers import Desk, answer, as_task, refusal
from redrive.doors.mcp.sessions import ON_STDIO
from redrive.errors import IllegalMove, RedriveError
from redrive.reports.needs import FOR_A_PERSON

IDENTIFIER: Final = "io.modelcontextprotocol/tasks"
LEAST_POLL: Final = 1.0
MOST_POLL: Final = 60.0
"""Seconds that a client is asked to let pass between two looks."""

Status = Literal["working", "input_required", "completed", "cancelled"]
Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """Parameters that name a task."""

    task_id: str = Field(min_length=1, max_length=100)


class UpdateParams(TaskParams):
    """Parameters with answers to what a task asked."""

    input_responses: dict[str, Any]


def status_of(job: Job) -> Status:
    """Map a job's state to a task's. A job that comes back by itself is working, even while it is parked or dead."""
    if job.state is State.held:
        return "input_required" if job.because in FOR_A_PERSON else "working"
    if job.state is State.done or (job.state is State.dead and not comes_back(job)):
        return "completed"
    return "cancelled" if job.state in (State.discarded, State.purged) else "working"


def poll_after(job: Job, now: float) -> int:
    """Suggest in how many milliseconds to look again: not before the job is due."""
    due = job.run_at - now if job.state is State.waiting else (job.comes_back_at or now) - now
    return int(1000 * min(MOST_POLL, max(LEAST_POLL, due)))


class DurableTasks(Extension):
    """Answers tasks/get, tasks/update and tasks/cancel, and makes tasks of calls that go on."""

    identifier = IDENTIFIER

    def __init__(self, desk: Desk, makers: Collection[str]) -> None:
        self._desk = desk
        self._makers = frozenset(makers)
        """The tools whose answer is an operation of this session."""

    def methods(self) -> Sequence[MethodBinding]:
        modern = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, self._bind(self._get), modern),
            MethodBinding("tasks/update", UpdateParams, self._bind(self._update), modern),
            MethodBinding("tasks/cancel", TaskParams, self._bind(self._cancel), modern),
        )

    # -- a call that goes on becomes a task

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        if params.name not in self._makers or not _declares(ctx):
            return await call_next(ctx)
        reset = as_task.set(True)
        try:
            result = await call_next(ctx)
        finally:
            as_task.reset(reset)
        job = await self._unfinished(result)
        return result if job is None else {"resultType": "task", **await self._task(job)}

    async def _unfinished(self, result: HandlerResult) -> Job | None:
        """Find the job behind an answer that is not final; return None if the answer stands as it is."""
        if not isinstance(result, CallToolResult) or not (body := result.structured_content):
            return None
        comes_again = body.get("retry_at") is not None
        if (body.get("status") in ("ok", "failed") and not comes_again) or not (id := body.get("operation_id")):
            return None
        try:
            (job,) = await self._desk.rd.jobs.get_many([id])
        except (RedriveError, OSError, ValueError):
            return None  # the plain answer names the operation, and says that the store does not answer
        return job if self._is_own(job) and status_of(job) != "completed" else None

    # -- the methods

    def _bind(
        self, method: Callable[[Job, Any], Awaitable[dict[str, Any]]]
    ) -> Callable[[Context, Any], Awaitable[dict[str, Any]]]:
        """Make a method of the protocol: it requires the client's declaration, and turns refusals into errors."""

        async def answered(ctx: Context, params: TaskParams) -> dict[str, Any]:
            require_client_extension(ctx, IDENTIFIER)
            try:
                return await method(await self._get_own_job(params.task_id), params)
            except (RedriveError, OSError) as error:
                raise MCPError(code=INTERNAL_ERROR, message=refusal(error, self._desk.wording)) from error

        return answered

    async def _get_own_job(self, task_id: str) -> Job:
        """Read the job of a task of this session. A task of another session does not exist for it."""
        jobs = await self._desk.rd.jobs.get_many([task_id])
        if not jobs or not self._is_own(jobs[0]):
            raise MCPError(code=INVALID_PARAMS, message="Task not found: this session has no task with this id")
        return jobs[0]

    def _is_own(self, job: Job) -> bool:
        """Tell whether a job is of this session. All unnamed sessions on stdio count as one, so that a client finds its
        tasks again after a restart."""
        session, owner = self._desk.session, job.session_id
        return owner == session or all((name or "").startswith(ON_STDIO) for name in (owner, session))

    async def _get(self, job: Job, _: TaskParams) -> dict[str, Any]:
        body = await self._task(job)
        if body["status"] == "input_required":
            body["inputRequests"] = {}  # only a person answers, in a terminal: statusMessage says how
        if body["status"] == "completed":
            result = answer(await self._desk.describe(await self._desk.rd.outcome(job.id)))
            body["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return body

    async def _update(self, job: Job, _: TaskParams) -> dict[str, Any]:
        """Acknowledge an answer and ignore it: a client that speaks for a model cannot approve what a person must."""
        return {}

    async def _cancel(self, job: Job, _: TaskParams) -> dict[str, Any]:
        if not self._desk.writes:
            raise MCPError(code=INVALID_PARAMS, message="This server only reads: a person runs `redrive cancel`")
        try:
            await self._desk.rd.jobs.cancel(job.id, who=self._desk.who, why="tasks/cancel")
        except IllegalMove:
            return {}  # it has ended: cancelling is a wish, and tasks/get says how it ended
        return {}

    async def _task(self, job: Job) -> dict[str, Any]:
        return {
            "taskId": job.id,
            "status": status_of(job),
            "statusMessage": await self._describe(job),
            "createdAt": iso(job.created_at),
            "lastUpdatedAt": iso(job.updated_at),
            "ttlMs": None,
            "pollIntervalMs": poll_after(job, self._desk.rd.clock.now()),
        }

    async def _describe(self, job: Job) -> str:
        """Say how the job stands and what to do, as the plain tools do."""
        body = await self._desk.describe(await self._desk.rd.outcome(job.id))
        text = next((body[name] for name in ("message", "retry_hint", "hint", "warning") if body.get(name)), "Done.")
        return f"{text} {body.get('next', '')}".strip()


def _declares(ctx: Context) -> bool:
    """Tell whether this request's client takes tasks, which older protocols cannot carry."""
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities else None
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and IDENTIFIER in (declared or {})
