"""Refuses tools and methods of MCP to tokens without the role for them.

The tools that read need `look`; all others need `act`, the tools of tasks included: a task runs code here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST

from redrive.doors.mcp.answers import answer
from redrive.doors.mcp.sessions import current_caller

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from redrive.core.tokens import Role

METHODS: Final[dict[str, Role]] = {"tasks/update": "act", "tasks/cancel": "act"}
"""The roles that methods need. Every other method needs `look`, which every token has."""
HINT: Final = "Nothing was changed. Tell the person who gave you the token."


class Roles:
    """Refuses requests for which the caller's role is not enough, and lists only the tools that the role has."""

    def __init__(self, reading: Collection[str]) -> None:
        self._reading = frozenset(reading)

    def needs(self, tool: str) -> Role:
        return "look" if tool in self._reading else "act"

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        caller = current_caller.get()
        if ctx.method == "tools/call":
            why = caller.lacks(self.needs(str((ctx.params or {}).get("name"))))
            if why is None:
                return await call_next(ctx)
            return answer({"status": "refused", "error": f"{why[:1].upper()}{why[1:]}. {HINT}"})
        if (why := caller.lacks(METHODS.get(ctx.method, "look"))) is not None:
            raise MCPError(code=INVALID_REQUEST, message=f"{why}. {HINT}")
        result = await call_next(ctx)
        return self._keep_allowed(result) if ctx.method == "tools/list" else result

    def _keep_allowed(self, result: HandlerResult) -> HandlerResult:
        """Remove the tools that the caller may not call. A result that is not JSON passes: calls are refused anyway."""
        caller = current_caller.get()
        if not isinstance(result, dict) or not isinstance(tools := result.get("tools"), list):
            return result
        return {**result, "tools": [tool for tool in tools if caller.may(self.needs(tool["name"]))]}
