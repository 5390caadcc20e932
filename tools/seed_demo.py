"""A store that looks like a small agency's after two days: for screenshots, for browser tests, for looking around.

    python -m tools.seed_demo jobs.db

Nothing is written by hand: real tasks run on a clock that is moved, fail for real and are retried, buried, redriven and
triaged through redrive's own verbs. `make_app` gives the same tasks with everything healed, so that what is redriven
afterwards succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import redrive
from redrive.testing import FakeClock

HOURS: Final = 50
"""How long the agency has been at it."""
AGENTS: Final = {
    "editor": redrive.Agent(("content_creation", "technical_writing"), ("claude-haiku", "claude-sonnet")),
    "writer": redrive.Agent(("content_creation", "social_media"), ("claude-haiku", "claude-sonnet")),
    "analyst": redrive.Agent(("research", "data"), ("gpt-5-mini", "gpt-5")),
    "clerk": redrive.Agent(("data", "billing"), ("claude-haiku",)),
    "devops": redrive.Agent(("deployment", "monitoring"), ("claude-sonnet",)),
}
MODELS: Final = {
    "claude-haiku": redrive.Model(180_000, larger="claude-sonnet", other="gpt-5-mini"),
    "claude-sonnet": redrive.Model(180_000, other="gpt-5"),
    "gpt-5-mini": redrive.Model(245_000, larger="gpt-5", other="claude-haiku"),
}


class ApiError(Exception):
    """What an HTTP API says when it says no."""

    def __init__(self, status: int, message: str, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status_code = status
        self.code = code
        self.retry_after = retry_after


class Refused(Exception):
    error_kind = "refusal"


class FeedParseError(Exception):
    """An error that no rule knows."""


class World:
    """Which parts of the world are broken now: a task asks before it does anything."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.dice = random.Random(7)
        self.posted: dict[str, str] = {}

    def down(self, what: str, share: float = 1.0) -> bool:
        return what in self.broken and self.dice.random() < share


def make_app(url: Path | str, world: World | None = None, **settings: Any) -> redrive.Redrive:
    """The agency's tasks. Without a world, everything works."""
    rd = redrive.Redrive(
        str(url), agents=AGENTS, models=MODELS, escalation="editor", version=settings.pop("version", "2.4.0"),
        queues={
            "publishing": {"max_attempts": 3, "base": 5, "concurrency": 4},
            "support": {"max_attempts": 3, "base": 5},
            "billing": {"max_attempts": 3, "base": 10, "concurrency": 2, "rate": {"count": 60, "per": 60}},
            "research": {"max_attempts": 4, "base": 4},
            "mail": {"max_attempts": 4, "base": 3},
        },
        **settings,
    )  # fmt: skip
    _publishing(rd, world or World())
    _support(rd, world or World())
    _back_office(rd, world or World())
    _research(rd, world or World())
    return rd


def _publishing(rd: redrive.Redrive, world: World) -> None:
    @rd.task("publish_article", queue="publishing", retry_on=(ConnectionError,))
    async def publish(ctx: redrive.Context, slug: str, title: str, body: str, site: str = "harbour-journal") -> str:
        """Posts an article once, then tells the newsletter."""
        if world.down("cms token"):
            raise ApiError(401, "the CMS answered 401: token expired at 02:00Z")
        posted = await ctx.once("post", lambda key: _post(world, slug, key), verify=world.posted.get)
        if world.down("newsletter", 0.5):
            raise ConnectionError("newsletter.internal:8443 closed the connection")
        return f"https://{site}.example/{posted}"

    @rd.task("write_draft", queue="publishing", adapt=redrive.Adapt(model="model"))
    async def write_draft(ctx: redrive.Context, topic: str, model: str = "claude-haiku") -> dict[str, Any]:
        ctx.usage(input_tokens=2_100, output_tokens=1_450, cost=0.011)
        return {"topic": topic, "words": 640, "by": model}

    @rd.task("review_draft", queue="publishing")
    async def review_draft(ctx: redrive.Context, draft: dict[str, Any]) -> dict[str, Any]:
        ctx.usage(input_tokens=3_900, output_tokens=310, cost=0.016)
        return {**draft, "approved": True}

    @rd.task("render_card", queue="publishing")
    async def render_card(slug: str, theme: str | None = None) -> str:
        if theme is None and world.down("renderer"):
            raise TypeError("'NoneType' object is not subscriptable")
        return f"cards/{slug}.png"

    @rd.task("moderate_comment", queue="publishing", adapt=redrive.Adapt(messages="messages", model="model"))
    async def moderate(ctx: redrive.Context, messages: list[dict[str, str]], model: str = "claude-haiku") -> str:
        ctx.usage(input_tokens=900, output_tokens=12, cost=0.002)
        if world.down("moderation") and model != "gpt-5-mini":
            raise Refused("I can't help with reviewing this content.")
        return "fine"


