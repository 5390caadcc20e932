"""The role that a token needs for each tool and each method of MCP, and the refusal of one that lacks it.

The tools that read need `look`; all others need `act`, the tools of tasks included: a task runs code here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, CallToolResult, TextContent

from redrive.doors.mcp.sessions import calling

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from redrive.core.tokens import Role

METHODS: Final[dict[str, Role]] = {"tasks/update": "act", "tasks/cancel": "act"}
"""Every other method needs `look`, which whoever is let in may."""
HINT: Final = "Nothing was changed. Tell the person who gave you the token."


class Roles:
    """Stands before every request: refuses what the caller's role lacks, and lists only the tools that it has."""

    def __init__(self, reading: Collection[str]) -> None:
        self._reading = frozenset(reading)

    def needs(self, tool: str) -> Role:
        return "look" if tool in self._reading else "act"

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        caller = calling.get()
        if ctx.method == "tools/call":
            why = caller.lacks(self.needs(str((ctx.params or {}).get("name"))))
            return await call_next(ctx) if why is None else _refusal(why)
        if (why := caller.lacks(METHODS.get(ctx.method, "look"))) is not None:
            raise MCPError(code=INVALID_REQUEST, message=f"{why}. {HINT}")
        result = await call_next(ctx)
        return self._listed(result) if ctx.method == "tools/list" else result

    def _listed(self, result: HandlerResult) -> HandlerResult:
        """The answer is JSON here already. One of another form passes as it is: a call is refused in any case."""
        caller = calling.get()
        if not isinstance(result, dict) or not isinstance(tools := result.get("tools"), list):
            return result
        return {**result, "tools": [tool for tool in tools if caller.may(self.needs(tool["name"]))]}


def _refusal(why: str) -> CallToolResult:
    body = {"status": "refused", "error": f"{why[:1].upper()}{why[1:]}. {HINT}"}
    text = msgspec.json.encode(body).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=body, is_error=True)
