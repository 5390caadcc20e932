"""The tools that read: what a model is told of health, operations and failures, through the SDK's own client."""

import errno
import json
import os
from pathlib import Path

import mcp
import pytest

import redrive
from redrive.core.outcome import INLINE
from redrive.doors.mcp import make_server
from redrive.errors import StoreBusy
from tests.mcp.agents import World, ask, client_of, names, refused
from tests.support import opened, snapshot, soon

READING = {"status", "operation", "failures", "explain_failure", "failure_groups", "morning", "inbox"}


async def dead_letter(world: World, text: str = "the mill is broken") -> str:
    handle = await world.rd.enqueue("broken", {"text": text})
    await soon(world.rd.drain())
    return handle.id


async def test_without_the_flag_there_are_only_tools_that_read(world: World) -> None:
    async with client_of(world) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert all(tool.description and tool.input_schema["additionalProperties"] is False for tool in tools)
        said = await refused(client, "call", task="publish", params={"slug": "q3"})
        assert "call" in said
    assert world.posted == []


async def test_nothing_is_moved_by_looking(world: World, tmp_path: Path) -> None:
    id = await dead_letter(world)
    jobs, moves, _, routes = snapshot(tmp_path / "jobs.db")
    async with client_of(world) as client:
        for tool, arguments in (
            ("status", {}),
            ("operation", {"operation_id": id}),
            ("failures", {}),
            ("explain_failure", {"failure_id": id}),
            ("failure_groups", {}),
            ("morning", {}),
        ):
            await client.call_tool(tool, arguments)
        await client.read_resource(f"redrive://jobs/{id}")
    assert [jobs, moves, routes] == [part for n, part in enumerate(snapshot(tmp_path / "jobs.db")) if n != 2]


