"""How pages are made: one template environment, one way to answer, to act and to say what happened.

A page is a template that extends base.html. Everything that changes by itself stands in its block `live`; a refresh
asks for the same address, and gets that block alone. Everything that comes from a job is text: autoescape is on, and
nothing here marks a value of a job as safe.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import jinja2
import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router

from redrive.core.tokens import OWNER
from redrive.doors.dashboard import words
from redrive.doors.web.callers import caller_of, lacking
from redrive.doors.web.problems import MEDIA_TYPE, Problem, Refused
from redrive.errors import (
    IllegalMove,
    InvalidInput,
    JobNotFound,
    JobNotReady,
    RedriveError,
    StaleJob,
    StoreBusy,
    StoreError,
    StoreFull,
)

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.core.tokens import Role
    from redrive.doors.web.feed import Feed, Tick

log = logging.getLogger("redrive.dashboard")
View = Callable[[Request], Awaitable[Response]]
Kind = Literal["good", "bad"]

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
SITE: Final = "redrive.site"
"""Where a request's scope carries the site."""
SAID: Final = "redrive_said"
"""The cookie that carries what happened over a redirect."""
ME: Final = "redrive_me"
"""The cookie that carries the name a person wants to be recorded with."""
SOMEBODY: Final = "dashboard"
LONGEST_FORM: Final = 4 * 1024 * 1024
"""A payload of the largest size that is accepted, as a form writes it."""
TITLES: Final = {
    403: "Your token may not do this",
    404: "This page does not exist",
    500: "Something went wrong",
    503: "The store does not answer",
    507: "The disk is full",
}
MOST_KEPT: Final = 200
FRESH_SECONDS: Final = 0.8
"""So long a number that every page shows is not asked for again: many open pages cost as much as one."""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line for a person after an action. `undo` is the address that takes it back."""

    text: str
    kind: Kind = "good"
    undo: str | None = None


class Form(ImmutableMultiDict[str, str]):
    """What a form sent. `text` is trimmed, and None where nothing was written."""

    def text(self, name: str) -> str | None:
        return self.get(name, "").strip() or None

    def all(self, name: str) -> list[str]:
        return [value for value in self.getlist(name) if value]


class _Kept(NamedTuple):
    """An answer, and whether it holds although something happened since."""

    value: Any
    at: float
    lasts: bool


class Site:
    """What all pages share: the queue they show, the feed, the templates and the addresses."""

    def __init__(self, rd: Redrive, feed: Feed) -> None:
        self.rd = rd
        self.feed = feed
        self.router = Router()
        self.environment = make_environment()
        self._kept: dict[str, _Kept] = {}
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._heard = 0
        self._addresses: dict[tuple[str, tuple[str, ...]], str] = {}
        self.needs: dict[tuple[str, str], Role] = {}
        """By method and path, the role that a token needs."""
        self.told: tuple[object, bytes] | None = None
        """The latest tick, as every open page gets it."""

    def path(self, name: str, path: dict[str, Any]) -> str:
        """The path of a page; looking it up walks all routes, so the pattern is remembered."""
        key = (name, tuple(path))
        if key not in self._addresses:
            self._addresses[key] = str(self.router.url_path_for(name, **{part: f"~{part}~" for part in path}))
        found = self._addresses[key]
        for part, value in path.items():
            found = found.replace(f"~{part}~", quote(str(value), safe="/" if part == "path" else ""))
        return found

    async def fresh(self, name: str, ask: Callable[[], Awaitable[Any]], seconds: float | None = None) -> Any:
        """What was answered a moment ago, else what is answered now. With `seconds` it may be as old as that.

        Without, whatever happens in the store makes it stale at once. Who asks while it is being answered gets the
        same answer: many open pages cost as much as one.
        """
        now = self.rd.clock.monotonic()
        found = self._kept.get(name)
        if found is not None and 0 <= now - found.at < (FRESH_SECONDS if seconds is None else seconds):
            return found.value
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.ensure_future(self._answer(name, ask, now, lasts=seconds is not None))
            asked.add_done_callback(partial(self._answered, name))
        return await asyncio.shield(asked)  # who leaves early does not take the answer from the others

    async def _answer(self, name: str, ask: Callable[[], Awaitable[Any]], now: float, *, lasts: bool) -> Any:
        heard = self._heard
        value = await ask()
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        if heard == self._heard:  # else something happened meanwhile, and the answer may be older than that
            self._kept[name] = _Kept(value, now, lasts)
        return value

    def _answered(self, name: str, asked: asyncio.Future[Any]) -> None:
        if self._asked.get(name) is asked:
            del self._asked[name]
        if not asked.cancelled():
            asked.exception()  # told to whoever waits; nobody may be left

    def note(self, tick: Tick) -> None:
        """Something happened: whoever is told so must see it when they look."""
        if tick.events:
            self._kept = {name: kept for name, kept in self._kept.items() if kept.lasts}
            self._asked.clear()
            self._heard += 1

    def changed(self) -> None:
        """Somebody acted here: the next page shows it."""
        self._kept.clear()
        self._asked.clear()
        self._heard += 1

    def route(self, path: str, view: View, name: str, *, post: bool = False, role: Role | None = None) -> Route:
        """One line of the table of pages. A page needs a token that may look, a form one that may act, unless `role`
        says otherwise."""
        needs: Role = role or ("act" if post else "look")
        self.needs["POST" if post else "GET", path] = needs
        return Route(path, self._served(view, needs), name=name, methods=["POST"] if post else ["GET"])

    def _served(self, view: View, needs: Role) -> View:
        """The view with the site at hand; what redrive refuses becomes a page or a line, never a traceback."""

        async def served(request: Request) -> Response:
            request.scope[SITE] = self
            if (lacks := lacking(request.scope, needs)) is not None:
                return await forbidden(request, lacks)
            try:
                return await view(request)
            except (RedriveError, Refused) as error:
                return await refused(request, error)
            except HTTPException:
                raise
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                return await problem(request, 500, "This is a defect of redrive. The log of the server says more.")
            finally:
                if request.method == "POST":
                    self.changed()

        return served


# -- templates

_asking: ContextVar[Request] = ContextVar("redrive_dashboard_request")
"""The request that is being answered: addresses and times are told relative to it."""


def make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.do"],
    )
    environment.globals.update(url_for=url_for, asset=asset, here=here, with_query=with_query, now=_now, may=may)
    environment.filters.update(words.FILTERS)
    environment.tests["instant"] = words.is_instant
    environment.filters["ago"] = lambda at: words.ago(at, _now())
    for part in ("ui", "forms"):  # macros, at hand everywhere, also where one block is rendered alone
        environment.globals[part] = environment.get_template(f"parts/{part}.html").module
    return environment


def _now() -> float:
    return site_of(_asking.get()).rd.clock.now()


def may(role: Role) -> bool:
    """Whether the person who looks may do what needs this role. The server asks again when it is done."""
    return caller_of(_asking.get().scope).may(role)


def url_for(name: str, /, *, query: Mapping[str, Any] | None = None, **path: Any) -> str:
    """The address of a page, relative to wherever the dashboard is mounted."""
    request = _asking.get()
    found = root_of(request) + site_of(request).path(name, path)
    return f"{found}?{_encoded(query)}" if query and _encoded(query) else found


def _encoded(query: Mapping[str, Any]) -> str:
    return urlencode({name: value for name, value in query.items() if value not in (None, "")}, doseq=True)


def here() -> str:
    """The address that is being shown, with its filters."""
    url = _asking.get().url
    return f"{url.path}?{url.query}" if url.query else url.path


def with_query(**changed: Any) -> str:
    """The address that is being shown, with other filters: None leaves one out."""
    request = _asking.get()
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in changed]
    added = [(name, value) for name, value in changed.items() if value not in (None, "")]
    return f"{request.url.path}?{urlencode(kept + added)}" if kept or added else request.url.path


def asset(path: str) -> str:
    """A file of static/, with a mark of its contents so that a new version is fetched."""
    return f"{url_for('static', path=path)}?v={_mark(path)}"


_marks: dict[str, str] = {}


def _mark(path: str) -> str:
    if path not in _marks:
        _marks[path] = hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:10]
    return _marks[path]


# -- asking


def site_of(request: Request) -> Site:
    site: Site = request.scope[SITE]
    return site


def rd_of(request: Request) -> Redrive:
    return site_of(request).rd


def root_of(request: Request) -> str:
    """The prefix under which the dashboard is mounted; empty at the root."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def who(request: Request) -> str:
    """Who acts, for the record: the name of the token, with the name that the person gave beside it."""
    return caller_of(request.scope).sign(_given_name(request), SOMEBODY)


