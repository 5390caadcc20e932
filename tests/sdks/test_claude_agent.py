"""The Claude Agent SDK: what it raises, built by its own classes and by its own client."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import claude_agent_sdk as claude
import pytest
from claude_agent_sdk import _errors as errors

from tests.sdks.judging import cause_of, detail_of, raised_in


def ended(message: str = "m", **data: Any) -> BaseException:
    return errors.ResultError(message, {"type": "result", "is_error": True, **data}, 1)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.CLIConnectionError("Failed to start Claude Code"), "network"),
        (errors.CLINotFoundError(cli_path="/nowhere/claude"), "dependency_gone"),
        (errors.CLIJSONDecodeError("{broken", ValueError("m")), "network"),
        (errors.MessageParseError("Unknown message type: x", {"type": "x"}), "server_error"),
        (ended(subtype="error_max_turns"), "token_budget"),
        (ended(subtype="error_max_budget_usd"), "token_budget"),
        (ended(subtype="success", api_error_status=429, terminal_reason="api_error"), "rate_limited"),
        (ended(subtype="success", api_error_status=529, terminal_reason="api_error"), "provider_overloaded"),
        (ended(subtype="success", api_error_status=500, terminal_reason="api_error"), "server_error"),
        (ended("API Error: Overloaded", subtype="success", api_error_status=400), "provider_overloaded"),
        (ended(subtype="success", api_error_status=401), "credentials"),
        (ended("API Error: 400 prompt is too long: 210000 tokens > 200000 maximum", api_error_status=400),
         "context_overflow"),
    ],
)  # fmt: skip
def test_claude_agent(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


@pytest.mark.behaviour("R-5e")
@pytest.mark.parametrize("said", ["Session 6f1c-9a is currently running", "Session ID 6f1c-9a is already in use."])
def test_a_session_that_is_running_elsewhere_is_contention(said: str) -> None:
    assert detail_of(ended(f"Claude Code returned an error result: {said}", errors=[said])) == "contention"
    assert detail_of(errors.ProcessError("Command failed", exit_code=1, stderr=f"Error: {said}")) == "contention"


async def answers(options: claude.ClaudeAgentOptions) -> None:
    async for _ in claude.query(prompt="hello", options=options):
        pass


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    options = claude.ClaudeAgentOptions(cli_path=tmp_path / "nothing", cwd=tmp_path)
    assert detail_of(await raised_in(answers(options))) == "dependency_gone"


@pytest.mark.behaviour("R-5e")
async def test_what_the_program_says_at_its_end_is_read(tmp_path: Path) -> None:
    """A program in the place of the real one, which answers the SDK's own client as that does for a busy session."""
    program = tmp_path / "claude"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    error = await raised_in(answers(claude.ClaudeAgentOptions(cli_path=program, cwd=tmp_path)))
    assert isinstance(error, errors.ProcessError)
    cause = cause_of(error)
    assert (cause.detail, cause.rule) == ("contention", "sqlstate")


PROGRAM = """
import json, sys
if "-v" in sys.argv or "--version" in sys.argv:
    print("99.0.0 (Claude Code)")
    sys.exit()
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("type") == "control_request":
        body = {"subtype": "success", "request_id": asked["request_id"], "response": {}}
        print(json.dumps({"type": "control_response", "response": body}), flush=True)
    elif asked.get("type") == "user":
        break
said = "Session 6f1c-9a is currently running"
print(json.dumps({"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": [said],
                  "duration_ms": 1, "duration_api_ms": 1, "num_turns": 0, "session_id": "6f1c-9a"}), flush=True)
sys.exit(1)
"""