async def _post(world: World, slug: str, key: str) -> str:
    world.posted[key] = slug
    return slug


def _support(rd: redrive.Redrive, world: World) -> None:
    @rd.task("summarise_ticket", queue="support", adapt=redrive.Adapt(messages="messages", model="model"))
    async def summarise(ctx: redrive.Context, messages: list[dict[str, str]], model: str = "claude-haiku") -> str:
        size = sum(len(message["content"]) for message in messages) // 4
        ctx.usage(input_tokens=size, output_tokens=400, cost=round(size * 3e-6, 4))
        if world.down("summaries") and size > 60_000:
            raise ApiError(
                400, f"prompt is too long: {size + 140_311} tokens > 200000 maximum", "invalid_request_error"
            )
        return "The customer wants a refund for the second invoice."

    @rd.task("extract_invoice", queue="support", adapt=redrive.Adapt(model="model", instructions="instructions"))
    async def extract(
        ctx: redrive.Context, document: str, instructions: str = "Answer in JSON.", model: str = "claude-haiku"
    ) -> dict[str, Any]:
        ctx.usage(input_tokens=5_200, output_tokens=180, cost=0.019)
        if world.down("extraction") and "total" not in instructions:
            raise ValueError(f"total_amount: Expected `float`, got `str` (document {document})")
        return {"total_amount": 118.4, "currency": "EUR"}

    @rd.task("answer_ticket", queue="support")
    async def answer(ctx: redrive.Context, ticket: int, amount: float = 0.0) -> str:
        ctx.usage(input_tokens=1_800, output_tokens=260, cost=0.007)
        asked = f"Refund {amount:.2f} EUR for ticket {ticket}?"
        if amount > 500 and not await ctx.approval(asked, details={"amount": amount}):
            return "not refunded"
        return "answered"

    @rd.task("send_digest", queue="mail")
    async def send_digest(to: str, stories: list[str]) -> str:
        if world.down("smtp"):
            raise TimeoutError("smtp.relay.example:587 did not answer within 10 s")
        return f"sent to {to}"


def _back_office(rd: redrive.Redrive, world: World) -> None:
    @rd.task("charge_customer", queue="billing")
    async def charge(ctx: redrive.Context, customer: str, amount: float, card_token: str) -> str:
        async def pay(key: str) -> str:
            if world.down("payments"):
                raise TimeoutError("api.payments.example: read timed out after the request was sent")
            return f"ch_{key[:8]}"

        return str(await ctx.once("charge", pay))

    @rd.task("deploy_preview", queue="publishing")
    async def deploy(branch: str) -> str:
        if world.down("freeze"):
            raise redrive.GiveUp("production is frozen until Monday", recommendation="Redrive it after the freeze.")
        return f"https://{branch}.preview.example"


