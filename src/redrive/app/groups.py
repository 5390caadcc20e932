"""`rd.groups`: error groups, the unit of triage. Resolve, ignore or reopen a trouble; alerts follow by themselves."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from redrive.app.alerts import TRIES, GroupWatch, read_states, write
from redrive.core.job import State
from redrive.core.store import Applied, Filter, Group, Stale
from redrive.errors import CommitUnknown, InvalidInput, StoreBusy
from redrive.insight import groups as insight
from redrive.insight.groups import STATUSES, GroupState, GroupView

if TYPE_CHECKING:
    from redrive.app import Redrive

SOMEBODY: Final = "api"
SAMPLES: Final = 5
LONGEST_TEXT: Final = 1000
FILTERS: Final = ("queue", "task", "agent", "detail", "error_class")
Decide = Callable[[Group, GroupState | None, float], GroupState]


class Groups:
    """Error groups: every trouble that ever buried a job."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._watch = GroupWatch(app)

    async def look(self) -> None:
        """Judge what was buried since the last look and tell what is new, back, or worse than what was ignored."""
        await self._watch.look()

    async def list(self, *, status: str | None = None, limit: int = 100, **filters: Any) -> builtins.list[GroupView]:
        """Unresolved ones first, the latest first. Filters: status, queue, task, agent, detail, error_class."""
        _check_filters(status, limit, filters)
        await self.look()
        found = [group for group in await self._app.store.groups() if _fits(group, filters)]
        views = await self._views(found)
        chosen = [view for view in views if status in (None, view.status)]
        order: builtins.list[str] = ["unresolved", "ignored", "resolved"]
        ranked = sorted(chosen, key=lambda view: (order.index(view.status), -view.group.last_at))[:limit]
        return await self._with_all_lessons(ranked)

    async def show(self, fingerprint: str) -> GroupView:
        """One group by its fingerprint or a unique beginning of it: what was tried, and its latest dead letters."""
        await self.look()
        group = await self._find(fingerprint)
        (view,) = await self._views([group])
        dead = Filter(states=(State.dead,), fingerprint=group.fingerprint)
        samples = (await self._app.store.find(dead, limit=SAMPLES)).jobs
        return await self._with_lessons(view, samples)

    async def resolve(
        self, fingerprint: str, *, who: str = SOMEBODY, why: str | None = None, in_version: str | None = None
    ) -> GroupView:
        """The trouble is cured. It is told again if it comes back, in this version or later where one is named."""
        _check_texts(who=who, why=why, in_version=in_version)
        return await self._change(
            fingerprint,
            lambda group, state, now: insight.resolved(group, state, now, who=who, why=why, in_version=in_version),
        )

    async def ignore(
        self,
        fingerprint: str,
        *,
        until: datetime | timedelta | None = None,
        rate: float | None = None,
        count: int | None = None,
        who: str = SOMEBODY,
        why: str | None = None,
    ) -> GroupView:
        """Known, and may go on: until then, up to `rate` an hour, for `count` more. Without any, until reopened."""
        _check_texts(who=who, why=why)
        _check_number("rate", rate)
        _check_number("count", count, whole=True)
        end = _instant(until, self._app.clock.now())
        return await self._change(
            fingerprint,
            lambda group, state, now: insight.ignored(
                group, state, now, who=who, why=why, until=end, rate=rate, count=count
            ),
        )

    async def reopen(self, fingerprint: str, *, who: str = SOMEBODY, why: str | None = None) -> GroupView:
        """Unresolved again."""
        _check_texts(who=who, why=why)
        return await self._change(
            fingerprint, lambda group, state, now: insight.reopened(group, state, now, who=who, why=why)
        )

    async def note(self, fingerprint: str, text: str, *, who: str = SOMEBODY) -> GroupView:
        """A note for whoever looks at it next."""
        _check_texts(who=who, text=text)
        return await self._change(
            fingerprint, lambda group, state, now: insight.noted(group, state, now, who=who, text=text)
        )

    async def _change(self, fingerprint: str, decide: Decide) -> GroupView:
        """Load, decide, commit; decided anew when somebody was faster."""
        name = (await self._find(fingerprint)).fingerprint
        store = self._app.store
        for _ in range(TRIES):
            (group,) = await store.groups(fingerprints=[name])
            state, version = (await read_states(store, [name])).get(name, (None, 0))
            (outcome,) = await store.apply([write(name, decide(group, state, self._app.clock.now()), version)])
            if isinstance(outcome, Applied):
                (view,) = await self._views([group])
                return await self._with_lessons(view)
            if not isinstance(outcome, Stale):
                raise CommitUnknown(f"nobody knows whether group {name} was changed: look again")
        raise StoreBusy(f"group {name} keeps changing, nothing was written; try again")

    async def _find(self, fingerprint: str) -> Group:
        """By its fingerprint, or by a beginning of it that no other has."""
        _check_texts(fingerprint=fingerprint)
        exact = await self._app.store.groups(fingerprints=[fingerprint])
        if exact:
            return exact[0]
        found = []
        if len(fingerprint) >= 3:
            found = [group for group in await self._app.store.groups() if group.fingerprint.startswith(fingerprint)]
        if len(found) > 1:
            raise InvalidInput(field="fingerprint", problem=f"{fingerprint!r} begins several groups; give more of it")
        if not found:
            raise InvalidInput(field="fingerprint", problem=f"there is no group {fingerprint!r}")
        return found[0]

    async def _views(self, groups: Sequence[Group]) -> builtins.list[GroupView]:
        store, now = self._app.store, self._app.clock.now()
        known = await read_states(store, [group.fingerprint for group in groups])
        dead = await self._dead(groups)
        return [
            insight.view(group, known.get(group.fingerprint, (None, 0))[0], dead.get((group.fingerprint,), 0), now)
            for group in groups
        ]

    async def _dead(self, groups: Sequence[Group]) -> dict[tuple[str | None, ...], int]:
        """How many dead letters each has now: all at once, or the one that is asked for."""
        if len(groups) == 1:
            name = groups[0].fingerprint
            one = await self._app.store.count(Filter(states=(State.dead,), fingerprint=name))
            return {(name,): sum(one.values())}
        return await self._app.store.count(Filter(states=(State.dead,)), by=("fingerprint",))

    async def _with_all_lessons(self, views: Sequence[GroupView]) -> builtins.list[GroupView]:
        """What helped against each, read at once."""
        known = insight.lessons_by_group(await self._app.store.lessons(*(view.fingerprint for view in views)))
        now = self._app.clock.now()
        return [insight.view(view.group, view.state, view.dead, now, known.get(view.fingerprint, ())) for view in views]

    async def _with_lessons(self, seen: GroupView, samples: Sequence[Any] = ()) -> GroupView:
        lessons = await self._app.store.lessons(seen.fingerprint)
        return insight.view(seen.group, seen.state, seen.dead, self._app.clock.now(), lessons, samples)


