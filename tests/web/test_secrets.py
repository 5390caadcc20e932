"""Many secrets, planted wherever one can slip in: none is found outside the payload that it was given in.

Half of them stand in payloads: those may be in that column and nowhere else. The other half come with failures, so no
file, log, answer, page or export may hold them at all.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import apsw
import httpx2
import msgspec
import pytest
from click.testing import CliRunner

import redrive
from redrive.doors.cli import cli
from redrive.doors.rest import TABLE
from redrive.failures.capture import MESSAGE_LIMIT
from tests.receiver import Seen, answer, receiving
from tests.support import count_in_files, soon
from tests.web.hostile import pages
from tests.web.serving import TOKEN, Served, serving

SESSION = "s1"
GIVEN = {
    "password": "c4nary01-hunter2",
    "api_key": "c4nary02-key",
    "access_token": "c4nary03-token",
    "nested": "c4nary04-in-credentials",
    "sk": "sk-c4nary05abcdefgh",
    "bearer": "c4nary06abcdefgh",
    "url": "c4nary07inaurl",
    "cookie": "c4nary08-cookie",
    "private_key": "c4nary09-key-lines",
    "github": "ghp_c4nary10abcdefgh",
    "pair": "c4nary21-in-a-pair",
    "variable": "c4nary22-of-a-variable",
    "jar": "c4nary23-in-a-jar",
    "slash": "c4nary24afteraslash",
}
"""In payloads."""
SAID = {
    "password": "c4nary11-in-a-message",
    "bearer": "c4nary12abcdefghij",
    "token": "c4nary13-in-a-message",
    "cause": "c4nary14-in-a-cause",
    "member": "c4nary15-in-a-group",
    "header": "c4nary16-in-a-header",
    "body": "c4nary17-in-a-body",
    "advice": "AKIAC4NARY18ABCDEFGH",
    "environment": "c4nary19-of-the-environment",
    "environ": "c4nary25-in-PGPASSWORD",
    "session": "c4nary26-second-in-a-line",
    "nested": "c4nary27-in-json-in-json",
    "bytes": "c4nary28-in-bytes",
    "option": "c4nary29-of-an-option",
    "tag": "c4nary30-in-a-tag",
    "cut": "c4nary31-at-the-end",
    "question": "sk-c4nary32inaquestion",
    "detail": "c4nary33-in-a-detail",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjNG5hcnkyMCJ9.c4nary20c4nary20",
}
"""In failures, and in what tasks ask."""


def payload() -> dict[str, Any]:
    return {
        "password": GIVEN["password"],
        "api_key": GIVEN["api_key"],
        "login": {"access_token": GIVEN["access_token"], "credentials": {"user": GIVEN["nested"]}},
        "text": f"call with {GIVEN['sk']} and Authorization: Bearer {GIVEN['bearer']}",
        "database": f"postgres://ada:{GIVEN['url']}@db.example/orders",
        "headers": [{"cookie": GIVEN["cookie"]}],
        "private_key": f"-----BEGIN KEY-----\n{GIVEN['private_key']}\n-----END KEY-----",
        "pairs": [["X-Api-Key", GIVEN["pair"]], ["Accept", "*/*"]],
        "variables": [{"name": "DB_PASSWORD", "value": GIVEN["variable"]}],
        "cookies": {"sid": GIVEN["jar"]},
        "cache": f"redis://default:ab/{GIVEN['slash']}@cache:6379",
        "remotes": [f"https://x-access-token:{GIVEN['github']}@git.example/x.git"],
    }


def spellings() -> str:
    """As programs print them, the last one in a URL that the limit of messages cuts."""
    parts = (
        f"PGPASSWORD={SAID['environ']}",
        rf'{{"sent":"{{\"password\":\"{SAID["nested"]}\"}}"}}',
        f"{{'password': b'{SAID['bytes']}'}}",
        f"mysql --password {SAID['option']} -h db",
        f"<password>{SAID['tag']}</password>",
        f"Cookie: theme=dark; sessionid={SAID['session']}",
    )
    url = f"postgresql://app:{SAID['cut']}"
    head = "\n".join(parts) + "\n"
    said = len(f"login failed: password={SAID['password']}, token: {SAID['token']}, ")
    return head + "x" * (MESSAGE_LIMIT - said - len(head) - len(url) - 1) + f" {url}@db.example/orders"


class ApiError(Exception):
    """What a client library raises, with everything that the server sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.status_code = 400
        self.headers = {"Set-Cookie": f"session={SAID['header']}", "Authorization": f"Bearer {SAID['header']}"}
        self.body = {"error": {"message": "no", "client_secret": SAID["body"]}}


