"""Row 10: every page and every REST answer with a million jobs and a hundred thousand dead letters behind it."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import math
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from benchmarks.bench import Bench, Check, child
from redrive import Redrive, asgi

LIMIT_MS = 100
TOKEN = "a-token-for-the-benchmark-alone"
HOST = "127.0.0.1:8420"
PATTERNS = 120
LISTED = 6
Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


async def ask(app: App, address: str) -> tuple[int, bytes]:
    """One GET without a network: status and body."""
    parts = urlsplit(address)
    scope: Message = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": parts.path, "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "root_path": "",
        "headers": [(b"host", HOST.encode()), (b"authorization", f"Bearer {TOKEN}".encode()), (b"accept", b"*/*")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8420), "state": {},
    }  # fmt: skip
    status, body = 0, []
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        return next(asked, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        body.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception as error:
        return 500, repr(error).encode()  # whoever asked names the address
    return status, b"".join(body)


# -- which addresses there are


_LINK = re.compile(rb"""(?:href|hx-get)="([^"#]+)""")
_VALUES = (
    (re.compile(r"[0-9a-f]{32}"), "{id}"),
    (re.compile(r"[0-9a-f]{16}"), "{group}"),
    (re.compile(r"(queue|session|agent|flow)-\d+"), r"{\1}"),
    (re.compile(r"\d+"), "{n}"),
)
UNTIMED = frozenset({"/live", "/v1/events", "/dead/export", "/v1/dead-letters/export"})
"""Streams, which row 11 is about, and downloads of everything, which take as long as there is something."""


def pattern(address: str) -> str:
    """What an address is one of: the same page with other values is the same pattern."""
    parts = urlsplit(address)
    path = parts.path
    for value, name in _VALUES:
        path = value.sub(name, path)
    keys = sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)})
    return path + ("?" + "&".join(keys) if keys else "")


def links(page: bytes) -> Iterator[str]:
    for found in _LINK.findall(page):
        parts = urlsplit(html.unescape(found.decode()))
        ours = not parts.scheme or parts.netloc == HOST
        if ours and parts.path.startswith("/") and not parts.path.startswith("/static") and parts.path not in UNTIMED:
            yield parts.path + (f"?{parts.query}" if parts.query else "")


async def pages(app: App, samples: dict[str, list[str]], each: int) -> dict[str, list[str]]:
    """Every page that can be reached from the first one and from a dead letter, so many of each kind."""
    letter = samples["dead-letters/id"][0]
    ahead = ["/", f"/jobs/{letter}", f"/jobs/{letter}/edit", f"/find?id={letter}"]
    found = {pattern(address): [address] for address in ahead}
    while ahead:
        _, body = await ask(app, ahead.pop(0))
        for address in links(body):
            known = found.setdefault(pattern(address), [])
            if address not in known and len(known) < each and len(found) <= PATTERNS:
                known.append(address)
                ahead.append(address)
    return {name: known for name, known in found.items() if known and not name.startswith(("/v1", "/openapi"))}


async def answers(app: App, samples: dict[str, list[str]], each: int) -> dict[str, list[str]]:
    """Every GET of the OpenAPI document, and once more with each filter that it takes."""
    _, body = await ask(app, "/openapi.json")
    document = json.loads(body)
    found: dict[str, list[str]] = {"/openapi.json": ["/openapi.json"]}
    for path, methods in document["paths"].items():
        if "get" not in methods or path in UNTIMED:
            continue
        for place in range(each):
            address = _filled(path, samples, place)
            if address is None:
                continue
            found.setdefault(path, []).append(address)
            for parameter in methods["get"].get("parameters", []):
                name = parameter["name"]
                if parameter["in"] == "query" and name in samples:
                    value = samples[name][place % len(samples[name])]
                    found.setdefault(f"{path}?{name}", []).append(f"{address}?{urlencode({name: value})}")
    return found


def _filled(path: str, samples: dict[str, list[str]], place: int) -> str | None:
    """The path with values for its names; None where there is nothing of that kind in the store."""
    for noun, name in re.findall(r"([\w-]+)/\{(\w+)\}", path):
        values = samples.get(f"{noun}/{name}") or samples.get(name)
        if not values:
            return None
        path = path.replace("{" + name + "}", quote(values[place % len(values)]), 1)
    return path


