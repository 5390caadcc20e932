"""From a provider's failure to a done job: real SDK clients in tasks, a provider that reads what it is sent.

The SDKs' own retries are off, so that every request is an attempt of redrive's. Time is a fake clock.
"""

from __future__ import annotations

import inspect
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from email.utils import formatdate
from functools import cached_property
from pathlib import Path
from typing import Any

import anthropic
import apsw
import openai
import pydantic
import pytest

import redrive
from redrive.core.agents import Model
from redrive.core.job import Attempt, Job, State
from tests.sdks.provider import OK, Answer, Provider, Request, breaks_off, ends, fails, says, trails_off, when, window
from tests.support import FakeClock, soon

Messages = list[dict[str, Any]]
Ask = Callable[["Clients", Messages, str, int], Any]
TLS = ssl.create_default_context()
"""Not used, but each client would read all certificates for one of its own."""


# ---- the clients, and a task for each way to call them


class Clients:
    """Real clients without retries of their own, made when they are first asked for."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack
        self._options: dict[str, Any] = {"api_key": "k", "max_retries": 0, "timeout": 20.0}

    @cached_property
    def anthropic(self) -> anthropic.AsyncAnthropic:
        http = anthropic.DefaultAsyncHttpxClient(verify=TLS)
        client = anthropic.AsyncAnthropic(base_url=self.url, http_client=http, **self._options)
        self._stack.push_async_callback(client.close)
        return client

    @cached_property
    def anthropic_sync(self) -> anthropic.Anthropic:
        http = anthropic.DefaultHttpxClient(verify=TLS)
        client = anthropic.Anthropic(base_url=self.url, http_client=http, **self._options)
        self._stack.callback(client.close)
        return client

    @cached_property
    def openai(self) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(verify=TLS)
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", http_client=http, **self._options)
        self._stack.push_async_callback(client.close)
        return client

    @cached_property
    def openai_sync(self) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(verify=TLS)
        client = openai.OpenAI(base_url=f"{self.url}/v1", http_client=http, **self._options)
        self._stack.callback(client.close)
        return client


async def anthropic_plain(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    return await clients.anthropic.messages.create(model=model, max_tokens=limit, messages=messages)


async def anthropic_stream(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    async with clients.anthropic.messages.stream(model=model, max_tokens=limit, messages=messages) as stream:
        return await stream.get_final_message()


def anthropic_sync(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    return clients.anthropic_sync.messages.create(model=model, max_tokens=limit, messages=messages)


async def chat_plain(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    return await clients.openai.chat.completions.create(model=model, max_tokens=limit, messages=messages)


async def chat_stream(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    usage: Any = {"include_usage": True}
    made = clients.openai.chat.completions.stream(
        model=model, max_tokens=limit, messages=messages, stream_options=usage
    )
    async with made as stream:
        return await stream.get_final_completion()


def chat_sync(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    return clients.openai_sync.chat.completions.create(model=model, max_tokens=limit, messages=messages)


async def responses_plain(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    return await clients.openai.responses.create(model=model, max_output_tokens=limit, input=messages)


async def responses_stream(clients: Clients, messages: Any, model: str, limit: int) -> Any:
    stream = await clients.openai.responses.create(model=model, max_output_tokens=limit, input=messages, stream=True)
    last: Any = None
    async for event in stream:
        last = event
    return last.response


PLAIN: list[Ask] = [anthropic_plain, anthropic_sync, chat_plain, chat_sync, responses_plain]
STREAMED: list[Ask] = [anthropic_stream, chat_stream, responses_stream]
ASYNC: list[Ask] = [anthropic_plain, chat_plain, responses_plain]


def voices(asks: list[Ask]) -> Any:
    return pytest.mark.parametrize("ask", asks, ids=lambda ask: ask.__name__)


def text_of(reply: Any) -> str:
    if hasattr(reply, "output_text"):
        return str(reply.output_text)
    return str(reply.content[0].text if hasattr(reply, "stop_reason") else reply.choices[0].message.content)


def spent(reply: Any) -> dict[str, int]:
    """What the provider says that it counted."""
    usage = reply.usage
    if usage is None:
        return {}
    read = getattr(usage, "input_tokens", None) or getattr(usage, "prompt_tokens", 0)
    written = getattr(usage, "output_tokens", None) or getattr(usage, "completion_tokens", 0)
    return {"input_tokens": read, "output_tokens": written}


def register(
    rd: redrive.Redrive, clients: Clients, ask: Ask, read: Callable[[Any], Any] = lambda reply: reply, **options: Any
) -> Any:
    """A task that asks the provider and reports what it was charged; sync where the client is."""
    if inspect.iscoroutinefunction(ask):

        @rd.task("answer", **options)
        async def answer(ctx: redrive.Context, messages: Messages, model: str = "small", max_tokens: int = 50) -> Any:
            reply = await ask(clients, messages, model, max_tokens)
            ctx.usage(**spent(reply))
            return read(reply)

        return answer

    @rd.task("answer", **options)
    def answer_in_a_thread(
        ctx: redrive.BlockingContext, messages: Messages, model: str = "small", max_tokens: int = 50
    ) -> Any:
        reply = ask(clients, messages, model, max_tokens)
        ctx.usage(**spent(reply))
        return read(reply)

    return answer_in_a_thread


# ---- what every test has


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.plays()
    return running


@pytest.fixture
async def clients(provider: Provider) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(provider.url, stack)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "jobs.db"


MODELS = {"small": Model(other="big", larger="big")}


@pytest.fixture
async def rd(database: Path, clock: FakeClock, preset: Any) -> AsyncIterator[redrive.Redrive]:
    async with redrive.Redrive(database, clock=clock, preset=preset) as rd:
        yield rd


@pytest.fixture
async def rd_with_models(database: Path, clock: FakeClock) -> AsyncIterator[redrive.Redrive]:
    """One that knows a second model."""
    async with redrive.Redrive(database, clock=clock, models=MODELS) as rd:
        yield rd


def payload_column(database: Path, job_id: str) -> bytes:
    """As it stands in the file, past everything that redrive makes of it."""
    connection = apsw.Connection(str(database))
    try:
        ((found,),) = connection.execute("SELECT CAST(payload AS BLOB) FROM jobs WHERE id = ?", (job_id,)).fetchall()
    finally:
        connection.close()
    assert isinstance(found, bytes)
    return found


class Course:
    """A job on its way to its end, with everything that was seen of it."""

    def __init__(self, job: Job, waits: list[float], requests: list[Request]) -> None:
        self.job = job
        self.waits = waits
        self.requests = requests

    @property
    def first(self) -> Attempt:
        return self.job.history[0]

    def failures(self) -> list[tuple[str, str, str | None]]:
        """(cause, rule, strategy) of each failed attempt."""
        return [
            (attempt.cause.detail, attempt.cause.rule, attempt.strategy)
            for attempt in self.job.history
            if attempt.cause is not None
        ]


async def follow(
    rd: redrive.Redrive, clock: FakeClock, provider: Provider, database: Path, enqueued: Awaitable[Any]
) -> Course:
    """Run a job to its end. Nothing is sent before its time, nothing after its end, and its payload stays as it was."""
    handle = await enqueued
    before, waits = payload_column(database, handle.id), list[float]()
    for _ in range(8):
        await soon(rd.drain())
        job: Job = await handle.refresh()
        if job.state is not State.waiting:
            break
        waits.append(round(job.run_at - clock.now(), 3))
        sent = len(provider.requests)
        clock.advance(max(0.0, job.run_at - clock.now() - 0.1))
        await soon(rd.drain())
        assert len(provider.requests) == sent, "sent before its time"
        clock.advance(max(0.0, job.run_at - clock.now()))
    else:
        raise AssertionError(f"it never ends: {job.error}")
    sent = len(provider.requests)
    clock.advance(86_400.0)
    await soon(rd.drain())
    assert len(provider.requests) == sent, "sent again after its end"
    assert payload_column(database, handle.id) == before
    return Course(job, waits, list(provider.requests))


Follow = Callable[[redrive.Redrive, Awaitable[Any]], Awaitable[Course]]


@pytest.fixture
def followed(clock: FakeClock, provider: Provider, database: Path) -> Follow:
    return lambda rd, enqueued: follow(rd, clock, provider, database, enqueued)


def asked(text: str = "What is six times seven?") -> Messages:
    return [{"role": "user", "content": text}]


def a_talk(turns: int, words: int) -> Messages:
    past = [
        {"role": role, "content": f"{role} {number} " + "word " * words}
        for number in range(turns)
        for role in ("user", "assistant")
    ]
    return [*past, {"role": "user", "content": "Now write the report."}]


# ---- what heals by itself: the same again, later


@voices(PLAIN)
@pytest.mark.parametrize(
    ("failing", "cause", "wait"),
    [
        (fails("limited", headers={"Retry-After": "17"}), ("rate_limited", "provider_code", "retry_after"), 17.85),
        (fails("overloaded"), ("provider_overloaded", "provider_code", "retry"), 2.0),
        (fails("broken"), ("server_error", None, "retry"), 2.0),
        (ends("reset_first"), ("network", "class_table", "retry"), 2.0),
        (ends("reset_after_headers"), ("network", "class_table", "retry"), 2.0),
        (ends("cut"), ("network", "class_table", "retry"), 2.0),
    ],
    ids=["429", "overloaded", "500", "reset", "reset after the headers", "cut"],
)
async def test_what_heals_is_sent_again_as_it_was(
    rd: redrive.Redrive,
    clients: Clients,
    provider: Provider,
    followed: Follow,
    ask: Ask,
    failing: Answer,
    cause: tuple[str, str | None, str],
    wait: float,
) -> None:
    provider.plays(failing, OK)
    answer = register(rd, clients, ask, text_of)
    course = await followed(rd, answer.enqueue(asked()))
    assert (course.job.state, course.job.result_json, course.job.attempts) == (State.done, '"42"', 2)
    ((detail, rule, strategy),) = course.failures()
    assert (detail, strategy) == (cause[0], cause[2])
    assert rule == cause[1] or cause[1] is None
    assert course.waits == [wait]
    assert course.requests[0].body == course.requests[1].body
    assert await rd.dead.diff(course.job.id, 1, 2) == []


@voices(STREAMED)
@pytest.mark.parametrize(
    ("failing", "detail"),
    [
        (breaks_off("overloaded"), "provider_overloaded"),
        (breaks_off("broken"), "server_error"),
        (breaks_off("limited"), "rate_limited"),
        (ends("cut"), "network"),
        (ends("reset_after_headers"), "network"),
    ],
    ids=["overloaded", "broken", "limited", "cut", "reset"],
)
async def test_a_stream_that_began_well_and_broke_is_asked_for_again(
    rd: redrive.Redrive,
    clients: Clients,
    provider: Provider,
    followed: Follow,
    ask: Ask,
    failing: Answer,
    detail: str,
) -> None:
    """The status was 200 all the time; what was streamed so far is no answer."""
    provider.plays(failing, OK)
    course = await followed(rd, register(rd, clients, ask).enqueue(asked()))
    assert (course.job.state, course.job.attempts) == (State.done, 2)
    assert course.job.result_json and '"42"' in course.job.result_json, "the SDK's own object is kept as JSON"
    assert [failure[0] for failure in course.failures()] == [detail]
    assert [request.body["stream"] for request in course.requests] == [True, True]


@voices([anthropic_stream, chat_stream])
async def test_a_stream_that_ended_politely_in_the_middle_is_no_answer(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask
) -> None:
    """No transport error, no error event: only the reason to stop is missing, and the SDKs return what came."""
    provider.plays(trails_off, OK)
    course = await followed(rd, register(rd, clients, ask).enqueue(asked()))
    assert (course.job.state, course.job.attempts, len(course.requests)) == (State.done, 2, 2)
    assert [failure[0] for failure in course.failures()] == ["network"]


@voices([anthropic_plain, chat_plain])
@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "30"}, 31.5),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.575),
        ({"Retry-After": "{in 42 s}"}, 44.1),
        ({"Retry-After": "7200"}, 7560.0),
        ({"Retry-After": "0"}, 1.05),
        ({"Retry-After": "soon"}, 2.0),
    ],
    ids=["seconds", "milliseconds", "a date", "two hours", "at once", "nonsense"],
)
async def test_the_provider_says_when_to_come_back(
    rd: redrive.Redrive,
    clients: Clients,
    provider: Provider,
    clock: FakeClock,
    followed: Follow,
    ask: Ask,
    headers: dict[str, str],
    wait: float,
) -> None:
    """Never earlier, whatever the cap, a little later by chance; nonsense is not listened to."""
    date = formatdate(clock.now() + 42.0, usegmt=True)
    sent = {name: value.replace("{in 42 s}", date) for name, value in headers.items()}
    provider.plays(fails("limited", headers=sent), OK)
    course = await followed(rd, register(rd, clients, ask, text_of).enqueue(asked()))
    assert course.job.state is State.done
    assert course.waits == [wait]


@pytest.mark.preset("seven_agents")
async def test_a_fleets_agent_waits_longer_for_an_overloaded_provider(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    provider.plays(fails("overloaded"), fails("overloaded"), OK)
    answer = register(rd, clients, anthropic_plain, text_of)
    course = await followed(rd, answer.options(agent="cto").enqueue(asked()))
    assert (course.job.state, course.waits) == (State.done, [30.0, 60.0])


# ---- what heals only if something changes


@voices([*PLAIN, *STREAMED])
async def test_too_long_for_the_window_comes_back_shorter(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask
) -> None:
    """The provider counts for itself, so only a shorter input gets through."""
    provider.plays(window(800), window(800))
    answer = register(rd, clients, ask, text_of)
    course = await followed(rd, answer.enqueue(a_talk(20, 28)))
    assert (course.job.state, course.job.result_json) == (State.done, '"42"')
    assert course.failures() == [("context_overflow", "overflow_phrase", "compress_context+add_instruction")]
    assert course.waits == [10.0]
    first, second = course.requests
    assert first.tokens > 800 >= second.tokens
    assert len(second.messages) < len(first.messages)
    assert "Focus on the core task." in second.text and "Focus on the core task." not in first.text
    assert "Now write the report." in str(second.messages[-1]), "the task itself is kept"
    lines = await rd.dead.diff(course.job.id, 1, 2)
    assert lines[0].startswith("tokens: about") and "41 →" in lines[1]
    assert any("dropped" in line for line in lines) and any("Focus on the core task" in line for line in lines)


@voices([anthropic_stream, chat_stream, responses_stream])
async def test_too_long_told_inside_a_stream(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask
) -> None:
    provider.plays(breaks_off("overflow"), window(800))
    course = await followed(rd, register(rd, clients, ask).enqueue(a_talk(20, 28)))
    assert course.job.state is State.done
    assert [(detail, strategy) for detail, _, strategy in course.failures()] == [
        ("context_overflow", "compress_context+add_instruction")
    ]
    assert course.requests[1].tokens < course.requests[0].tokens


async def test_a_long_talk_with_tools_is_cut_to_80_000_tokens_and_stays_whole(
    rd_with_models: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    """The provider refuses a call without its result, as the real one does. The larger model is tried as well."""
    rd, talk = rd_with_models, list[dict[str, Any]]()
    talk.append({"role": "user", "content": "Read all the files."})
    for number in range(60):
        call = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"file": f"{number}.txt"}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "word " * 1_200}
        talk += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    @rd.task("answer")
    async def answer(ctx: redrive.Context, messages: Messages, system: str, model: str = "small") -> Any:
        given: Any = messages
        reply = await clients.anthropic.messages.create(
            model=model, max_tokens=50, messages=given, system=system, tools=[]
        )
        ctx.usage(**spent(reply))
        return text_of(reply)

    provider.plays(window(60_000), window(60_000))
    course = await followed(rd, answer.enqueue(talk, "You read files.", "small"))
    assert course.job.state is State.done, course.job.error
    assert course.failures() == [("context_overflow", "overflow_phrase", "compress_context+add_instruction+set_model")]
    first, second = course.requests
    assert first.tokens > 70_000 and 30_000 < second.tokens <= 60_000
    assert (first.model, second.model) == ("small", "big")
    assert second.body["system"].startswith("You read files.") and "core task" in second.body["system"]
    assert course.first.decision is not None and "80,000" in course.first.decision
    lines = await rd.dead.diff(course.job.id, 1, 2)
    assert 'model: "small" → "big"' in lines


async def test_the_provider_refuses_a_call_that_was_parted_from_its_result(
    clients: Clients, provider: Provider
) -> None:
    """The control for the test above: cutting a talk just anywhere does not get through."""
    provider.always(OK)
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]}
    answered = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "text"}]}
    with pytest.raises(anthropic.BadRequestError, match="do not match"):
        await anthropic_plain(clients, [*asked(), answered], "small", 50)
    with pytest.raises(anthropic.BadRequestError, match="do not match"):
        await anthropic_plain(clients, [*asked(), called, *asked()], "small", 50)
    await anthropic_plain(clients, [*asked(), called, answered], "small", 50)
    function = {"id": "t1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    with pytest.raises(openai.BadRequestError, match="did not have response"):
        await chat_plain(clients, [{"role": "assistant", "tool_calls": [function]}, *asked()], "small", 50)
    with pytest.raises(openai.BadRequestError, match="must be a response"):
        await chat_plain(clients, [{"role": "tool", "tool_call_id": "t1", "content": "text"}], "small", 50)


async def test_too_long_whatever_is_left_out_is_a_dead_letter_after_three_changed_tries(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    provider.always(window(20))
    course = await followed(rd, register(rd, clients, chat_plain).enqueue(a_talk(20, 28)))
    assert (course.job.state, course.job.because, len(course.requests)) == (State.dead, "context_overflow", 4)
    assert course.requests[1].tokens < course.requests[0].tokens


@voices([*PLAIN, *STREAMED])
async def test_an_answer_that_was_cut_off_is_asked_for_shorter(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask
) -> None:
    """Most SDKs raise nothing here: they return a cut answer as if it were one."""
    long, short = says("word " * 79 + "end"), says("word " * 19 + "end")
    provider.always(when(lambda request: "Be concise" in request.text, short, long))
    course = await followed(rd, register(rd, clients, ask).enqueue(asked(), max_tokens=50))
    assert (course.job.state, course.waits) == (State.done, [10.0])
    told = "limit_class" if ask is chat_stream else "error_kind"  # OpenAI's stream raises; the others just return
    assert course.failures() == [("token_budget", told, "simplify_task+add_instruction")]
    assert [request.limit for request in course.requests] == [50, 30]
    assert "Be concise" in course.requests[1].text
    assert "max_tokens: 50 → 30" in await rd.dead.diff(course.job.id, 1, 2)
    usage = [attempt.usage.output_tokens if attempt.usage else None for attempt in course.job.history]
    assert usage == [None if ask is chat_stream else 50, 20]


class Order(pydantic.BaseModel):
    amount: int


def an_order(reply: Any) -> int:
    return Order.model_validate_json(text_of(reply)).amount


WRONG = says('{"amount": "many"}')
RIGHT = says('{"amount": 12}')


@voices(PLAIN)
@pytest.mark.parametrize("wrong", [WRONG, says('{"amount": 1'), says("Sure! Here.")], ids=["type", "cut", "prose"])
async def test_output_that_does_not_fit_the_schema_is_asked_for_again_in_other_words(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask, wrong: Answer
) -> None:
    """The provider says the same wrong thing until it is told that it was wrong."""
    provider.always(when(lambda request: "failed with invalid_output" in request.text, RIGHT, wrong))
    course = await followed(rd, register(rd, clients, ask, an_order).enqueue(asked("An order, as JSON.")))
    assert (course.job.state, course.job.result_json, course.waits) == (State.done, "12", [120.0])
    assert course.failures() == [("invalid_output", "class_table", "add_instruction")]
    first, second = course.requests
    assert second.messages[0]["content"].startswith(first.messages[0]["content"])
    assert "Attempt 1 failed with invalid_output" in second.text
    assert "many" not in second.text, "what a failure said is quoted only where the queue allows it"
    (line,) = [line for line in await rd.dead.diff(course.job.id, 1, 2) if "messages[0]" in line]
    assert "Attempt 1 failed with invalid_output" in line


async def test_the_validators_words_are_quoted_as_data_where_the_queue_allows_it(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    provider.plays(WRONG, RIGHT)
    answer = register(rd, clients, chat_plain, an_order, quote_errors=True)
    talk = [{"role": "system", "content": "You take orders."}, *asked("An order, as JSON.")]
    course = await followed(rd, answer.enqueue(talk))
    assert course.job.state is State.done
    system, user = course.requests[1].messages
    assert system["content"] == "You take orders.", "never in the voice of the system"
    assert "valid integer" in user["content"] and "untrusted" in user["content"].lower()


async def test_the_same_wrong_answer_three_times_is_a_loop_and_goes_to_another_model(
    rd_with_models: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    provider.always(when(lambda request: request.model == "big", RIGHT, WRONG))
    answer = register(rd_with_models, clients, anthropic_plain, an_order, rungs=3)
    course = await followed(rd_with_models, answer.enqueue(asked("An order, as JSON."), model="small"))
    assert (course.job.state, course.job.result_json) == (State.done, "12")
    assert [failure[0] for failure in course.failures()] == ["invalid_output", "invalid_output", "hallucination_loop"]
    assert [request.model for request in course.requests] == ["small", "small", "small", "big"]
    assert course.waits[2] == 60.0
    assert "Validate the answer against the schema" in course.requests[3].text
    assert len({request.text for request in course.requests}) == 4, "no two attempts asked the same"


@voices(ASYNC)
@pytest.mark.parametrize("stop", ["refusal", "filter"])
async def test_a_refusal_goes_to_the_other_model_once(
    rd_with_models: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask, stop: Any
) -> None:
    provider.always(when(lambda request: request.model == "big", OK, says("I cannot help with that.", stop)))
    answer = register(rd_with_models, clients, ask)
    course = await followed(rd_with_models, answer.enqueue(asked(), model="small"))
    assert (course.job.state, course.waits) == (State.done, [120.0])
    assert course.failures() == [("refusal", "error_kind", "set_model")]
    assert [request.model for request in course.requests] == ["small", "big"]
    assert 'model: "small" → "big"' in await rd_with_models.dead.diff(course.job.id, 1, 2)


async def test_the_defaults_of_a_tasks_parameters_can_be_changed_too(
    rd_with_models: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    """Neither model nor limit stands in the payload: the task's own signature has a place for them."""
    short = when(lambda request: request.limit < 50, OK, says("word " * 79 + "end"))
    provider.always(when(lambda request: request.model == "big", short, says("I cannot.", "refusal")))
    answer = register(rd_with_models, clients, anthropic_plain)
    course = await followed(rd_with_models, answer.enqueue(asked()))
    assert course.job.state is State.done, course.job.error
    assert [(request.model, request.limit) for request in course.requests] == [("small", 50), ("big", 50), ("big", 30)]


