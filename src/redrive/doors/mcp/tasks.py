"""The extension `io.modelcontextprotocol/tasks`: a job that goes on is a durable task with the job's id.

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
    """Names a task."""

    task_id: str = Field(min_length=1, max_length=100)


class UpdateParams(TaskParams):
    """Answers to what a task asked."""

    input_responses: dict[str, Any]


def status_of(job: Job) -> Status:
    """Maps a job's state to a task's. What ends by itself is working, also while the job is parked or dead."""
    if job.state is State.held:
        return "input_required" if job.because in FOR_A_PERSON else "working"
    if job.state is State.done or (job.state is State.dead and not comes_back(job)):
        return "completed"
    return "cancelled" if job.state in (State.discarded, State.purged) else "working"


def poll_after(job: Job, now: float) -> int:
    """Suggests in how many milliseconds to look again: not before the job is due."""
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
            MethodBinding("tasks/get", TaskParams, self._answering(self._get), modern),
            MethodBinding("tasks/update", UpdateParams, self._answering(self._update), modern),
            MethodBinding("tasks/cancel", TaskParams, self._answering(self._cancel), modern),
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
        """Finds the job behind an answer that is not its end; None where the answer stands as it is."""
        if not isinstance(result, CallToolResult) or not (body := result.structured_content):
            return None
        comes_again = body.get("retry_at") is not None
        if (body.get("status") in ("ok", "failed") and not comes_again) or not (id := body.get("operation_id")):
            return None
        try:
            (job,) = await self._desk.rd.store.get([id])
        except (RedriveError, OSError, ValueError):
            return None  # the plain answer names the operation, and says that the store does not answer
        return job if self._is_own(job) and status_of(job) != "completed" else None

    # -- the methods

    def _answering(
        self, method: Callable[[Job, Any], Awaitable[dict[str, Any]]]
    ) -> Callable[[Context, Any], Awaitable[dict[str, Any]]]:
        """Asks for the client's declaration, finds the job, and tells what the app refuses as a protocol error."""

        async def answered(ctx: Context, params: TaskParams) -> dict[str, Any]:
            require_client_extension(ctx, IDENTIFIER)
            try:
                return await method(await self._own(params.task_id), params)
            except (RedriveError, OSError) as error:
                raise MCPError(code=INTERNAL_ERROR, message=refusal(error, self._desk.wording)) from error

        return answered

    async def _own(self, task_id: str) -> Job:
        """Reads the job of a task of this session. One of another session is answered like one that is not there."""
        found = await self._desk.rd.store.get([task_id])
        if not found or not self._is_own(found[0]):
            raise MCPError(code=INVALID_PARAMS, message="Task not found: this session has no task with this id")
        return found[0]

    def _is_own(self, job: Job) -> bool:
        """Whether it is of this session. Processes on stdio that were given no name share theirs: a restart is another
        session, and only its starter knows the id."""
        session, owner = self._desk.session, job.session_id
        return owner == session or all((name or "").startswith(ON_STDIO) for name in (owner, session))

    async def _get(self, job: Job, _: TaskParams) -> dict[str, Any]:
        body = await self._task(job)
        if body["status"] == "input_required":
            body["inputRequests"] = {}  # only a person answers, in a terminal: statusMessage says how
        if body["status"] == "completed":
            told = answer(await self._desk.told(await self._desk.rd.outcome(job.id)))
            body["result"] = told.model_dump(by_alias=True, mode="json", exclude_none=True)
        return body

    async def _update(self, job: Job, _: TaskParams) -> dict[str, Any]:
        """Acknowledges. No task asks the client for anything, so there is no answer that counts: a client that speaks
        for a model cannot approve what a person must."""
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
            "statusMessage": await self._words(job),
            "createdAt": iso(job.created_at),
            "lastUpdatedAt": iso(job.updated_at),
            "ttlMs": None,
            "pollIntervalMs": poll_after(job, self._desk.rd.clock.now()),
        }

    async def _words(self, job: Job) -> str:
        """Says how it stands and what to do, in the words of the plain tools."""
        told = await self._desk.told(await self._desk.rd.outcome(job.id))
        said = next((told[name] for name in ("message", "retry_hint", "hint", "warning") if told.get(name)), "Done.")
        return f"{said} {told.get('next', '')}".strip()


def _declares(ctx: Context) -> bool:
    """Whether this request's client takes tasks. An older protocol cannot carry one."""
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities else None
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and IDENTIFIER in (declared or {})