def _given_name(request: Request) -> str | None:
    """The name that a person wants to be recorded with, as this browser keeps it."""
    name = _unpacked(request.cookies.get(ME, ""))
    return name if isinstance(name, str) and 0 < len(name) <= 60 and name.isprintable() else None


def _me(request: Request) -> str:
    """What a person is called on the pages. The owner's token says nothing about the person."""
    name = caller_of(request.scope).name
    return _given_name(request) or (name if name not in (None, OWNER) else None) or SOMEBODY


async def form_of(request: Request) -> Form:
    """The fields of a form, counted while they come in."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", ""):
        raise InvalidInput(field="content-type", problem=f"{kind!r} is not a form's")
    body = await _received(request)
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20_000)
    except ValueError as error:
        raise InvalidInput(field="form", problem=f"cannot be read: {error}") from None
    return Form(pairs)


async def _received(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_FORM:
                raise InvalidInput(field="form", problem=f"is larger than {LONGEST_FORM:,} bytes")
    except ClientDisconnect:
        raise InvalidInput(field="form", problem="is not complete: the connection was closed") from None
    return bytes(body)


# -- answering


async def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """The whole page, or the one block that a refresh asked for (`HX-Target: div#live` → block `live`)."""
    site = site_of(request)
    found = site.environment.get_template(template)
    block = _block(request, found)
    said = _said(request)
    caller = caller_of(request.scope)
    shared = {"request": request, "said": said, "me": _me(request), "caller_name": caller.name, "role": caller.role}
    context = {**shared, "counts": await _counts(site), **values}
    token = _asking.set(request)
    try:
        text = found.render(context) if block is None else _part(site, found, block, context)
    finally:
        _asking.reset(token)
    body = text.encode("utf-8", "backslashreplace")  # a form may have spelled half a character
    response = HTMLResponse(body, status, {"cache-control": "no-store", "vary": "hx-request, hx-target"})
    if said is not None:
        response.delete_cookie(SAID, root_of(request) or "/", httponly=True, samesite="strict")
    return response


def _part(site: Site, template: jinja2.Template, block: str, context: Mapping[str, Any]) -> str:
    """One block alone; what stands beside the names of the pages comes along, so that it is never older."""
    text = "".join(template.blocks[block](template.new_context(dict(context))))
    return text + site.environment.get_template("parts/nav.html").render({**context, "along": True})


def _block(request: Request, template: jinja2.Template) -> str | None:
    """The block named by the id of the element that is to be refreshed."""
    if request.headers.get("hx-request") != "true" or request.headers.get("hx-request-type") == "full":
        return None
    name = request.headers.get("hx-target", "").partition("#")[2].replace("-", "_")
    return name if name in template.blocks else None


async def _counts(site: Site) -> Mapping[str, int]:
    """What the navigation says beside its names. A page is shown even where the store cannot tell."""
    try:
        numbers = await numbers_of(site)
    except Exception as error:  # noqa: BLE001 - the page that says what is wrong must not fail for the same reason
        log.warning("the navigation shows no numbers: %r", error)
        numbers = ()
    return {"dead": sum(queue.dead for queue in numbers), "paused": sum(queue.paused for queue in numbers)}


async def numbers_of(site: Site) -> Sequence[Any]:
    """Every queue's numbers, at most a moment old."""
    found: Sequence[Any] = await site.fresh("numbers", site.rd.numbers)
    return found


