"""Every door to the verbs of triage, with one way to do a verb to one job, to many, and to take it back."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from click.testing import CliRunner

import redrive
from redrive.deadletters.verbs import Verb, Word
from redrive.doors.cli import cli
from tests.mcp.agents import ask, client_of, names
from tests.support import soon
from tests.web.serving import Served

DAY = 86400.0
SAMPLES: dict[str, Any] = {
    "name": "mira", "moment": DAY, "lane": "delayed", "text": "the mill was oiled", "input": {"order": 9},
    "effects": [], "patch": {"order": 9},
}  # fmt: skip
"""What is said where a verb takes a word that is read so."""


def said(verb: Verb, *, many: bool = False) -> dict[str, Any]:
    return {word.name: SAMPLES[word.reading] for word in verb.takes(many=many)}


class Door(Protocol):
    """One way in. `many` gives the act's id."""

    async def one(self, verb: Verb, id: str) -> None: ...
    async def many(self, verb: Verb, ids: Sequence[str]) -> str: ...
    async def undo(self, act: str) -> None: ...


class Python:
    def __init__(self, served: Served) -> None:
        self.rd = served.rd

    async def one(self, verb: Verb, id: str) -> None:
        await getattr(self.rd.dead, verb.name)(id, **said(verb))

    async def many(self, verb: Verb, ids: Sequence[str]) -> str:
        if verb.name == "edit":
            return (await self.rd.dead.edit_many(ids=ids, **said(verb, many=True))).id
        acted = await getattr(self.rd.dead, verb.name)(ids=ids, **said(verb, many=True))
        return str(acted.id if verb.name == "redrive" else acted.act_id)

    async def undo(self, act: str) -> None:
        await self.rd.dead.undo(act)


class Rest:
    def __init__(self, served: Served) -> None:
        self.served = served

    async def one(self, verb: Verb, id: str) -> None:
        await self.served.post(f"/v1/dead-letters/{id}/triage", {"action": verb.name, **said(verb)})

    async def many(self, verb: Verb, ids: Sequence[str]) -> str:
        if verb.name in ("redrive", "edit"):
            path = "/v1/redrives" if verb.name == "redrive" else "/v1/dead-letters/edit"
            return str((await self.served.post(path, {"ids": ids, **said(verb, many=True)}, status=201))["id"])
        body = {"action": verb.name, "ids": ids, **said(verb, many=True)}
        return str((await self.served.post("/v1/dead-letters/triage", body))["act_id"])

    async def undo(self, act: str) -> None:
        await self.served.post(f"/v1/acts/{act}/undo")


class Terminal:
    def __init__(self, served: Served) -> None:
        self.url = str(served.rd.store.path)  # type: ignore[attr-defined]

    async def one(self, verb: Verb, id: str) -> None:
        await self._run("dead", verb.cli_name, id, *_spoken(verb.takes()))

    async def many(self, verb: Verb, ids: Sequence[str]) -> str:
        careful = ["--detach"] if verb.name in ("redrive", "edit") else []
        words = _spoken(verb.takes(many=True))
        out = await self._run("dead", verb.cli_name, *ids, *words, "--yes", "--json", *careful)
        body = msgspec.json.decode(out)
        return str(body["id"] if careful else body["act_id"])

    async def undo(self, act: str) -> None:
        await self._run("dead", "undo", act)

    async def _run(self, *words: str) -> str:
        run = CliRunner().invoke
        done = await soon(asyncio.to_thread(run, cli, [*words, "--url", self.url], standalone_mode=False))
        assert done.exception is None and not done.return_value, (words, done.output, done.exception)
        return done.stdout


def _spoken(words: Sequence[Word]) -> list[str]:
    """The words as a terminal takes them."""
    spoken: list[str] = []
    for word in words:
        value = "1d" if word.reading == "moment" else SAMPLES[word.reading]
        if not value:
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        spoken += [word.option, text] if word.option else [text]
    return spoken


class Dashboard:
    def __init__(self, served: Served) -> None:
        self.served = served

    async def one(self, verb: Verb, id: str) -> None:
        form = _form(verb, many=False)
        path = f"/jobs/{id}/edit" if verb.name == "edit" else f"/jobs/{id}/act/{verb.name}"
        await self._sent(path, form)

    async def many(self, verb: Verb, ids: Sequence[str]) -> str:
        await self._sent("/dead/act", {**_form(verb, many=True), "verb": verb.name, "ids": list(ids)})
        return (await self.served.rd.dead.acts())[0].id

    async def undo(self, act: str) -> None:
        await self._sent(f"/acts/{act}/undo", {})

    async def _sent(self, path: str, form: dict[str, Any]) -> None:
        headers = {"referer": f"{self.served.url}/dead"}
        answer = await soon(self.served.client.post(path, data=form, headers=headers))
        told = answer.cookies.get("redrive_said") or ""
        self.served.client.cookies.clear()
        assert answer.status_code == 303, answer.text
        assert not re.search("Tm90IGRvbmU", told), told  # "Not done", packed


def _form(verb: Verb, *, many: bool) -> dict[str, Any]:
    form: dict[str, Any] = {"why": "shown by a form"}
    for word in verb.takes(many=many):
        value = SAMPLES[word.reading]
        name = "days" if word.reading == "moment" else word.name
        if many and word.reading not in ("moment", "patch"):
            name = f"new_{name}"
        if value:
            form[name] = "1" if word.reading == "moment" else value if isinstance(value, str) else _json(value)
    return form


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class Model:
    """Models have tools for some verbs, for one job, and none to take anything back."""

    def __init__(self, served: Served) -> None:
        self.rd = served.rd

    async def one(self, verb: Verb, id: str) -> None:
        async with client_of(World(self.rd), allow_write=True) as client:
            why = {"why": "the mill was oiled"} if verb.why else {}
            await ask(client, str(verb.tool), failure_id=id, **said(verb), **why)

    async def tools(self) -> set[str]:
        async with client_of(World(self.rd), allow_write=True) as client:
            return set(await names(client))


class World:
    """As much of tests.mcp's world as a client needs."""

    def __init__(self, rd: redrive.Redrive) -> None:
        self.rd = rd