async def values_of(rd: Redrive) -> dict[str, list[str]]:
    """What there is in the store to ask about, by the names that the API uses; often also something that is not."""
    dead = (await rd.dead.list(limit=2)).jobs
    done = (await rd.jobs.list(state="done", limit=1)).jobs
    flow = (await rd.workflows.list(limit=1))[0].id
    groups = [job.fingerprint or "" for job in dead]
    day = time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime(time.time() - 86_400))
    return {
        "jobs/id": [dead[0].id, done[0].id], "operations/id": [done[0].id],
        "redrives/id": [run.id for run in await rd.redrives.list(limit=2)],
        "dead-letters/id": [job.id for job in dead],
        "groups/fingerprint": groups, "groups/id": groups, "groups/group": groups, "workflows/id": [flow],
        "fingerprint": groups, "group": groups,
        "queues/name": ["queue-03"], "name": ["queue-03"],
        "sessions/id": ["session-17"], "session": ["session-17", "nobody"], "session_id": ["session-17", "nobody"],
        "queue": [dead[0].queue, "nowhere"], "task": [dead[0].task, "nothing"], "agent": ["agent-3", "nobody"],
        "state": ["dead", "waiting"], "lane": ["manual", "delayed"], "because": ["permanent", "too_old"],
        "category": ["permanent", "unknown"], "detail": ["bug", "quota"], "error_class": ["KeyError", "NoSuchError"],
        "error_kind": ["nothing"], "reason": ["retry", "direct"], "owner": ["ceo", "nobody"],
        "since": [day], "until": [day], "limit": ["50", "200"], "status": ["unresolved"],
    }  # fmt: skip


# -- asking


async def server_times(folder: Path, jobs: int, times: int, each: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of every page and every answer: {"pages": {pattern: [ms, …]}, "rest": {…}}."""
    logging.getLogger("redrive").setLevel(logging.CRITICAL)
    async with Redrive(filled(folder, jobs)) as rd:
        app = asgi(rd, token=TOKEN)
        samples = await values_of(rd)
        kinds = {"pages": await pages(app, samples, each), "rest": await answers(app, samples, each)}
        return {kind: {name: await _asked(app, known, times) for name, known in found.items()}
                for kind, found in kinds.items()}  # fmt: skip


async def medians(folder: Path, jobs: int, times: int) -> dict[str, float]:
    """The mean, over all pages and over all answers, of their medians in ms."""
    found = await server_times(folder, jobs, times, 1)
    return {kind: statistics.mean(map(statistics.median, times.values())) for kind, times in found.items()}


async def _asked(app: App, addresses: list[str], times: int) -> list[float]:
    """In turn, after a first time that does not count."""
    taken = []
    for number in range(times + len(addresses)):
        address = addresses[number % len(addresses)]
        await asyncio.sleep(0)
        begun = time.perf_counter()
        status, body = await ask(app, address)
        seconds = time.perf_counter() - begun
        assert status < 500, f"{address} answered {status}: {body[:300]!r}"
        if number >= len(addresses):
            taken.append(seconds * 1e3)
    return taken


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def row_10(bench: Bench) -> list[Check]:
    jobs, asked = bench.size(1_100_000, 1_100), {"times": bench.size(24, 1), "each": bench.size(2, 1)}
    work = f"{jobs:,} jobs, {jobs // 11:,} dead letters"
    found = bench.stages(
        work,
        {
            "filling": lambda: child("benchmarks.scale:filled", bench.folder, {"jobs": jobs}),
            "asking": lambda: child("benchmarks.scale:server_times", bench.folder, {"jobs": jobs, **asked}),
        },
    )["asking"]
    return [
        _judged(f"{len(found['pages'])} pages of the dashboard at {work}, server time (p95)", found["pages"]),
        _judged(f"{len(found['rest'])} REST answers at {work}, server time (p95)", found["rest"], aim=30),
    ]


def filled(folder: Path, jobs: int) -> str:
    """Make the store, or find it; only this knows rooms inside redrive, which another checkout may not have."""
    from benchmarks.large_store import large_store

    return str(large_store(jobs))


def _judged(work: str, found: dict[str, list[float]], aim: float | None = None) -> Check:
    """By the slowest of them."""
    slowest = sorted(found, key=lambda name: -percentile(found[name], 0.95))
    everything = [value for values in found.values() for value in values]
    said = {"all": f"{percentile(everything, 0.5):.1f} ms (p50)"}
    said |= {f"`{name}`": f"{percentile(found[name], 0.95):.0f} ms" for name in slowest[:LISTED]}
    return Check(10, work, percentile(found[slowest[0]], 0.95), "≤", LIMIT_MS, "ms", said, found, aim)
