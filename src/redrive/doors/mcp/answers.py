"""Makes the tools and their answers, which say what is not done and what to do next."""

from __future__ import annotations

import functools
import types
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import msgspec
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from redrive.core.job import Job, Json, State, iso
from redrive.core.outcome import INLINE, Outcome, unknown_outcome
from redrive.core.tokens import compose_signature
from redrive.doors.mcp.sessions import current_caller
from redrive.doors.mcp.wording import NOTE, Wording, as_text, without_none
from redrive.errors import IllegalMove, InvalidInput, JobNotFound, RedriveError, StaleJob, StoreBusy, StoreError

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

P = ParamSpec("P")
MESSAGE: Final = 600
as_task: Final[ContextVar[bool]] = ContextVar("redrive_mcp_as_task", default=False)
"""Whether the client takes durable tasks, so that a call waits only a moment."""
IDS: Final = "Ids stand in the answers of `failures`, `morning`, `status` and of every call."


class Desk:
    """Holds what the tools share: the app, the wording and the session."""

    def __init__(
        self, rd: Redrive, wording: Wording, *, writes: bool, session: str | Callable[[], str] | None = None
    ) -> None:
        self.rd = rd
        self.wording = wording
        self._writes = writes
        self._session = session

    @property
    def session(self) -> str | None:
        """The session of the request that is being answered."""
        return self._session() if callable(self._session) else self._session

    @property
    def writes(self) -> bool:
        """Whether the caller of this request has the tools that write."""
        return self._writes and current_caller.get().may("act")

    @property
    def who(self) -> str:
        """Who moves a job, for its timeline: the name of the token, if it has one, and the session."""
        return compose_signature(current_caller.get().name, f"mcp, session {self.session}" if self.session else "mcp")

    def require_session(self) -> str:
        """Return the session, or raise InvalidInput if there is none."""
        if (session := self.session) is None:
            raise InvalidInput(field="session", problem="this server has none; a person starts it with --session NAME")
        return session

    # -- how an operation stands

    async def describe(self, outcome: Outcome) -> dict[str, Any]:
        """Describe an outcome for a model: its fields, texts from outside apart from ours, and what to do next."""
        if outcome.operation_id is None:
            return self._describe_unstored(outcome)
        try:
            return await self._describe_stored(outcome, await self.rd.jobs.get(outcome.operation_id))
        except (StoreError, OSError) as error:  # what was called is not called again for that
            unknown = unknown_outcome(outcome.operation_id, error)
            return self._plain(unknown) | {"next": ask_later_step(outcome.operation_id)}

    async def _describe_stored(self, outcome: Outcome, job: Job) -> dict[str, Any]:
        body = self._plain(outcome, outside_advice(job))
        if outcome.status == "ok":
            body |= await self.result(job)
        return body | without_none({"next": next_step(outcome, job, writes=self.writes)})

    def _plain(self, outcome: Outcome, advice: str | None = None) -> dict[str, Any]:
        """Return the fields of an outcome, with texts from outside in separate fields instead of our sentences."""
        body = outcome.public()
        error = body.pop("error", None)
        for name in ("message", "retry_hint", "hint", "warning"):
            if name in body:
                text = body[name].replace("see error", "see untrusted_error")
                text = replace_words(text, (error, "see untrusted_error"), (advice, "see untrusted_advice"))
                body[name] = self.wording.line(text, MESSAGE)
        if "error_kind" in body:
            body["error_kind"] = self.wording.line(body["error_kind"], 100)
        body |= {"untrusted_error": self.wording.quote(error)} if error else {}
        return body | ({"untrusted_advice": self.wording.quote(advice)} if advice else {})

    def _describe_unstored(self, outcome: Outcome) -> dict[str, Any]:
        """Describe the outcome of a read-only task, of which nothing is stored that could be asked for later."""
        body = self._plain(outcome)
        if outcome.status != "ok":
            return body | {"next": "Nothing was changed. Correct the parameters, or call it again later."}
        if not outcome.truncated:
            return body | {"result": self.wording.mask_value(outcome.result)}
        text = self.wording.mask_cut_json(str(outcome.result)[:INLINE])
        return body | {"result": text, "next": "The rest was not kept: call it again for less at once."}

    async def result(self, job: Job, offset: int = 0) -> dict[str, Any]:
        """Read a result from an offset on, as far as it fits. It is masked before it is cut."""
        stored = await self.rd.jobs.result_json(job)
        value = self.wording.mask_value(msgspec.json.decode(stored)) if stored else None
        text = as_text(value)
        if not offset and len(msgspec.json.encode(value)) <= INLINE:
            return {"result": value}
        end = offset + INLINE
        body: dict[str, Any] = {"result": text[offset:end], "truncated": True, "characters": len(text)}
        if end < len(text):
            body["next_offset"] = end
        return body


def outside_advice(job: Job) -> str | None:
    """Return a recommendation that the task or an imported record gave, and not redrive."""
    if job.state is not State.dead or job.recommendation is None:
        return None
    given = job.history[-1].failure.recommendation if job.history and job.history[-1].failure else None
    return job.recommendation if given or job.because == "imported" else None


def replace_words(text: str, *parts: tuple[str | None, str]) -> str:
    """Replace words from outside in a sentence."""
    for part, instead in parts:
        text = text.replace(part, instead) if part else text
    return text