def _research(rd: redrive.Redrive, world: World) -> None:
    @rd.task("enrich_lead", queue="research")
    async def enrich(ctx: redrive.Context, company: str, domain: str) -> dict[str, Any]:
        ctx.usage(input_tokens=1_100, output_tokens=90, cost=0.004)
        if world.down("quota"):
            raise ApiError(429, "You exceeded your current quota, please check your plan.", "insufficient_quota")
        return {"company": company, "employees": 120}

    @rd.task("sync_contact", queue="research")
    async def sync(contact: int, fields: Mapping[str, str]) -> str:
        if world.down("crm") and contact % 3 == 0:
            raise ApiError(404, f"contact {contact} does not exist")
        return "synced"

    @rd.task("crawl_site", queue="research")
    async def crawl(url: str, depth: int = 2) -> int:
        if world.down("sites", 0.9):
            raise ApiError(503, f"upstream connect error for {url}: 503 Service Unavailable")
        return 48

    @rd.task("read_feed", queue="research")
    async def read_feed(url: str) -> int:
        if world.down("feeds"):
            raise FeedParseError(f"unexpected element <item> at line {world.dice.randrange(10, 400)}")
        return 12

    @rd.task("index_document", queue="research")
    async def index(path: str) -> int:
        if world.down("index"):
            raise sqlite3.OperationalError("database is locked")
        return 1


# ---- two days of it


Enqueue = Callable[[redrive.Redrive, int, World], Awaitable[Any]]
TOPICS: Final = ("harbour-fees", "night-ferries", "tide-tables", "quay-market", "old-lighthouse", "crane-strike")
COMPANIES: Final = ("Nordlys", "Kaikari", "Bluefin", "Portside", "Lanterna", "Windrose", "Anchorline", "Saltworks")


def _dialogue(number: int, long: bool) -> list[dict[str, str]]:
    filler = "We have looked at the account again and the second invoice still shows the old address. " * 40
    turns = 110 if long else 6
    return [
        {"role": "system", "content": "Summarise the ticket for the next shift in two sentences."},
        *(
            {"role": "assistant" if turn % 2 else "user", "content": f"[{number}.{turn}] {filler}"}
            for turn in range(turns)
        ),
        {"role": "user", "content": "Please summarise."},
    ]


async def _article(rd: redrive.Redrive, n: int, world: World) -> None:
    slug = f"{TOPICS[n % 6]}-{n}"
    payload = {"slug": slug, "title": f"What changes on the quay, part {n}", "body": "Ships that pass. " * 30}
    await rd.enqueue("publish_article", payload, idempotency_key=f"article_{n}", session_id=f"desk-{n % 4}")


async def _ticket(rd: redrive.Redrive, n: int, world: World) -> None:
    payload = {"messages": _dialogue(n, n % 3 == 0), "model": "claude-haiku"}
    await rd.enqueue("summarise_ticket", payload, agent="writer", model="claude-haiku", session_id=f"ticket-{4000 + n}")


async def _invoice(rd: redrive.Redrive, n: int, world: World) -> None:
    payload = {"document": f"inv-2026-{n:04}.pdf", "instructions": "Answer in JSON.", "model": "claude-haiku"}
    await rd.enqueue("extract_invoice", payload, agent="clerk", model="claude-haiku")


async def _comment(rd: redrive.Redrive, n: int, world: World) -> None:
    payload = {"messages": [{"role": "user", "content": f"Comment {n}: is this fine?"}], "model": "claude-haiku"}
    await rd.enqueue("moderate_comment", payload, agent="editor", model="claude-haiku")


async def _charge(rd: redrive.Redrive, n: int, world: World) -> None:
    customer = COMPANIES[n % 8].lower()
    payload = {"customer": customer, "amount": 49.0 + n, "card_token": f"tok_live_{n:06}ABCDEFGH"}
    await rd.enqueue("charge_customer", payload, idempotency_key=f"{customer}_{n}", priority="high")


