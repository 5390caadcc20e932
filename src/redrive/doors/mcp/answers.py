"""Answers: one shape for every tool, honest about what is not done, with the next step in words."""

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
from redrive.core.tokens import signed
from redrive.doors.mcp.sessions import calling
from redrive.doors.mcp.wording import NOTE, Wording, as_text, without_none
from redrive.errors import IllegalMove, InvalidInput, JobNotFound, RedriveError, StaleJob, StoreBusy, StoreError
from redrive.jobs.wait_for_job import read_result

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

P = ParamSpec("P")
MESSAGE: Final = 600
as_task: Final[ContextVar[bool]] = ContextVar("redrive_mcp_as_task", default=False)
"""The client takes a durable task for what goes on, so nothing is waited for longer than a moment."""
IDS: Final = "Ids stand in the answers of `failures`, `morning`, `status` and of every call."


class Desk:
    """What the tools share: the app, the wording, and whose session this is."""

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
        return self._writes and calling.get().may("act")

    @property
    def who(self) -> str:
        """For the record of whatever is moved: the name of the token, where it has one, and the session."""
        return signed(calling.get().name, f"mcp, session {self.session}" if self.session else "mcp")

    def own_session(self) -> str:
        """The session, or a refusal where there is none: its inbox and tasks are nobody else's."""
        if (session := self.session) is None:
            raise InvalidInput(field="session", problem="this server has none; a person starts it with --session NAME")
        return session

    # -- how an operation stands

    async def told(self, outcome: Outcome) -> dict[str, Any]:
        """An outcome for a model: the same fields, what is from outside apart, and what to do next."""
        if outcome.operation_id is None:
            return self._unkept(outcome)
        try:
            return await self._kept(outcome, await self.rd.jobs.get(outcome.operation_id))
        except (StoreError, OSError) as error:  # what was called is not called again for that
            unknown = unknown_outcome(outcome.operation_id, error)
            return self._plain(unknown) | {"next": asks_later(outcome.operation_id)}

    async def _kept(self, outcome: Outcome, job: Job) -> dict[str, Any]:
        body = self._plain(outcome, advice_from_outside(job))
        if outcome.status == "ok":
            body |= await self.result(job)
        return body | without_none({"next": next_step(outcome, job, writes=self.writes)})

    def _plain(self, outcome: Outcome, advice: str | None = None) -> dict[str, Any]:
        """Our sentences without the outside's words in them; those stand apart."""
        body = outcome.public()
        error = body.pop("error", None)
        for name in ("message", "retry_hint", "hint", "warning"):
            if name in body:
                own = body[name].replace("see error", "see untrusted_error")
                said = without_words(own, (error, "see untrusted_error"), (advice, "see untrusted_advice"))
                body[name] = self.wording.line(said, MESSAGE)
        if "error_kind" in body:
            body["error_kind"] = self.wording.line(body["error_kind"], 100)
        body |= {"untrusted_error": self.wording.quoted(error)} if error else {}
        return body | ({"untrusted_advice": self.wording.quoted(advice)} if advice else {})

    def _unkept(self, outcome: Outcome) -> dict[str, Any]:
        """Of a read-only task: nothing of it is stored, so there is nothing to ask for later."""
        body = self._plain(outcome)
        if outcome.status != "ok":
            return body | {"next": "Nothing was changed. Correct the parameters, or call it again later."}
        if not outcome.truncated:
            return body | {"result": self.wording.value(outcome.result)}
        text = self.wording.cut_value(str(outcome.result)[:INLINE])
        return body | {"result": text, "next": "The rest was not kept: call it again for less at once."}

    async def result(self, job: Job, offset: int = 0) -> dict[str, Any]:
        """A result from there on, as far as it fits; masked before it is cut."""
        stored = await read_result(self.rd.store, job)
        value = self.wording.value(msgspec.json.decode(stored)) if stored else None
        text = as_text(value)
        if not offset and len(msgspec.json.encode(value)) <= INLINE:
            return {"result": value}
        end = offset + INLINE
        body: dict[str, Any] = {"result": text[offset:end], "truncated": True, "characters": len(text)}
        if end < len(text):
            body["next_offset"] = end
        return body


def advice_from_outside(job: Job) -> str | None:
    """A recommendation that is not ours: the task's own, or that of an imported record."""
    if job.state is not State.dead or job.recommendation is None:
        return None
    said = job.history[-1].failure.recommendation if job.history and job.history[-1].failure else None
    return job.recommendation if said or job.because == "imported" else None


def without_words(text: str, *parts: tuple[str | None, str]) -> str:
    """A sentence of ours without the outside's words in it."""
    for part, instead in parts:
        text = text.replace(part, instead) if part else text
    return text


