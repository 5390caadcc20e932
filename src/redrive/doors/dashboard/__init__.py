"""The dashboard: plain pages over GET, actions by POST forms, and one stream that tells open pages to refresh.

`PAGES` and `ACTIONS` are its tables. A page loads values and names the template that shows them; an action reads a
form and redirects. `routes(rd, feed)` gives everything under one prefix; doors/web mounts it behind the guard.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from redrive.core.tokens import Role
from redrive.doors.dashboard import (
    agents,
    bulk_actions,
    dead_letters,
    edit,
    group,
    job,
    jobs,
    live,
    operations,
    overview,
    redrives,
)
from redrive.doors.dashboard.rendering import (
    STATIC,
    Values,
    remember_name,
    render_page,
    show_error,
    show_forbidden,
    show_problem,
)
from redrive.doors.dashboard.requests import SITE, Form, PageRequest
from redrive.doors.dashboard.site import Site
from redrive.doors.web.problems import RequestRefused
from redrive.doors.web.tokens import find_lacking_role
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

log = logging.getLogger("redrive.dashboard")


class PageRoute(NamedTuple):
    """A line of the table of pages. A loader that returns a response has answered by itself."""

    path: str
    name: str
    load: Callable[[PageRequest], Awaitable[Values | Response]]
    template: str = ""
    section: str = ""
    """The entry of the navigation that is marked."""
    role: Role = "look"
    method: str = "GET"

    async def answer(self, request: PageRequest) -> Response:
        values = await self.load(request)
        if not isinstance(values, dict):
            return values
        return await render_page(request, self.template, **{"section": self.section, **values})


class ActionRoute(NamedTuple):
    """A line of the table of actions."""

    path: str
    name: str
    run: Callable[[PageRequest, Form], Awaitable[Response]]
    role: Role = "act"
    method: str = "POST"

    async def answer(self, request: PageRequest) -> Response:
        return await self.run(request, await request.read_form())


PAGES: Final = (
    PageRoute("/", "overview", overview.show_overview, "overview.html", "overview"),
    PageRoute("/live", "live", live.stream_ticks),
    PageRoute("/find", "find", jobs.find_job, "found.html"),
    PageRoute("/jobs", "jobs", jobs.list_jobs, "jobs.html", "jobs"),
    PageRoute("/moves", "moves", jobs.list_moves, "moves.html", "jobs"),
    PageRoute("/dead", "dead_letters", dead_letters.list_dead_letters, "dead_letters.html", "dead_letters"),
    PageRoute("/held", "held", dead_letters.list_held, "held.html", "dead_letters"),
    PageRoute("/dead/export", "export", dead_letters.export_dead_letters),
    PageRoute("/dead/act", "act", bulk_actions.plan_action, "act.html", "dead_letters"),
    PageRoute("/dead/edit", "edit_many", edit.show_patch_editor),
    PageRoute("/acts", "acts", bulk_actions.list_acts, "acts.html", "dead_letters"),
    PageRoute("/groups/{fingerprint}", "group", group.show_group, "group.html", "dead_letters"),
    PageRoute("/jobs/{id}", "job", job.show_job, "job.html"),
    PageRoute("/jobs/{id}/download/{part}", "job_download", job.download_part),
    PageRoute("/jobs/{id}/edit", "job_edit", edit.show_editor, "edit.html", "dead_letters"),
    PageRoute("/redrives", "redrives", redrives.list_redrives, "redrives.html", "redrives"),
    PageRoute("/redrives/{id}", "redrive", redrives.show_redrive, "redrive.html", "redrives"),
    PageRoute("/queues", "queues", operations.list_queues, "queues.html", "queues"),
    PageRoute("/workers", "workers", operations.list_workers, "workers.html", "workers"),
    PageRoute("/tasks", "tasks", operations.list_tasks, "tasks.html", "workers"),
    PageRoute("/schedules", "schedules", operations.list_schedules, "schedules.html", "workers"),
    PageRoute("/breakers", "breakers", operations.list_breakers, "breakers.html", "workers"),
    PageRoute("/morning", "morning", overview.show_morning, "morning.html", "morning"),
    PageRoute("/agents", "agents", agents.list_agents, "agents.html", "agents"),
    PageRoute("/workflows", "workflows", agents.list_workflows, "workflows.html", "workflows"),
    PageRoute("/fleet", "fleet", operations.show_fleet, "fleet.html", "fleet"),
    PageRoute("/inbox", "sessions", agents.show_inbox),
)
ACTIONS: Final = (
    ActionRoute("/me", "me", remember_name, role="look"),
    ActionRoute("/dead/act", "act", bulk_actions.act_on_many),
    ActionRoute("/dead/purge", "purge", bulk_actions.purge, role="purge"),
    ActionRoute("/dead/edit", "edit_many", edit.patch_many),
    ActionRoute("/dead/edit/preview", "edit_many_preview", edit.preview_patch),
    ActionRoute("/acts/{id}/undo", "undo", bulk_actions.undo),
    ActionRoute("/groups/{fingerprint}/{verb}", "group_act", group.act_on_group),
    ActionRoute("/jobs/{id}/edit", "job_edit", edit.edit_job),
    ActionRoute("/jobs/{id}/preview", "job_preview", edit.preview_edit),
    ActionRoute("/jobs/{id}/edit/all", "edit_all_like", edit.make_patch),
    ActionRoute("/jobs/{id}/act/{verb}", "job_act", job.act_on_job),
    ActionRoute("/redrives/{id}/{verb}", "redrive_act", redrives.act_on_redrive),
    ActionRoute("/queues/pause", "pause", operations.pause_queue),
    ActionRoute("/queues/resume", "resume", operations.resume_queue),
    ActionRoute("/breakers/close", "close_breaker", operations.close_breaker),
    ActionRoute("/workflows/{id}/cancel", "cancel_workflow", agents.cancel_workflow),
    ActionRoute("/inbox/seen", "seen", agents.mark_seen),
    ActionRoute("/inbox/answer", "answer", agents.answer_job),
)

_sites: WeakKeyDictionary[Feed, Site] = WeakKeyDictionary()


def routes(rd: Redrive, feed: Feed) -> list[BaseRoute]:
    """Make the routes of every page, action and file, to be mounted at "/" or under a prefix."""
    site = _sites[feed] = Site(rd, feed)
    made: list[BaseRoute] = [Mount("/static", StaticFiles(directory=STATIC), name="static")]
    made += [
        Route(line.path, _make_view(site, line), name=line.name, methods=[line.method]) for line in (*PAGES, *ACTIONS)
    ]
    site.router.routes.extend(made)
    return made


def _make_view(site: Site, line: PageRoute | ActionRoute) -> Callable[[Request], Awaitable[Response]]:
    """Make the view of a line: a refusal of redrive becomes a page or a line on a page, never a traceback."""

    async def view(plain_request: Request) -> Response:
        request = _make_request(plain_request, site)
        if (lacks := find_lacking_role(request.scope, line.role)) is not None:
            return await show_forbidden(request, lacks)
        try:
            return await line.answer(request)
        except (RedriveError, RequestRefused) as error:
            return await show_error(request, error)
        except HTTPException:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return await show_problem(request, 500, "This is a defect of redrive. The log of the server says more.")
        finally:
            if line.method == "POST":
                site.drop_all()

    return view


def _make_request(request: Request, site: Site) -> PageRequest:
    request.scope[SITE] = site
    return PageRequest(request.scope, request.receive)


async def show_missing_page(request: Request, feed: Feed) -> Response | None:
    """Show the page for an address that does not exist; None where the caller is not a person's browser."""
    site = _sites.get(feed)
    if site is None or request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return None
    reason = f"{request.url.path} is not a page of the dashboard."
    return await show_problem(_make_request(request, site), 404, reason)