async def _lead(rd: redrive.Redrive, n: int, world: World) -> None:
    payload = {"company": COMPANIES[n % 8], "domain": f"{COMPANIES[n % 8].lower()}.example"}
    await rd.enqueue("enrich_lead", payload, agent="analyst", model="gpt-5-mini")


def _plain(task: str, make: Callable[[int], dict[str, Any]], **options: Any) -> Enqueue:
    async def enqueue(rd: redrive.Redrive, n: int, world: World) -> None:
        await rd.enqueue(task, make(n), **options)

    return enqueue


WORK: Final[tuple[tuple[Enqueue, int], ...]] = (
    (_article, 1),
    (_ticket, 1),
    (_invoice, 1),
    (_comment, 3),
    (_charge, 1),
    (_lead, 1),
    (_plain("sync_contact", lambda n: {"contact": 7000 + n, "fields": {"phone": "+39 010 555"}}), 2),
    (_plain("crawl_site", lambda n: {"url": f"https://{COMPANIES[n % 8].lower()}.example/", "depth": 2}), 2),
    (_plain("read_feed", lambda n: {"url": f"https://feeds.example/{n % 9}.xml"}), 1),
    (_plain("render_card", lambda n: {"slug": f"{TOPICS[n % 6]}-{n}"}), 2),
    (_plain("send_digest", lambda n: {"to": f"reader{n}@example.org", "stories": list(TOPICS[:3])}), 1),
    (_plain("index_document", lambda n: {"path": f"archive/{n:05}.md"}), 3),
    (_plain("deploy_preview", lambda n: {"branch": f"feature-{n}"}, agent="devops"), 9),
    (_plain("answer_ticket", lambda n: {"ticket": 4000 + n, "amount": 720.0 if n % 4 == 1 else 20.0}), 6),
)
"""What arrives, and every how many hours."""

TROUBLES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "cms token": ((44, 50),),
    "newsletter": ((8, 12), (30, 34)),
    "summaries": ((0, 50),),
    "extraction": ((12, 47),),
    "moderation": ((20, 40),),
    "payments": ((26, 29), (45, 47)),
    "quota": ((36, 50),),
    "crm": ((4, 50),),
    "sites": ((16, 22), (40, 44)),
    "feeds": ((38, 50),),
    "renderer": ((24, 46),),
    "smtp": ((47, 50),),
    "index": ((10, 13),),
    "freeze": ((27, 50),),
}
"""What is broken, from hour to hour."""


async def seed(url: Path | str, *, now: float | None = None, hours: int = HOURS) -> None:
    """Fill a new store with the last two days, up to now."""
    end = time.time() if now is None else now
    clock, world = FakeClock(end - hours * 3600.0 - 60), World()
    rd = make_app(url, world, clock=clock, version="2.3.1")
    async with rd:
        for hour in range(hours):
            world.broken = {what for what, spans in TROUBLES.items() if any(a <= hour < b for a, b in spans)}
            await _hour(rd, hour, world)
            await _events(rd, hour)
            await _pass(rd, clock, 3600.0)
        await _triage(rd)
        clock.advance(max(0.0, end - clock.now()))
        await _last_minutes(rd, world)


async def _hour(rd: redrive.Redrive, hour: int, world: World) -> None:
    for number, (enqueue, every) in enumerate(WORK):
        if (hour + number) % every == 0:
            await enqueue(rd, hour, world)


async def _pass(rd: redrive.Redrive, clock: FakeClock, seconds: float) -> None:
    """Let time go by, running what falls due on the way."""
    for step in (0.0, 20.0, 60.0, 180.0, 600.0):
        clock.advance(step)
        await rd.drain(heartbeats=False)
    await rd.groups.look()
    clock.advance(seconds - 860.0)


