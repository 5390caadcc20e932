"""A client that declares `io.modelcontextprotocol/tasks`, made of the SDK's own parts."""

from typing import Any, Literal

import mcp
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

IDENTIFIER = "io.modelcontextprotocol/tasks"


class Created(Result):
    """A call that became a task."""

    result_type: Literal["task"]
    task_id: str
    status: str
    status_message: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int


class Detailed(Result):
    """A task as tasks/get tells it, field by field as it came."""

    model_config = ConfigDict(extra="allow", alias_generator=None)

    @property
    def body(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, str]):
    name_param = "taskId"


class Tasks(ClientExtension):
    """Takes tasks. Calls go through `started`, which wants the handle itself."""

    identifier = IDENTIFIER

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=_never)]


async def _never(created: Created, context: ClaimContext) -> CallToolResult:
    raise AssertionError(f"nobody resolves {created.task_id} here")


async def started(client: mcp.Client, tool: str, **arguments: Any) -> Created:
    """A call whose answer is a task."""
    found = await client.session.call_tool(tool, arguments, allow_claimed=True)  # type: ignore[call-overload]
    assert isinstance(found, Created), found
    return found


async def asked(client: mcp.Client, method: str, task_id: str, **said: Any) -> dict[str, Any]:
    """What a method of the extension answers."""
    request = TaskRequest(method=f"tasks/{method}", params=TaskParams(task_id=task_id, **said))
    return (await client.session.send_request(request, Detailed)).body
