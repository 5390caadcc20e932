"""Defines the tools that write: call, submit, retry, triage of one job, and every task under its name.

No tool grants consent, approves, discards, purges or touches more than one job. The session is set when the server is
started, so that a model cannot use the consents of another session.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from pydantic import Field

from redrive.core.job import Lane, State
from redrive.core.payload import Blob, Signature
from redrive.deadletters.comebacks import hands_off
from redrive.deadletters.verbs import NOTE_LIMIT, TABLE, Reading, Verb
from redrive.doors.mcp.answers import AsGiven, Desk, as_task, describe_function, make_hints, refuse_errors, tool
from redrive.doors.mcp.tools import Id
from redrive.engine.registry import Handler
from redrive.errors import InvalidInput, JobNotReady

WAIT: Final = 30.0
"""Seconds that a call waits for its end; then it goes on. Clients give up on a tool after about a minute."""
MOMENT: Final = 1.0
"""Seconds that a call of a client with durable tasks waits: after that the client follows the task."""
LONGEST: Final = 600
MOST: Final = 100
"""How many tasks have a tool; `call` reaches all."""
BUILT_IN: Final = "redrive."
"""The beginning of the names of built-in tasks. Models may not call these: a delivery could send a secret anywhere."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
LONGEST_NAME: Final = 64
"""Characters of a tool's name that model providers accept."""

Method = Callable[..., Awaitable[dict[str, Any]]]
Params = Annotated[dict[str, Any], Field(description="The task's parameters, by name.")]
Wait = Annotated[
    float, Field(gt=0, le=LONGEST, description="Wait so many seconds for the end; after that it goes on by itself.")
]
Key = Annotated[
    str | None,
    Field(max_length=500, description="The same key and params again: the same operation, no second."),
]


Why = Annotated[str, Field(min_length=3, max_length=500, description="What was put right; kept on record.")]
WORDS: Final[dict[Reading, Any]] = {
    "name": Annotated[str, Field(min_length=1, max_length=200)],
    "text": Annotated[str, Field(min_length=1, max_length=NOTE_LIMIT)],
    "lane": Lane,
}
"""The types of the words of a verb that models may give."""
AGAIN: Final = "It is in the queue again, not done: a worker must take it, and it can fail again."


class WritingTools:
    """Holds a method for each tool that writes. A model reads the docstring of the method."""

    def __init__(self, desk: Desk, *, knows_tasks: bool) -> None:
        self._desk = desk
        self._rd = desk.rd
        self._knows_tasks = knows_tasks

    def tools(self) -> list[Tool]:
        triage = [self._triage(verb) for verb in TABLE if verb.tool]
        calls: list[Method] = [self.call, self.submit] if self._knows_tasks else []
        methods = [*calls, self.retry, *triage]
        return [tool(self._desk, method) for method in methods]

    def makers(self, task_tools: list[Tool]) -> set[str]:
        """Name the tools whose answer is an operation that may go on."""
        return {"call", "submit", "retry", *(tool.name for tool in task_tools)}

    def task_tools(self, taken: set[str]) -> list[Tool]:
        """Make a tool of every task, with its parameters."""
        if not self._knows_tasks:
            return []
        made, names = [], set(taken)
        for handler in list(self._tasks().values())[:MOST]:
            name = _free_name(handler.name, names)
            names.add(name)
            made.append(self._task_tool(handler, name))
        return made

    def _tasks(self) -> dict[str, Handler]:
        handlers = self._rd.registry.handlers
        return {name: handler for name, handler in handlers.items() if not name.startswith(BUILT_IN)}

    def _check_task(self, task: str) -> str:
        """Return a task's name, or refuse a name that no code has: no worker would run such a job."""
        if task in self._tasks():
            return task
        known = ", ".join(sorted(self._tasks())[:50]) or "none"
        raise InvalidInput(field="task", problem=f"{task!r} is not a task here; there are {known}")

    def _options(self, key: str | None = None) -> dict[str, Any]:
        options = {"session_id": self._desk.session, "idempotency_key": key}
        return {name: value for name, value in options.items() if value is not None}

    async def call(
        self, task: str, params: Params, timeout_seconds: Wait = WAIT, idempotency_key: Key = None
    ) -> dict[str, Any]:
        """Run a task now and be told honestly: `status: ok` is done. `queued_for_retry` is NOT done: the attempt
        failed and will be tried again, which can fail, too. `timeout` goes on: ask `operation`. `needs_consent` waits
        for a person."""
        outcome = await self._rd.call(
            self._check_task(task), params, timeout=_limit_wait(timeout_seconds), **self._options(idempotency_key)
        )
        return await self._desk.describe(outcome)

    async def submit(self, task: str, params: Params, idempotency_key: Key = None) -> dict[str, Any]:
        """Have a worker run a task later, in one attempt. Answers at once with an operation id; queued is NOT done."""
        return await self._desk.describe(
            await self._rd.submit(self._check_task(task), params, **self._options(idempotency_key))
        )

    async def retry(self, operation_id: Id, timeout_seconds: Wait = WAIT) -> dict[str, Any]:
        """Try an operation once more by its id alone, with what it was given the first time. What is done stays done,
        and effects that landed are not repeated."""
        await self._check_for_machines(operation_id)
        outcome = await self._rd.retry(operation_id, timeout=_limit_wait(timeout_seconds), who=self._desk.who)
        return await self._desk.describe(outcome)

    def _triage(self, verb: Verb) -> Callable[..., Awaitable[dict[str, Any]]]:
        """Make the method of a verb of triage on one job, from the table of verbs."""

        async def act(failure_id: str, **words: Any) -> dict[str, Any]:
            if verb.brings_back:
                await self._check_for_machines(failure_id)
            job = await self._rd.dead.do(verb.name, failure_id, who=self._desk.who, **words)
            status = "queued" if verb.brings_back else str(job.state)
            hint = AGAIN if verb.brings_back else verb.told
            return {"operation_id": job.id, "status": status, "hint": hint, "next": f"Ask `operation` {job.id}."}

        kinds = {"failure_id": Id, **{word.name: WORDS[word.reading] for word in verb.takes()}}
        if verb.why:
            kinds["why"] = Why
        act.__name__, act.__doc__ = str(verb.tool), verb.tool_says
        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, keyword, annotation=kind) for name, kind in kinds.items()]
        act.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        act.__annotations__ = kinds
        return act

    async def _check_for_machines(self, id: str) -> None:
        """Refuse a dead letter that only a person may bring back."""
        job = await self._rd.jobs.get(id)
        why = hands_off(job, await self._rd.jobs.effects(job.id)) if job.state is State.dead else None
        if why is not None:
            looks = f"A person must look, then run `redrive resolve {job.short_id}` or `redrive dead redrive`"
            raise JobNotReady(f"job {job.short_id} is not for tools to bring back: {why}. {looks}.", job_id=job.id)

    def _task_tool(self, handler: Handler, name: str) -> Tool:
        """Make the tool of a task, whose signature checks the arguments as it does for every caller."""

        async def run(params: Mapping[str, Any]) -> dict[str, Any]:
            outcome = await self._rd.call(handler.name, params, timeout=_limit_wait(WAIT), **self._options())
            return await self._desk.describe(outcome)

        return Tool(
            fn=refuse_errors(self._desk, run),
            name=name,
            title=handler.name,
            description=_describe_task(handler),
            parameters=schema_of(handler.signature),
            fn_metadata=AsGiven(arg_model=ArgModelBase),
            is_async=True,
            context_kwarg=None,
            annotations=make_hints(reads=handler.read_only, repeats=handler.idempotent),
            icons=None,
            meta=None,
        )