def next_step(outcome: Outcome, job: Job, *, writes: bool) -> str | None:
    """One sentence or two: what to do, and what not to do."""
    id, now = job.id, f" `retry` {job.id} tries it at once." if writes else ""
    told = " `inbox` tells its end." if job.session_id else ""
    match outcome.status:
        case "ok":
            return "It is longer than one answer: `operation` with offset reads on." if outcome.truncated else None
        case "queued_for_retry":
            return (
                f"Do not report success, do not call it again. Ask `operation` {id} after {iso(job.run_at)}: a worker "
                f"tries it then.{told}{now}"
            )
        case "queued":
            return f"Not started. Ask `operation` {id} later: a worker runs it.{told}{now}"
        case "timeout":
            return f"It goes on. {asks_later(id)}{told}"
        case "failed" if job.comes_back_at is not None:
            return (
                f"Nothing: it is tried again by itself at {iso(job.comes_back_at)}. Do not call it again, nor do the "
                f"same in another way: it could happen twice.{told}"
            )
        case "failed" if job.state is State.dead:
            return f"Do not call it again as it is. `explain_failure` {id} says why and what would help."
        case "failed":
            return "It was cancelled and will not run."
        case "needs_consent":
            return asks_a_person(job)
        case _:
            return held_step(job)


def asks_later(id: str) -> str:
    return f"Ask `operation` {id} in a while, do not call it again."


def asks_a_person(job: Job) -> str:
    return (
        f"A person must decide, in a terminal: `redrive approve {job.short_id}` or `redrive reject {job.short_id}`. "
        f"No tool can. Tell them, then ask `operation` {job.id}."
    )


def held_step(job: Job) -> str:
    if job.because == "approval":
        return asks_a_person(job)
    if job.because == "outcome_unknown":
        return (
            f"It is not known whether it landed. A person must verify that, then `redrive resolve {job.short_id}"
            f" --landed` or `--not-landed`. Do not call it again: it could happen twice."
        )
    return f"It comes back by itself when what it waits for is there. Ask `operation` {job.id} later."


# -- tools

Answered = Callable[P, Awaitable[CallToolResult]]


def tool(desk: Desk, function: Callable[..., Awaitable[dict[str, Any]]], **hints: bool) -> Tool:
    """A method as a tool: its docstring tells what it does, its annotations what it takes, and no more is taken."""
    made = Tool.from_function(
        function, annotations=hints_for(**hints), structured_output=False, description=described(function)
    )
    kind, judged = made.fn_metadata.arg_model, made.fn_metadata
    strict: type[ArgModelBase] = types.new_class(kind.__name__, (kind,), {"extra": "forbid"})
    judged.arg_model = strict

    async def run(params: Mapping[str, Any]) -> dict[str, Any]:
        return await function(**_arguments(judged, params))

    made.fn, made.fn_metadata = answering(desk, run), AsGiven(arg_model=ArgModelBase)
    made.parameters = strict.model_json_schema(by_alias=True)
    return made


class AsGiven(FuncMetadata):
    """Arguments go to the function as they came, so that what is wrong with them is refused as everything is."""

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        return {"params": arguments_to_validate}


def _arguments(judged: FuncMetadata, params: Mapping[str, Any]) -> dict[str, Any]:
    """What the function is called with. Refused by name and reason, without the values: they may be secrets."""
    try:
        return judged.validate_arguments(dict(params))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        first, *more = [(".".join(map(str, one["loc"])), one["msg"]) for one in wrong]
        problem = "; ".join((first[1], *(f"{name}: {said}" for name, said in more)))
        raise InvalidInput(field=first[0], problem=problem) from None


def described(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").split())


def hints_for(*, reads: bool = False, repeats: bool = False) -> ToolAnnotations:
    """What a client may tell its user before it lets a model go on."""
    return ToolAnnotations(
        read_only_hint=reads, destructive_hint=not reads, idempotent_hint=repeats or reads, open_world_hint=not reads
    )


def answering(desk: Desk, function: Callable[P, Awaitable[dict[str, Any]]]) -> Answered[P]:
    """What the app refuses is told to the model; anything else is a defect, whose text stays here."""

    @functools.wraps(function)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        try:
            return answer(await function(*args, **kwargs))
        except (RedriveError, OSError) as error:
            raise ToolError(refusal(error, desk.wording)) from error

    return answered


def refusal(error: RedriveError | OSError, wording: Wording) -> str:
    """What was wrong, what it means, and what to do. A file that cannot be used is told; any other OSError is ours."""
    if isinstance(error, OSError) and error.filename is None:
        raise error
    said = wording.line(f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error, MESSAGE)
    step = next((step for kind, step in _STEPS if isinstance(error, kind)), None)
    noted = [wording.line(note, MESSAGE) for note in getattr(error, "__notes__", ())]
    return " ".join((f"{said.removesuffix('.')}. {step}" if step else said, *noted))


_STEPS: Final = (
    (JobNotFound, IDS),
    (InvalidInput, "Nothing was changed: correct it and call again."),
    ((IllegalMove, StaleJob), "Nothing was changed: ask `operation` how it stands."),
    (StoreBusy, "Nothing was changed: call again in a while."),
    (OSError, "A person must look at the path, its permissions and the space on the disk."),
)


def answer(body: dict[str, Any]) -> CallToolResult:
    """Compact JSON for a model, the same for a program. Only what failed is an error to the protocol."""
    whole: dict[str, Json] = body | ({"note": NOTE} if _from_outside(body) else {})
    text = msgspec.json.encode(whole).decode()
    failed = body.get("status") == "failed"
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=msgspec.json.decode(text), is_error=failed
    )


def _from_outside(found: Json) -> bool:
    if isinstance(found, dict):
        return any(name.startswith("untrusted") or _from_outside(item) for name, item in found.items())
    return isinstance(found, list) and any(_from_outside(item) for item in found)
