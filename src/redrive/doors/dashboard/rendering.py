"""How a request is answered: by a page, by a redirect that says what happened, or by a page that says what is wrong.

A page is a template that extends base.html. Everything that changes by itself stands in its block `live`; a refresh
asks for the same address and gets that block alone. Everything that comes from a job is text: autoescape is on, and
nothing here marks a value of a job as safe.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import jinja2
import msgspec
from starlette.responses import HTMLResponse, RedirectResponse, Response

from redrive.doors.dashboard import words
from redrive.doors.dashboard.requests import LONGEST_NAME, NAME_COOKIE, NAMELESS, Form, PageRequest, pack, unpack
from redrive.doors.web.problems import MEDIA_TYPE, Problem, RequestRefused, problem_for
from redrive.errors import InvalidInput, RedriveError

if TYPE_CHECKING:
    from redrive.core.tokens import Role
    from redrive.doors.dashboard.site import Site

log = logging.getLogger("redrive.dashboard")
Values = dict[str, Any]
"""What a template shows."""
FlashKind = Literal["good", "bad"]

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
FLASH_COOKIE: Final = "redrive_said"
"""The cookie that carries what happened over a redirect."""
TITLES: Final = {
    403: "Your token may not do this",
    404: "This page does not exist",
    500: "Something went wrong",
    503: "The store does not answer",
    507: "The disk is full",
}


# -- templates

_current: ContextVar[PageRequest] = ContextVar("redrive_dashboard_request")
"""The request that is being answered. Macros do not see the context of a page, and need its addresses and its time."""


@cache
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
    for part in ("ui", "forms"):  # macros, available everywhere, also where one block is rendered alone
        environment.globals[part] = environment.get_template(f"parts/{part}.html").module
    return environment


def _now() -> float:
    return _current.get().rd.clock.now()


def may(role: Role) -> bool:
    """Tell whether the person who looks has this role. The server checks it again when something is done."""
    return _current.get().caller.may(role)


def url_for(name: str, /, *, query: Mapping[str, Any] | None = None, **path: Any) -> str:
    """Make the address of a page, as `PageRequest.address` does."""
    return _current.get().address(name, query=query, **path)


def here() -> str:
    """Give the address that is being shown, with its filters."""
    url = _current.get().url
    return f"{url.path}?{url.query}" if url.query else url.path


def with_query(**changes: Any) -> str:
    """Give the address that is being shown with other filters: None leaves one out."""
    url = _current.get().url
    given = {name: str(value) for name, value in changes.items() if value not in (None, "")}
    changed = url.remove_query_params(list(changes)).include_query_params(**given)
    return f"{changed.path}?{changed.query}" if changed.query else changed.path


def asset(path: str) -> str:
    """Give the address of a file of static/, with a mark of its contents so that a new version is fetched."""
    return f"{url_for('static', path=path)}?v={_mark(path)}"


@cache
def _mark(path: str) -> str:
    return hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:10]


# -- pages


async def render_page(request: PageRequest, template: str, *, status: int = 200, **values: Any) -> Response:
    """Render the whole page, or the one block that a refresh asks for (`HX-Target: div#live` means block `live`)."""
    page, flash = make_environment().get_template(template), _read_flash(request)
    caller = request.caller
    shared: Values = {"request": request, "flash": flash, "me": request.display_name}
    shared |= {"caller_name": caller.name, "role": caller.role, "counts": await _count_for_nav(request.site)}
    block, context = _read_block(request, page), {**shared, **values}
    token = _current.set(request)
    try:
        text = page.render(context) if block is None else _render_block(page, block, context)
    finally:
        _current.reset(token)
    body = text.encode("utf-8", "backslashreplace")  # a form may have sent half of a surrogate pair
    response = HTMLResponse(body, status, {"cache-control": "no-store", "vary": "hx-request, hx-target"})
    if flash is not None:
        response.delete_cookie(FLASH_COOKIE, request.root or "/", httponly=True, samesite="strict")
    return response


def _render_block(template: jinja2.Template, block: str, context: Values) -> str:
    """Render one block alone, with the navigation beside it, so that its counts are never older than the block."""
    text = "".join(template.blocks[block](template.new_context(context)))
    return text + make_environment().get_template("parts/nav.html").render({**context, "along": True})


def _read_block(request: PageRequest, template: jinja2.Template) -> str | None:
    """Read the block that is to be refreshed from the id of its element; None for the whole page."""
    if request.headers.get("hx-request") != "true" or request.headers.get("hx-request-type") == "full":
        return None
    name = request.headers.get("hx-target", "").partition("#")[2].replace("-", "_")
    return name if name in template.blocks else None


async def _count_for_nav(site: Site) -> Mapping[str, int]:
    """Count what the navigation shows beside its names. A page is shown even where the store cannot count."""
    try:
        numbers = await site.queue_numbers()
    except Exception as error:  # noqa: BLE001 - the page that says what is wrong must not fail for the same reason
        log.warning("the navigation shows no numbers: %r", error)
        numbers = ()
    return {"dead": sum(queue.dead for queue in numbers), "paused": sum(queue.paused for queue in numbers)}


# -- redirects, with one line that says what happened


class Flash(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line for a person after an action. `undo` is the address that takes the action back."""

    text: str
    kind: FlashKind = "good"
    undo: str | None = None