async def test_what_reads_needs_nobody_who_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the database, an agent can still find out why a job failed."""

    async def busy(*_: object) -> None:
        raise StoreBusy("the database is locked")

    id = await dead_letter(world)
    async with client_of(world) as client:
        monkeypatch.setattr(world.rd.store, "apply", busy, raising=False)
        (row,) = (await ask(client, "failures"))["failures"]
        assert (await ask(client, "failures", group=row["group"][:6]))["failures"] == [row]
        assert (await ask(client, "explain_failure", failure_id=id))["alike"] == {"group": row["group"], "dead_now": 1}
        assert (await ask(client, "status"))["issues"] and (await ask(client, "morning"))["needs"]
        assert (await client.call_tool("operation", {"operation_id": id})).structured_content
        assert (await client.read_resource(f"redrive://jobs/{id}")).contents
        (group,) = (await ask(client, "failure_groups"))["groups"]
        assert group["dead_now"] == 1


async def test_a_disk_that_cannot_be_written_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/jobs.db-live")

    async with client_of(world) as client:
        for verb in ("get", "find", "count"):
            monkeypatch.setattr(world.rd.store, verb, refuse, raising=False)
        told = "/data/jobs.db-live: Read-only file system. A person must look at the path"
        for tool, arguments in (("status", {}), ("failures", {}), ("operation", {"operation_id": "feedface"})):
            assert told in await refused(client, tool, **arguments)
        with pytest.raises(mcp.MCPError, match="Read-only file system"):
            await client.read_resource("redrive://jobs/feedface")


async def test_a_quiet_day_is_one_line(world: World) -> None:
    async with client_of(world) as client:
        status, morning = await ask(client, "status"), await ask(client, "morning")
        assert (status["health"], status["queues_that_need_eyes"], status["next"]) == (
            "healthy", [], "Nothing needs a person.",
        )  # fmt: skip
        assert morning["ok"] is True
        assert morning["headline"] == "quiet: 0 done, nothing needs you"
        assert morning["needs"] == []
        assert (await ask(client, "failures"))["failures"] == []
        assert (await ask(client, "failure_groups"))["groups"] == []


@pytest.mark.behaviour("T-1c")
async def test_an_agent_hears_once_that_what_was_down_answers_again(world: World) -> None:
    """Jobs that fail in a row open the breaker of what they call; a person closes it."""
    rd = world.rd

    @rd.task(downstream="crm")
    async def push(n: int) -> None:
        raise ConnectionRefusedError("down")

    async with client_of(world) as client:
        assert (await ask(client, "status"))["down"] == []
        for n in range(12):
            await push.enqueue(n)
        await soon(rd.drain())
        told = await ask(client, "status")
        assert [(one["what"], one["cause"]) for one in told["down"]] == [("crm", "network")]
        assert "answers_again" not in told
        assert await rd.close_breaker("crm")
        told = await ask(client, "status")
        assert (told["down"], told["answers_again"]) == ([], ["crm"])
        assert "answers_again" not in await ask(client, "status")


@pytest.mark.behaviour("003-77", "003-78")
async def test_status_shows_the_retry_queue(world: World) -> None:
    world.busy = 1
    failed = await world.rd.call("publish", {"slug": "q3"})
    later = await world.rd.submit("publish", {"slug": "q4"})
    async with client_of(world) as client:
        status = await ask(client, "status")
    assert status["retry_queue"]["queued"] == 2
    assert status["retry_queue"]["next_retry_at"] == "2027-01-15T08:00:00.000Z"
    recent = {one["operation_id"]: one for one in status["recent_operations"]}
    assert recent[failed.operation_id]["status"] == "queued_retry"
    assert recent[failed.operation_id]["retry_at"] > "2027-01-15T08:01:00"
    assert recent[failed.operation_id]["max_retries"] == 5
    assert recent[later.operation_id]["status"] == "queued_deferred_submit"
    assert recent[later.operation_id]["max_retries"] == 1


async def test_a_failure_is_listed_explained_and_grouped(world: World) -> None:
    id = await dead_letter(world)
    async with client_of(world) as client:
        status = await ask(client, "status")
        assert status["health"] == "degraded"
        assert status["queues_that_need_eyes"][0]["dead"] == 1
        (row,) = (await ask(client, "failures"))["failures"]
        assert (row["id"], row["task"], row["because"]) == (id, "broken", "attempts_exhausted")
        why = await ask(client, "explain_failure", failure_id=id[-8:])
        assert why["cause"]["rule"].startswith("no_rule: ")
        assert [one["run"] for one in why["tried"]] == [1]
        assert why["recommendation"]
        assert "a person runs `redrive dead redrive" in why["next"]
        (group,) = (await ask(client, "failure_groups"))["groups"]
        assert (group["group"], group["dead_now"], group["latest"]) == (row["group"], 1, id)
        assert (await ask(client, "failures", group=group["group"][:6]))["failures"] == [row]
        morning = await ask(client, "morning")
        assert [(need["kind"], need["latest"]) for need in morning["needs"]] == [("dead_manual", id)]
        assert morning["next"] == f"Begin with the first: `explain_failure` {id}"


@pytest.mark.behaviour("R-6a", "R-6b")
async def test_an_explanation_tells_what_verifiers_saw(world: World) -> None:
    class Odd(Exception):
        pass

    @world.rd.task(
        effects=[
            redrive.Effect("note", lambda params, witness: True),
            redrive.Effect("mail", lambda params, witness: False),
        ],
        retry_policy="verify_first",
    )
    async def announce() -> None:
        raise Odd("what is this?")

    job = await announce.enqueue()
    await soon(world.rd.drain())
    async with client_of(world) as client:
        why = await ask(client, "explain_failure", failure_id=job.id)
    assert why["tried"][-1]["effects_seen"] == {"note": "verified after it ran", "mail": "absent after it ran"}
    assert "note: there; mail: missing" in why["recommendation"]


@pytest.mark.behaviour("R-6f")
async def test_an_effect_without_a_job_is_a_need_that_a_person_resolves(world: World) -> None:
    @world.rd.once(key="mail")
    async def send() -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        await send()
    async with client_of(world) as client:
        (need,) = (await ask(client, "morning"))["needs"]
    assert (need["kind"], need["look"]) == ("outcome_unknown", "a person runs `redrive status effect:mail`")


async def test_a_list_that_was_cut_says_so(world: World) -> None:
    for number in range(23):
        await world.rd.dead.add(f"k{number}", {}, KeyError("x"), task=f"t-{'abcdefghijklmnopqrstuvw'[number]}")
    async with client_of(world) as client:
        cut, whole = await ask(client, "failure_groups"), await ask(client, "failure_groups", limit=23)
        assert (len(cut["groups"]), len(whole["groups"])) == (20, 23)
        assert "raise `limit`" in cut["more"] and "more" not in whole
        status = await ask(client, "status")
        assert (len(status["issues"]), status["issues_not_shown"], status["queues_not_shown"]) == (20, 3, 3)


async def test_an_edited_job_is_shown_with_what_would_run(world: World) -> None:
    @world.rd.task(max_attempts=1)
    async def pay(amount: int) -> None:
        raise RuntimeError("no")

    id = (await world.rd.enqueue("pay", {"amount": 900})).id
    await world.rd.drain()
    await world.rd.dead.edit(id, {"amount": 9}, why="a typo")
    await world.rd.drain()
    async with client_of(world) as client:
        shown = (await ask(client, "explain_failure", failure_id=id))["untrusted_payload"]
    assert shown == {"amount": 9}


@pytest.mark.behaviour("003-79")
async def test_failures_are_found_by_every_filter(world: World) -> None:
    class Odd(Exception):
        error_kind = "vault_locked"

    @world.rd.task(max_attempts=1)
    async def locked() -> None:
        raise Odd("locked")

    await locked.options(agent="smith", session_id="s1").enqueue()
    await dead_letter(world)
    async with client_of(world) as client:
        for filters in (
            {"error_kind": "vault_locked"}, {"task": "locked"}, {"agent": "smith"}, {"session_id": "s1"},
            {"queue": "locked"}, {"error_class": "Odd"},
        ):  # fmt: skip
            (row,) = (await ask(client, "failures", **filters))["failures"]
            assert row["task"] == "locked", filters
        assert (await ask(client, "failures", error_kind="other"))["failures"] == []
        page = await ask(client, "failures", limit=1)
        more = await ask(client, "failures", limit=1, cursor=page["next_cursor"])
        assert {page["failures"][0]["task"], more["failures"][0]["task"]} == {"locked", "broken"}


async def test_a_job_that_is_not_dead_is_not_explained_away(world: World) -> None:
    job = await world.rd.enqueue("publish", {"slug": "q3"})
    async with client_of(world) as client:
        said = await ask(client, "explain_failure", failure_id=job.id)
    assert said["state"] == "waiting"
    assert said["next"] == f"Ask `operation` {job.id}."


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("operation", {"operation_id": "feedface"}, ("no job 'feedface'", "`failures`")),
        ("operation", {"operation_id": "x' OR 1=1"}, ("no job",)),
        ("explain_failure", {"failure_id": "feedface"}, ("no job 'feedface'",)),
        ("operation", {}, ("operation_id", "required")),
        ("operation", {"operation_id": 7}, ("operation_id", "string")),
        ("failures", {"limit": 0}, ("limit", "greater than or equal to 1")),
        ("failures", {"limit": 101}, ("limit", "less than or equal to 100")),
        ("failures", {"qeue": "a"}, ("qeue", "not permitted")),
        ("failures", {"cursor": "nonsense"}, ("cursor: ", "Nothing was changed")),
        ("failures", {"group": "feedface"}, ("group: there is no group 'feedface'",)),
        ("failure_groups", {"status": "open"}, ("status: 'open' is not one of", "unresolved")),
        ("morning", {"hours": -1}, ("hours", "greater than 0")),
        ("status", {"key": "hunter22"}, ("key: Extra inputs are not permitted. Nothing was changed: correct it",)),
        ("operation", {"offset": ["sk-canarycanary1"]}, ("operation_id: Field required; offset: Input should be",)),
    ],
)
async def test_what_cannot_be_answered_is_told_so_that_a_model_can_put_it_right(
    world: World, tool: str, arguments: dict[str, object], words: tuple[str, ...]
) -> None:
    async with client_of(world) as client:
        said = await refused(client, tool, **arguments)
    assert all(word in said for word in words), said
    assert "Traceback" not in said and "hunter22" not in said and "canary" not in said
    assert len(said.splitlines()) == 1


async def test_an_operation_that_is_waited_for_is_told_when_it_ends(world: World) -> None:
    job = await world.rd.enqueue("publish", {"slug": "q3"})
    async with client_of(world) as client, world.rd.worker():
        done = await soon(ask(client, "operation", operation_id=job.id, wait_seconds=60))
    assert (done["status"], done["result"]["url"]) == ("ok", "/articles/q3")


async def test_a_long_result_is_cut_and_read_on(world: World) -> None:
    job = await world.rd.enqueue("novel", {"letters": 2 * INLINE + 7})
    await soon(world.rd.drain())
    async with client_of(world) as client:
        first = await ask(client, "operation", operation_id=job.id)
        assert (len(first["result"]), first["truncated"], first["characters"]) == (INLINE, True, 2 * INLINE + 7)
        assert "offset" in first["next"]
        parts, offset = [first["result"]], first["next_offset"]
        for _ in range(3):
            page = await ask(client, "operation", operation_id=job.id, offset=offset)
            parts.append(page["result"])
            offset = page.get("next_offset")
            if offset is None:
                break
        assert "".join(parts) == "x" * (2 * INLINE + 7)
        waiting = await world.rd.enqueue("publish", {"slug": "q3"})
        assert "no result yet" in await refused(client, "operation", operation_id=waiting.id, offset=5)


async def test_a_job_is_a_resource(world: World) -> None:
    id = await dead_letter(world)
    async with client_of(world) as client:
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "redrive://jobs/{id}"
        (page,) = (await client.read_resource(f"redrive://jobs/{id}")).contents
        job = json.loads(getattr(page, "text", ""))
        assert (page.mime_type, job["id"], job["state"]) == ("application/json", id, "dead")
        assert "never instructions" in job["note"]
        assert "token" not in job and "version" not in job
        with pytest.raises(mcp.MCPError, match="no job 'feedface'"):
            await client.read_resource("redrive://jobs/feedface")


async def test_a_huge_job_stays_a_small_resource(world: World) -> None:
    job = await world.rd.enqueue("broken", {"text": "y" * 300_000, "list": [{"n": n} for n in range(20_000)]})
    await soon(world.rd.drain())
    async with client_of(world) as client:
        (page,) = (await client.read_resource(f"redrive://jobs/{job.id}")).contents
        assert len(getattr(page, "text", "")) < 50_000
        why = await ask(client, "explain_failure", failure_id=job.id)
        assert len(json.dumps(why)) < 6_000


@pytest.mark.parametrize("writes", [False, True])
async def test_the_triage_prompt_names_tools_that_are_there(world: World, writes: bool) -> None:
    async with client_of(world, allow_write=writes) as client:
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.name == "triage"
        (message,) = (await client.get_prompt("triage", {"queue": "feedback"})).messages
        text = getattr(message.content, "text", "")
        assert "queue feedback" in text
        known = await names(client)
        mentioned = {word for word in text.split("`")[1::2] if " " not in word}
        assert mentioned <= known
        assert ("redrive_failure" in mentioned) is writes


async def test_the_tools_that_read_need_no_tasks(world: World, tmp_path: Path) -> None:
    id = await dead_letter(world)
    async with opened(tmp_path / "jobs.db", clock=world.clock) as bare:
        assert isinstance(bare, redrive.Redrive)
        async with mcp.Client(make_server(bare, tasks=False)) as client:
            assert (await ask(client, "explain_failure", failure_id=id))["task"] == "broken"
            assert (await ask(client, "morning"))["needs"][0]["latest"] == id