def next_step(outcome: Outcome, job: Job, *, writes: bool) -> str | None:
    """Say in one or two sentences what to do, and what not to do."""
    id, now = job.id, f" `retry` {job.id} tries it at once." if writes else ""
    notice = " `inbox` has a notice when it ends." if job.session_id else ""
    match outcome.status:
        case "ok":
            return "It is longer than one answer: `operation` with offset reads on." if outcome.truncated else None
        case "queued_for_retry":
            return (
                f"Do not report success, do not call it again. Ask `operation` {id} after {iso(job.run_at)}: a worker "
                f"tries it then.{notice}{now}"
            )
        case "queued":
            return f"Not started. Ask `operation` {id} later: a worker runs it.{notice}{now}"
        case "timeout":
            return f"It goes on. {ask_later_step(id)}{notice}"
        case "failed" if job.comes_back_at is not None:
            return (
                f"Nothing: it is tried again by itself at {iso(job.comes_back_at)}. Do not call it again, nor do the "
                f"same in another way: it could happen twice.{notice}"
            )
        case "failed" if job.state is State.dead:
            return f"Do not call it again as it is. `explain_failure` {id} says why and what would help."
        case "failed":
            return "It was cancelled and will not run."
        case "needs_consent":
            return ask_person_step(job)
        case _:
            return held_step(job)


def ask_later_step(id: str) -> str:
    return f"Ask `operation` {id} in a while, do not call it again."


def ask_person_step(job: Job) -> str:
    return (
        f"A person must decide, in a terminal: `redrive approve {job.short_id}` or `redrive reject {job.short_id}`. "
        f"No tool can. Tell them, then ask `operation` {job.id}."
    )


def held_step(job: Job) -> str:
    if job.because == "approval":
        return ask_person_step(job)
    if job.because == "outcome_unknown":
        return (
            f"It is not known whether it landed. A person must verify that, then `redrive resolve {job.short_id}"
            f" --landed` or `--not-landed`. Do not call it again: it could happen twice."
        )
    return f"It comes back by itself when what it waits for is there. Ask `operation` {job.id} later."


# -- tools

Answered = Callable[P, Awaitable[CallToolResult]]


def tool(desk: Desk, function: Callable[..., Awaitable[dict[str, Any]]], **hints: bool) -> Tool:
    """Make a tool of a method: its docstring is the description, its annotations are the only arguments."""
    made = Tool.from_function(
        function, annotations=make_hints(**hints), structured_output=False, description=describe_function(function)
    )
    kind, judged = made.fn_metadata.arg_model, made.fn_metadata
    strict: type[ArgModelBase] = types.new_class(kind.__name__, (kind,), {"extra": "forbid"})
    judged.arg_model = strict

    async def run(params: Mapping[str, Any]) -> dict[str, Any]:
        return await function(**_arguments(judged, params))

    made.fn, made.fn_metadata = refuse_errors(desk, run), AsGiven(arg_model=ArgModelBase)
    made.parameters = strict.model_json_schema(by_alias=True)
    return made


class AsGiven(FuncMetadata):
    """Passes arguments to the function as they came, so that wrong ones are refused like any other input."""

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        return {"params": arguments_to_validate}


def _arguments(judged: FuncMetadata, params: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arguments of a call. A refusal names the argument without its value, which may be a secret."""
    try:
        return judged.validate_arguments(dict(params))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        first, *more = [(".".join(map(str, entry["loc"])), entry["msg"]) for entry in wrong]
        problem = "; ".join((first[1], *(f"{name}: {problem}" for name, problem in more)))
        raise InvalidInput(field=first[0], problem=problem) from None


def describe_function(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").split())


def make_hints(*, reads: bool = False, repeats: bool = False) -> ToolAnnotations:
    """Return the hints that a client may show before it lets a model call the tool."""
    return ToolAnnotations(
        read_only_hint=reads, destructive_hint=not reads, idempotent_hint=repeats or reads, open_world_hint=not reads
    )


def refuse_errors(desk: Desk, function: Callable[P, Awaitable[dict[str, Any]]]) -> Answered[P]:
    """Answer errors of redrive as refusals. Any other error is a defect, whose text the model does not get."""

    @functools.wraps(function)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        try:
            return answer(await function(*args, **kwargs))
        except (RedriveError, OSError) as error:
            raise ToolError(refusal(error, desk.wording)) from error

    return answered


def refusal(error: RedriveError | OSError, wording: Wording) -> str:
    """Say what was wrong and what to do. An OSError without a file is a defect and is raised again."""
    if isinstance(error, OSError) and error.filename is None:
        raise error
    text = wording.line(f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error, MESSAGE)
    step = next((step for kind, step in _STEPS if isinstance(error, kind)), None)
    notes = [wording.line(note, MESSAGE) for note in getattr(error, "__notes__", ())]
    return " ".join((f"{text.removesuffix('.')}. {step}" if step else text, *notes))


_STEPS: Final = (
    (JobNotFound, IDS),
    (InvalidInput, "Nothing was changed: correct it and call again."),
    ((IllegalMove, StaleJob), "Nothing was changed: ask `operation` how it stands."),
    (StoreBusy, "Nothing was changed: call again in a while."),
    (OSError, "A person must look at the path, its permissions and the space on the disk."),
)


def answer(body: dict[str, Any]) -> CallToolResult:
    """Make the answer of a tool: compact JSON for models and programs. Only failures and refusals are errors."""
    noted: dict[str, Json] = body | ({"note": NOTE} if _has_untrusted(body) else {})
    text = msgspec.json.encode(noted).decode()
    failed = body.get("status") in ("failed", "refused")
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=msgspec.json.decode(text), is_error=failed
    )


def _has_untrusted(value: Json) -> bool:
    if isinstance(value, dict):
        return any(name.startswith("untrusted") or _has_untrusted(item) for name, item in value.items())
    return isinstance(value, list) and any(_has_untrusted(item) for item in value)