def go_to(
    request: PageRequest, address: str, text: str | None = None, *, kind: FlashKind = "good", undo: str | None = None
) -> Response:
    """Redirect to a page, which says what happened."""
    response = RedirectResponse(address, 303)
    if text is not None:
        _set_cookie(request, response, FLASH_COOKIE, msgspec.to_builtins(Flash(text[:500], kind, undo)), 60)
    return response


def go_back(request: PageRequest, text: str, *, kind: FlashKind = "good", undo: str | None = None) -> Response:
    """Redirect to the page that the form was on, which says what happened."""
    return go_to(request, request.came_from, text, kind=kind, undo=undo)


def _set_cookie(request: PageRequest, response: Response, name: str, value: Any, seconds: int) -> None:
    secure, path = request.url.scheme == "https", request.root or "/"
    response.set_cookie(name, pack(value), seconds, path=path, httponly=True, samesite="strict", secure=secure)


_LOCAL: Final = re.compile(r"/(?!/)[\w/.~%?=&+-]*")


def _read_flash(request: PageRequest) -> Flash | None:
    """Read what the last action left. A refresh of one block leaves the line for the whole page."""
    text = request.cookies.get(FLASH_COOKIE)
    if text is None or request.headers.get("hx-request-type") == "partial":
        return None
    try:
        flash = msgspec.convert(unpack(text), Flash)
    except msgspec.ValidationError:
        return None
    if flash.undo is not None and not _LOCAL.fullmatch(flash.undo):
        return msgspec.structs.replace(flash, undo=None)
    return flash


async def remember_name(request: PageRequest, form: Form) -> Response:
    """Record what the person does from now on under this name, on this browser."""
    name = form.text("name")
    if name is not None and (len(name) > LONGEST_NAME or not name.isprintable()):
        raise InvalidInput(field="name", problem=f"must be 1 to {LONGEST_NAME} printable characters")
    if name is None:
        response = go_back(request, "What you do is recorded without a name of your own.")
        response.delete_cookie(NAME_COOKIE, request.root or "/", httponly=True, samesite="strict")
    else:
        response = go_back(request, f"What you do is recorded as {request.caller.sign(name, NAMELESS)}.")
        _set_cookie(request, response, NAME_COOKIE, name, 31_536_000)
    return response


# -- what is wrong


async def show_error(request: PageRequest, error: RedriveError | RequestRefused) -> Response:
    """Send a form back to where it came from, with the reason; a page becomes a page that gives the reason."""
    log.warning("%s %s: %s", request.method, request.url.path, error)
    reason = words.capitalise(str(error))
    if request.method == "POST":
        return go_back(request, f"Not done. {reason}", kind="bad")
    return await show_problem(request, problem_for(error, request.url.path).status, reason)


async def show_forbidden(request: PageRequest, lacks: Problem) -> Response:
    """Answer 403 with the role that is needed, as a page where the caller may look at pages."""
    log.warning("%s %s: %s", request.method, request.url.path, lacks.detail)
    if not request.caller.may("look"):
        return Response(lacks.encode(), lacks.status, media_type=MEDIA_TYPE)
    hint = words.sentence(lacks.hint) if lacks.hint else ""
    reason = words.capitalise(lacks.detail or lacks.title)
    return await show_problem(request, lacks.status, f"{reason}. {hint}")


async def show_problem(request: PageRequest, status: int, reason: str) -> Response:
    """Show a page that says why there is no other."""
    title = TITLES.get(status, "That cannot be shown")
    return await render_page(request, "problem.html", status=status, title=title, reason=reason, missing=status == 404)