def _limit_wait(seconds: float) -> float:
    """Limit how long a call waits for its end if the client takes durable tasks."""
    return min(seconds, MOMENT) if as_task.get() else seconds


def _describe_task(handler: Handler) -> str:
    """Return the task's docstring, and what a model must know of every task."""
    text = describe_function(handler.function) or f"The task {handler.name}."
    asks = " A person must agree before it runs: it may answer needs_consent." if handler.consent else ""
    kept = "" if handler.read_only else " Only `status: ok` means done; queued_for_retry and timeout do not."
    return f"{text}{asks}{kept}"


def _free_name(task: str, taken: set[str]) -> str:
    """Return a tool's name for a task that providers accept, with a number if the name is taken."""
    plain = _NOT_IN_NAMES.sub("_", task)[: LONGEST_NAME - 5].strip("_") or "task"
    plain = f"task_{plain}" if plain in taken else plain
    endings = ("", *(f"_{number}" for number in range(2, 1000)))
    return next(name for end in endings if (name := f"{plain[: LONGEST_NAME - len(end)]}{end}") not in taken)


ANYTHING: Final[dict[str, Any]] = {}
_REFERENCES: Final = "#/$defs/{name}"


def schema_of(signature: Signature) -> dict[str, Any]:
    """Describe an object with a property for each parameter, closed unless the task takes any keyword."""
    parameters = signature.public(None).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    definitions: dict[str, Any] = {}
    properties = {parameter.name: _property(parameter, definitions) for parameter in named}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [parameter.name for parameter in named if parameter.default is inspect.Parameter.empty]
    schema |= {"required": required} if required else {}
    schema |= {"$defs": definitions} if definitions else {}
    return schema | {"additionalProperties": len(named) != len(parameters)}


def _property(parameter: inspect.Parameter, definitions: dict[str, Any]) -> dict[str, Any]:
    kind = parameter.annotation
    schema = ANYTHING if kind is inspect.Parameter.empty else _describe_type(kind, definitions)
    default = _default_json(parameter.default)
    return {**schema, **({"default": default} if default is not msgspec.UNSET else {})}


def _describe_type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Describe an annotation; an unknown one allows anything, because the task checks its input itself."""
    nested: dict[str, Any] = {}

    def hook(model: type) -> dict[str, Any]:
        describe = getattr(model, "model_json_schema", None)
        if model is Blob or not callable(describe):
            raise NotImplementedError
        schema: dict[str, Any] = describe(ref_template="#/$defs/{model}")
        nested.update(schema.pop("$defs", {}))
        return schema

    try:
        (schema,), components = msgspec.json.schema_components([kind], schema_hook=hook, ref_template=_REFERENCES)
    except (TypeError, NotImplementedError):
        return ANYTHING
    definitions.update(components | nested)
    return schema


def _default_json(default: Any) -> Any:
    """Return a default as JSON, or UNSET if JSON cannot express it."""
    if default is inspect.Parameter.empty:
        return msgspec.UNSET
    try:
        return msgspec.to_builtins(default)
    except TypeError:
        return msgspec.UNSET