def make_leaky(database: Path) -> redrive.Redrive:
    """Tasks that tell everything they know when they fail."""
    rd = redrive.Redrive(database, poll=0.05, delivery={"allow": ["127.0.0.1/32"], "credentials": ["HOOK_TOKEN"]})

    @rd.task(max_attempts=2, queue="leaks")
    async def echo(**given: Any) -> None:
        """Repeats its whole input, as careless messages do."""
        raise RuntimeError(f"could not work with {given}")

    @rd.task(max_attempts=1, queue="leaks")
    async def tell(how: str) -> None:
        if how == "message":
            raise RuntimeError(f"login failed: password={SAID['password']}, token: {SAID['token']}, {spellings()}")
        if how == "cause":
            raise RuntimeError("it failed") from ValueError(f"api_key={SAID['cause']}")
        if how == "group":
            raise ExceptionGroup("several", [ValueError(f"secret={SAID['member']}"), TypeError("x")])
        if how == "answer":
            raise ApiError(f"401 for Authorization: Bearer {SAID['bearer']}")
        if how == "advice":
            raise redrive.GiveUp(f"no access for {SAID['advice']}", recommendation=f"Rotate {SAID['advice']}.")
        raise RuntimeError(f"the session {SAID['jwt']} is over")

    @rd.task(queue="leaks")
    async def ask(ctx: redrive.Context) -> None:
        """Asks with everything it knows, and fails with the answer."""
        await ctx.approval(f"Send it with {SAID['question']}?", details={"mail": {"password": SAID["detail"]}})
        raise redrive.GiveUp("it could not be sent")

    return rd