def _fits(group: Group, filters: dict[str, Any]) -> bool:
    return all(value is None or getattr(group, name) == value for name, value in filters.items())


def _check_filters(status: str | None, limit: int, filters: dict[str, Any]) -> None:
    if unknown := filters.keys() - set(FILTERS):
        raise InvalidInput(field=min(unknown), problem="is not a filter of groups")
    if status is not None and status not in STATUSES:
        raise InvalidInput(field="status", problem=f"{status!r} is not one of {', '.join(STATUSES)}")
    if not 1 <= limit <= 10_000:
        raise InvalidInput(field="limit", problem=f"{limit} is not from 1 to 10000")


def _check_texts(**said: object) -> None:
    for field, text in said.items():
        if text is not None and not (isinstance(text, str) and 0 < len(text) <= LONGEST_TEXT):
            raise InvalidInput(field=field, problem=f"must be a text of 1 to {LONGEST_TEXT} characters")


def _check_number(field: str, value: object, *, whole: bool = False) -> None:
    if value is None:
        return
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not 0 <= value < 1e12:  # type: ignore[operator]  # a number, by the line before
        kind = "a whole number" if whole else "a number"
        raise InvalidInput(field=field, problem=f"{value!r} is not {kind} from 0 on")


def _instant(until: datetime | timedelta | None, now: float) -> float | None:
    match until:
        case None:
            return None
        case timedelta():
            end = now + until.total_seconds()
        case datetime(tzinfo=None):
            raise InvalidInput(field="until", problem="is naive; give it a time zone, e.g. datetime.now(UTC)")
        case datetime():
            end = until.timestamp()
        case _:
            raise InvalidInput(field="until", problem=f"{until!r} is not a datetime or a timedelta")
    if end <= now:
        raise InvalidInput(field="until", problem="is over already; give a time that is still to come")
    return end