async def _events(rd: redrive.Redrive, hour: int) -> None:
    """What people did meanwhile."""
    if hour == 5:
        await _workflow(rd)
    if hour >= 45:  # a busy morning meets an expired token
        for number in range(4):
            await _article(rd, 100 * (number + 1) + hour, World())
    if hour in (13, 35):  # what was down is up again: some are brought back
        task = {13: "index_document", 35: "publish_article"}[hour]
        for job in (await rd.dead.list(task=task, limit=8)).jobs:
            await rd.dead.redrive(job.id, who="mira", why="it answers again")
    if hour == 30:
        for job in (await rd.jobs.list(state="held", because="outcome_unknown", limit=2)).jobs:
            await rd.jobs.resolve(job.id, landed=True, who="jonas", why="seen in the payments console")
    if hour == 23:
        await rd.redrives.start(task="crawl_site", canary=2, rate=5.0, who="mira", why="the sites answer again")
    if hour == 41:
        for job in (await rd.dead.list(task="moderate_comment", limit=3)).jobs:
            await rd.dead.discard(job.id, who="mira", why="the thread was deleted")


async def _workflow(rd: redrive.Redrive) -> None:
    flow = rd.workflow("weekly-feature")
    draft = flow.add("write_draft", topic="the night ferries", model="claude-haiku")
    review = flow.add("review_draft", draft=draft.output)
    flow.add("render_card", slug="night-ferries-weekly", after=[review])
    await flow.start(idempotency_key="weekly_46")


async def _triage(rd: redrive.Redrive) -> None:
    """Where the groups stand this morning."""
    found = {group.group.task: group.fingerprint for group in await rd.groups.list()}
    if "index_document" in found:
        await rd.groups.resolve(found["index_document"], who="mira", why="WAL is on now", in_version="2.4.0")
    if "deploy_preview" in found:
        until = timedelta(days=3)
        await rd.groups.ignore(found["deploy_preview"], until=until, who="jonas", why="change freeze, known")
    if "sync_contact" in found:
        await rd.groups.note(found["sync_contact"], "Asked sales: these contacts were merged on Friday.", who="mira")
    for job in (await rd.dead.list(task="enrich_lead", limit=2)).jobs:
        await rd.dead.defer(
            job.id, owner="mira", until=timedelta(days=1), who="jonas", why="the quota is raised tomorrow"
        )
    for job in (await rd.dead.list(task="sync_contact", limit=1)).jobs:
        await rd.dead.note(job.id, "Sales knows this contact under another number; see the CRM.", who="mira")
    for job in (await rd.dead.list(task="extract_invoice", limit=1)).jobs:
        payload = {**job.arguments, "instructions": "Answer in JSON. total_amount is a number without a currency."}
        await rd.dead.edit(job.id, payload, who="mira", why="say what total_amount is")


async def _last_minutes(rd: redrive.Redrive, world: World) -> None:
    """Something is under way when one looks: a workflow in the middle, and work for later."""
    world.broken = {"renderer"}
    flow = rd.workflow("monthly-feature")
    draft = flow.add("write_draft", topic="tide tables", model="claude-haiku")
    card = flow.add("render_card", slug="tide-tables-monthly", after=[draft])
    flow.add("review_draft", draft=draft.output, after=[card])
    await flow.start(idempotency_key="monthly_11")
    await rd.drain(heartbeats=False)
    await rd.redrives.start(task="render_card", canary=3, who="mira", why="the renderer was redeployed")
    await rd.drain(heartbeats=False)
    for n in range(14):
        await rd.enqueue("crawl_site", {"url": f"https://later.example/{n}"}, delay=600 + 60 * n)
    for n in range(9):
        await rd.enqueue("send_digest", {"to": f"late{n}@example.org", "stories": []})


def main() -> None:
    logging.disable(logging.WARNING)  # two days of failures, each of which is told in the store
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "demo.db")
    if path.exists():
        sys.exit(f"{path} exists already")
    asyncio.run(seed(path))


if __name__ == "__main__":
    main()