@pytest.fixture
async def rd(database: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[redrive.Redrive]:
    monkeypatch.setenv("HOOK_TOKEN", f"Bearer {SAID['environment']}")
    async with make_leaky(database) as rd:
        yield rd


async def plant(rd: redrive.Redrive) -> None:
    """Jobs that fail in every way, a delivery whose receiver repeats the token, and somebody who looked at them."""

    async def repeat(seen: Seen, writer: asyncio.StreamWriter) -> None:
        said = f"not with {seen.headers.get('authorization')}".encode()
        writer.write(answer("400 No", said, set_cookie=f"token={SAID['environment']}"))
        await writer.drain()

    async with receiving(repeat) as receiver:
        await rd.enqueue("echo", payload(), session_id=SESSION)
        for how in ("message", "cause", "group", "answer", "advice", "jwt"):
            await rd.enqueue("tell", {"how": how}, session_id=SESSION)
        await rd.enqueue_http("POST", receiver.url("/hook"), json={"n": 1}, queue="leaks", auth="env:HOOK_TOKEN")
        await rd.submit("echo", payload(), session_id=SESSION)
        answered = await rd.enqueue("ask", {}, session_id=SESSION)
        await rd.enqueue("ask", {}, session_id=SESSION)
        await soon(rd.drain())
        await rd.jobs.approve(answered.id, who="mira")
        await soon(rd.drain())
        assert receiver.requests[0].headers["authorization"].endswith(SAID["environment"]), "the control: it was sent"
    (job, *_) = (await rd.dead.list(task="tell")).jobs
    await rd.dead.note(job.id, f"the password: {SAID['password']}", who="mira")
    await rd.redrives.start([job.id], who="mira", why="again")
    await soon(rd.drain())
    await rd.groups.look()


@pytest.fixture
async def planted(rd: redrive.Redrive, caplog: pytest.LogCaptureFixture) -> redrive.Redrive:
    caplog.set_level(logging.DEBUG, logger="redrive")
    await plant(rd)
    jobs = (await rd.jobs.list(limit=100)).jobs
    assert len(jobs) == 11 and sum(job.state == "dead" for job in jobs) >= 8, [(job.task, job.state) for job in jobs]
    return rd


def found(text: str | bytes, secrets: Iterable[str]) -> list[str]:
    sought = text.encode() if isinstance(text, str) else text
    return [secret for secret in secrets if secret.encode() in sought]


EVERY = (*GIVEN.values(), *SAID.values())


def columns(database: Path) -> Iterable[tuple[str, bytes]]:
    """Every value of every table, by table and column."""
    connection = apsw.Connection(str(database))
    try:
        for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                names = [one[0] for one in connection.execute(f'SELECT name FROM pragma_table_info("{table}")')]
                for name, value in zip(names, row, strict=True):
                    yield f"{table}.{name}", value if isinstance(value, bytes) else str(value).encode()
    finally:
        connection.close()


# ---- the file


async def test_given_secrets_stand_in_the_payload_column_alone(planted: redrive.Redrive, database: Path) -> None:
    places: dict[str, set[str]] = {}
    for place, value in columns(database):
        for secret in found(value, EVERY):
            places.setdefault(place, set()).add(secret)
    notes = places.pop("docs.value", set())  # what a person wrote down is theirs, and masked where it is shown
    assert notes <= {SAID["password"]}, notes
    assert set(places) == {"jobs.payload"}, {place: sorted(secrets) for place, secrets in places.items()}
    assert places["jobs.payload"] == set(GIVEN.values())


async def test_secrets_of_failures_never_touch_the_disk(
    rd: redrive.Redrive, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even for a moment: the write-ahead log keeps what was overwritten, too."""
    for how in ("message", "cause", "group", "answer", "advice", "jwt"):
        await rd.enqueue("tell", {"how": how})
    await soon(rd.drain())
    assert len((await rd.dead.list()).jobs) == 6
    files = count_in_files(database.parent, *SAID.values())
    assert any(name.endswith("-wal") for name in files)
    assert not any(files.values()), files


# ---- what is told


async def test_no_log_line_holds_one(planted: redrive.Redrive, caplog: pytest.LogCaptureFixture) -> None:
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    logged = "\n".join(logging.Formatter("%(message)s").format(record) for record in records)
    assert "could not work with" in logged
    assert found(logged, EVERY) == []


async def paths_of_the_api(rd: redrive.Redrive) -> list[str]:
    """Every address of the table that is read, with every id that fits it."""
    jobs = [job.id for job in (await rd.jobs.list(limit=100)).jobs]
    fillings = {
        "jobs": jobs,
        "dead-letters": [job.id for job in (await rd.dead.list(limit=100)).jobs],
        "groups": [view.fingerprint for view in await rd.groups.list()],
        "redrives": [run.id for run in await rd.redrives.list()],
        "sessions": [SESSION],
    }
    made = []
    for route in TABLE:
        if route.method != "GET" or not route.media.startswith(("application/json", "text/plain")):
            continue  # the stream and exports have tests of their own
        kind = route.path.split("/")[2] if route.path.startswith("/v1/") else ""
        if "{" not in route.path:
            made.append(route.path)
        for filling in fillings.get(kind, []) if "{" in route.path else []:
            head, _, rest = route.path.partition("{")
            made.append(head + filling + rest.partition("}")[2])
    return [*made, *(f"/v1/jobs/{id}/diff?one=1&other=2" for id in jobs)]


async def answers(served: Served, paths: Iterable[str]) -> dict[str, str]:
    return {path: (await soon(served.client.get(path))).text for path in paths}


async def test_no_answer_of_the_api_holds_one(planted: redrive.Redrive) -> None:
    async with serving(planted, worker=False) as served:
        told = await answers(served, await paths_of_the_api(planted))
    assert len(told) > 60
    assert {path: found(text, EVERY) for path, text in told.items() if found(text, EVERY)} == {}
    assert sum("[redacted]" in text for text in told.values()) > 10


async def test_no_event_of_the_stream_holds_one(planted: redrive.Redrive) -> None:
    told: list[str] = []
    async with (
        serving(planted, worker=False) as served,
        served.client.stream("GET", "/v1/events", headers={"Last-Event-ID": ""}) as stream,
    ):
        lines = stream.aiter_lines()
        await planted.enqueue("tell", {"how": "message"})
        await soon(planted.drain())
        while not any("buried" in line for line in told):
            told.append(await soon(anext(lines)))
    assert found("\n".join(told), EVERY) == []


async def test_no_page_of_the_dashboard_holds_one(planted: redrive.Redrive) -> None:
    async with serving(planted, worker=False, dashboard=True) as served:
        paths = [*await pages(planted), f"/inbox?session={SESSION}"]
        downloads = [f"/jobs/{job.id}/download/payload" for job in (await planted.jobs.list(limit=100)).jobs]
        told = await answers(served, [*paths, *downloads])
    assert {path: found(text, EVERY) for path, text in told.items() if found(text, EVERY)} == {}
    assert sum("[redacted]" in text for text in told.values()) > 10


async def test_a_preview_of_an_edit_holds_none(planted: redrive.Redrive) -> None:
    (job, *_) = (await planted.dead.list(task="echo")).jobs
    edited = msgspec.json.encode({**payload(), "more": 1}).decode()
    seen = await planted.dead.preview_edit(job.id, {**payload(), "more": 1})
    assert found(msgspec.json.encode(seen), EVERY) == []
    async with serving(planted, worker=False, dashboard=True) as served:
        answer = await soon(
            served.client.post(f"/jobs/{job.id}/preview", data={"payload": "{}"}, headers={"origin": served.url})
        )
    assert found(answer.text, EVERY) == [] and found(edited, EVERY)


async def test_exports_hold_them_in_the_payload_alone(planted: redrive.Redrive, tmp_path: Path) -> None:
    """A payload is whole, because running it again needs it; everything else is masked. On the web, all is."""
    async with serving(planted, worker=False, dashboard=True) as served:
        by_page = (await soon(served.client.get("/dead/export?all=1"))).text
        whole = (await soon(served.client.get("/dead/export?all=1&secrets=true"))).text
        async with httpx2.AsyncClient(base_url=served.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            by_api = (await soon(client.get("/v1/dead-letters/export"))).text
    await planted.dead.export(tmp_path / "out.jsonl")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert sorted(whole.splitlines()) == sorted((tmp_path / "out.jsonl").read_text().splitlines())
    assert found(by_api, EVERY) == [] and len(by_api.splitlines()) == len(lines)
    assert sorted(by_page.splitlines()) == sorted(by_api.splitlines())
    given = [line.pop("payload") for line in lines]
    assert found(msgspec.json.encode(lines), EVERY) == []
    assert set(found(msgspec.json.encode(given), EVERY)) == set(GIVEN.values())


async def test_no_command_prints_one(planted: redrive.Redrive, database: Path) -> None:
    ids = [job.id for job in (await planted.jobs.list(limit=100)).jobs]
    commands = [
        ("jobs",),
        ("dead", "list"),
        ("dead", "groups"),
        ("morning",),
        ("queues",),
        ("stats",),
        ("inbox", SESSION),
    ]
    commands += [("status", id) for id in ids]

    def run(*words: str) -> str:
        return CliRunner().invoke(cli, [*words, "--url", str(database)], catch_exceptions=False).output

    told = {words: await asyncio.to_thread(run, *words) for words in commands}
    told |= {(*words, "--json"): await asyncio.to_thread(run, *words, "--json") for words in commands}
    assert {words: found(text, EVERY) for words, text in told.items() if found(text, EVERY)} == {}
    assert sum("[redacted]" in text for text in told.values()) > 10