def to(
    request: Request, address: str, text: str | None = None, *, kind: Kind = "good", undo: str | None = None
) -> Response:
    """On to a page, which says what happened."""
    response = RedirectResponse(address, 303)
    if text is not None:
        packed = _packed(msgspec.to_builtins(Said(text[:500], kind, undo)))
        response.set_cookie(
            SAID, packed, max_age=60, path=root_of(request) or "/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
    return response


def back(request: Request, text: str, *, kind: Kind = "good", undo: str | None = None) -> Response:
    """To the page that the form was on, which says what happened."""
    return to(request, came_from(request), text, kind=kind, undo=undo)


def came_from(request: Request) -> str:
    """The page that the form was on, if it is one of ours; else the first page."""
    said = request.headers.get("hx-current-url") or request.headers.get("referer", "")
    root = root_of(request)
    try:
        parts = urlsplit(said)
    except ValueError:
        return f"{root}/"
    if parts.netloc == request.headers.get("host", "") and parts.path.startswith(f"{root}/"):
        path = "/" + parts.path.lstrip("/")  # one slash: two would name another host
        return f"{path}?{parts.query}" if parts.query else path
    return f"{root}/"


def address(request: Request, name: str, /, *, query: Mapping[str, Any] | None = None, **path: Any) -> str:
    """`url_for`, outside of templates."""
    token = _asking.set(request)
    try:
        return url_for(name, query=query, **path)
    finally:
        _asking.reset(token)


async def refused(request: Request, error: RedriveError | Refused) -> Response:
    """A form goes back to where it was sent from, with the reason; a page becomes a page that says why."""
    log.warning("%s %s: %s", request.method, request.url.path, error)
    if request.method == "POST":
        return back(request, f"Not done. {_reason(error)}", kind="bad")
    return await problem(request, _status(error), _reason(error))


async def forbidden(request: Request, lacks: Problem) -> Response:
    """403 with the role that is needed, as a page for who may look at pages."""
    log.warning("%s %s: %s", request.method, request.url.path, lacks.detail)
    if not caller_of(request.scope).may("look"):
        return Response(lacks.encode(), lacks.status, media_type=MEDIA_TYPE)
    said = lacks.detail or lacks.title
    return await problem(request, lacks.status, f"{said[:1].upper()}{said[1:]}. {_hint(lacks)}")


def _hint(lacks: Problem) -> str:
    hint = lacks.hint or ""
    return f"{hint[:1].upper()}{hint[1:]}." if hint else ""


async def problem(request: Request, status: int, reason: str) -> Response:
    """A page that says why there is no other."""
    return await page(
        request, "problem.html", status=status, title=TITLES.get(status, "That cannot be shown"), reason=reason,
        missing=status == 404,
    )  # fmt: skip


def _reason(error: Exception) -> str:
    said = str(error)
    return said[:1].upper() + said[1:]


def _status(error: RedriveError | Refused) -> int:
    if isinstance(error, Refused):
        return error.problem.status
    if isinstance(error, JobNotFound):
        return 404
    if isinstance(error, InvalidInput):
        return 422
    if isinstance(error, IllegalMove | StaleJob | JobNotReady):
        return 409
    if isinstance(error, StoreFull):
        return 507
    return 503 if isinstance(error, StoreBusy | StoreError) else 500


# -- what is said over a redirect


def _packed(value: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def _unpacked(text: str) -> Any:
    """None where somebody else wrote it."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return None


_LOCAL: Final = re.compile(r"/(?!/)[\w/.~%?=&+-]*")


def _said(request: Request) -> Said | None:
    """What the last action said. A refresh of one part leaves it for the page."""
    text = request.cookies.get(SAID)
    if text is None or request.headers.get("hx-request-type") == "partial":
        return None
    try:
        said = msgspec.convert(_unpacked(text), Said)
    except msgspec.ValidationError:
        return None
    if said.undo is not None and not _LOCAL.fullmatch(said.undo):
        return msgspec.structs.replace(said, undo=None)
    return said


_NAMELESS: Final = "What you do is recorded without a name of your own."


def remember_me(request: Request, name: str | None) -> Response:
    """From now on the person acts under this name, on this browser."""
    if name is not None and (len(name) > 60 or not name.isprintable()):
        raise InvalidInput(field="name", problem="must be 1 to 60 printable characters")
    signed = caller_of(request.scope).sign(name, SOMEBODY)
    response = back(request, f"What you do is recorded as {signed}." if name else _NAMELESS)
    path = root_of(request) or "/"
    if name:
        response.set_cookie(ME, _packed(name), max_age=31_536_000, path=path, httponly=True, samesite="strict")
    else:
        response.delete_cookie(ME, path, httponly=True, samesite="strict")
    return response


Routes = Sequence[BaseRoute]