async def test_the_jobs_own_model_is_changed_and_the_difference_is_told(
    rd_with_models: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    """A task that reads `ctx.model` has no model in its payload at all."""
    rd = rd_with_models

    @rd.task("answer")
    async def answer(ctx: redrive.Context, messages: Messages) -> Any:
        reply = await anthropic_plain(clients, messages, ctx.model or "none", 50)
        ctx.usage(**spent(reply))
        return reply

    provider.always(when(lambda request: request.model == "big", OK, says("I cannot help with that.", "refusal")))
    course = await followed(rd, answer.options(model="small").enqueue(asked()))
    assert course.job.state is State.done
    assert [request.model for request in course.requests] == ["small", "big"]
    assert [attempt.model for attempt in course.job.history] == ["small", "big"]
    assert any("small" in line and "big" in line for line in await rd.dead.diff(course.job.id, 1, 2))


async def test_a_refusal_by_everybody_is_left_to_a_person(
    rd_with_models: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow
) -> None:
    provider.always(says("I cannot help with that.", "refusal"))
    answer = register(rd_with_models, clients, anthropic_plain)
    course = await followed(rd_with_models, answer.enqueue(asked(), model="small"))
    assert (course.job.state, course.job.detail, course.job.lane) == (State.dead, "refusal", "manual")
    assert [request.model for request in course.requests] == ["small", "big"]


# ---- what does not heal


@voices(PLAIN)
@pytest.mark.parametrize(
    ("name", "detail"), [("quota", "quota"), ("key", "credentials")], ids=["no credit left", "a wrong key"]
)
async def test_what_does_not_heal_is_sent_once(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask, name: str, detail: str
) -> None:
    provider.always(fails(name))
    course = await followed(rd, register(rd, clients, ask).enqueue(asked()))
    assert (course.job.state, course.job.because, course.job.detail) == (State.dead, "permanent", detail)
    assert (course.job.lane, course.job.attempts, len(course.requests)) == ("manual", 1, 1)
    assert course.job.recommendation and "retry_on=" in course.job.recommendation


@voices(ASYNC)
async def test_a_budget_in_tokens_is_counted_by_the_provider_and_stops_the_retries(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask
) -> None:
    """Some 100 tokens go in each time: the third try would be beyond 150."""
    provider.always(WRONG)
    answer = register(rd, clients, ask, an_order, rungs=5)
    budget = redrive.Budget(tokens=150)
    course = await followed(rd, answer.options(budget=budget).enqueue(asked("word " * 90 + "An order, as JSON.")))
    assert (course.job.state, course.job.because, len(course.requests)) == (State.dead, "budget_exhausted", 2)
    used = [attempt.usage for attempt in course.job.history]
    assert [use.input_tokens if use else None for use in used] == [request.tokens for request in course.requests]
    total = sum(use.input_tokens + use.output_tokens for use in used if use)
    assert course.job.history[-1].decision and f"{total} of 150 tokens" in course.job.history[-1].decision


@voices(ASYNC)
async def test_a_prompt_that_no_model_can_read_is_never_sent(
    rd: redrive.Redrive, clients: Clients, provider: Provider, followed: Follow, ask: Ask
) -> None:
    provider.always(OK)
    course = await followed(rd, register(rd, clients, ask).enqueue(a_talk(40, 1_500), model="claude-sonnet-4-5"))
    assert (course.job.state, course.job.because, course.job.attempts) == (State.dead, "preflight_rejected", 0)
    assert course.requests == []
    assert course.job.detail == "context_overflow"
    assert course.job.recommendation and "Split it into 2 subtasks" in course.job.recommendation


# ---- the same through what is built on those clients


async def through_litellm_openai(clients: Clients, prompt: str) -> str:
    import litellm

    told: Any = [{"role": "user", "content": prompt}]
    reply: Any = await litellm.acompletion(
        "openai/small", told, api_base=f"{clients.url}/v1", api_key="k", num_retries=0, max_retries=0, max_tokens=50
    )
    return str(reply.choices[0].message.content)


async def through_litellm_anthropic(clients: Clients, prompt: str) -> str:
    import litellm

    told: Any = [{"role": "user", "content": prompt}]
    reply: Any = await litellm.acompletion(
        "anthropic/small", told, api_base=clients.url, api_key="k", num_retries=0, max_retries=0, max_tokens=50
    )
    return str(reply.choices[0].message.content)


async def through_pydantic_ai(clients: Clients, prompt: str) -> str:
    import pydantic_ai
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    model = AnthropicModel("small", provider=AnthropicProvider(anthropic_client=clients.anthropic))
    return (await pydantic_ai.Agent(model).run(prompt)).output


async def through_openai_agents(clients: Clients, prompt: str) -> str:
    import agents

    model = agents.OpenAIChatCompletionsModel("small", clients.openai)
    agent = agents.Agent(name="counter", instructions="You count.", model=model)
    quiet = agents.RunConfig(tracing_disabled=True)
    return str((await agents.Runner.run(agent, prompt, run_config=quiet)).final_output)


FRAMEWORKS = pytest.mark.parametrize(
    "run",
    [through_litellm_openai, through_litellm_anthropic, through_pydantic_ai, through_openai_agents],
    ids=lambda run: run.__name__.removeprefix("through_"),
)


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class")  # between litellm and pydantic
@FRAMEWORKS
@pytest.mark.parametrize(
    ("failing", "detail", "wait"),
    [
        (fails("limited", headers={"Retry-After": "17"}), "rate_limited", 17.85),
        (fails("overloaded"), "provider_overloaded", 2.0),
        (window(300), "context_overflow", 10.0),
        (fails("quota"), "quota", None),
    ],
    ids=["429", "overloaded", "too long", "no credit left"],
)
async def test_a_framework_hides_none_of_it(
    rd: redrive.Redrive,
    clients: Clients,
    provider: Provider,
    followed: Follow,
    run: Callable[[Clients, str], Awaitable[str]],
    failing: Answer,
    detail: str,
    wait: float | None,
) -> None:
    provider.plays(failing, window(300))

    @rd.task("answer")
    async def answer(prompt: str) -> str:
        return await run(clients, prompt)

    long = "What is six times seven? " + "word " * 400 if detail == "context_overflow" else "What is six times seven?"
    course = await followed(rd, answer.enqueue(long))
    assert course.first.cause is not None and course.first.cause.detail == detail
    if wait is None:
        assert (course.job.state, course.job.because, len(course.requests)) == (State.dead, "permanent", 1)
        return
    assert (course.job.state, course.job.result_json, course.waits) == (State.done, '"42"', [wait])
    first, second = course.requests
    if detail == "context_overflow":
        assert first.tokens > 300 >= second.tokens
        assert "Focus on the core task." in second.text
    else:
        assert first.body == second.body


# ---- a provider that is down for everybody


async def test_a_model_that_is_overloaded_parks_its_jobs_and_no_others(
    rd: redrive.Redrive, clients: Clients, provider: Provider, clock: FakeClock
) -> None:
    """60 jobs for a model that answers 529, 20 for one that answers; then it recovers, and everything drains."""
    down = {"opus"}
    provider.always(when(lambda request: request.model in down, fails("overloaded"), OK))

    @rd.task("answer")
    async def answer(ctx: redrive.Context, messages: Messages) -> Any:
        return text_of(await anthropic_plain(clients, messages, ctx.model or "none", 50))

    async def states(model: str) -> Counter[str]:
        page = await rd.jobs.list(limit=1000)
        return Counter(str(job.state) for job in page.jobs if job.model == model)

    for model, number in (("opus", 60), ("haiku", 20)):
        for n in range(number):
            await answer.options(model=model).enqueue(asked(f"{model} {n}"))

    await soon(rd.drain(concurrency=5))
    assert await states("haiku") == {"done": 20}
    tried = [request for request in provider.requests if request.model == "opus"]
    assert 10 <= len(tried) <= 14, "ten in a row open it; four may have been under way"
    assert await states("opus") == {"held": 60 - len(tried), "waiting": len(tried)}
    (breaker,) = await rd.breakers()
    assert (breaker.key, breaker.state, breaker.cause) == ("model:opus", "open", "provider_overloaded")

    for _ in range(30):
        clock.advance(1.0)
        await soon(rd.drain(concurrency=5))
    probes = len([request for request in provider.requests if request.model == "opus"]) - len(tried)
    assert 1 <= probes <= 3, "one at a time, after 5 and after 10 more seconds"
    assert await states("opus") == {"held": 60}

    down.clear()
    for _ in range(120):
        clock.advance(1.0)
        await soon(rd.drain(concurrency=5))
        if (await states("opus"))["done"] == 60:
            break
    assert await states("opus") == {"done": 60}
    sent = Counter(str(request.messages) for request in provider.requests if request.model == "haiku")
    assert set(sent.values()) == {1} and len(sent) == 20
    attempts = Counter(job.attempts for job in (await rd.jobs.list(limit=1000)).jobs if job.model == "opus")
    assert attempts == {1: 60 - len(tried), 2: len(tried)}, "neither parking nor probing burnt an attempt"
    asked_for = len([request for request in provider.requests if request.model == "opus"])
    assert asked_for == 60 + len(tried) + probes, "and nothing was sent twice after its success"
