"""`rd.groups`: error groups, the unit of triage. Resolves, ignores and reopens groups; alerts are automatic."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from redrive.core import times
from redrive.core.checks import check_id, check_limit, check_texts, check_words, is_number, the_only
from redrive.core.commit import Proposal, decide_and_commit
from redrive.core.job import State
from redrive.core.store import Filter, Group, Store
from redrive.core.times import Given
from redrive.deadletters import group as insight
from redrive.deadletters.group import STATUSES, GroupState, GroupView
from redrive.deadletters.group_alerts import GROUP_STATE, GroupWatch, read_latest_dead_letters, read_states, silence
from redrive.deadletters.new_groups import New, Newcomers, newcomers, oldest
from redrive.engine.deploys import read_last_deploy
from redrive.errors import InvalidInput, StoreError
from redrive.jobs.core import DEFAULT_WHO

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.groups")
SAMPLES: Final = 5
LARGEST: Final = 5
"""Number of largest groups that are searched for an unresolved one."""
FILTERS: Final = ("queue", "task", "agent", "detail", "error_class")
Decide = Callable[[Group, GroupState | None, float], GroupState]


class Groups:
    """Lists, resolves and ignores error groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._watch = GroupWatch(core)

    async def look(self) -> None:
        """Judges the deaths since the last look and alerts on new, returning and worsening groups."""
        await self._watch.look()

    async def _look_if_possible(self) -> None:
        """Judges new deaths before groups are shown. If the store cannot be written, the last judgement is shown."""
        try:
            await self.look()
        except StoreError as error:
            log.warning("groups are shown as they were judged last: %s", error)

    async def list(
        self, *, status: str | None = None, new: New | None = None, limit: int = 100, **filters: Any
    ) -> builtins.list[GroupView]:
        """Lists groups: unresolved first, then the latest. Filters: status, queue, task, agent, detail, error_class.

        `new="deploy"` lists the groups that `new()` finds since the last deploy, `new="hour"` those of the last hour.
        """
        _check_filters(status, limit, filters, new)
        await self._look_if_possible()
        groups = await self._core.store.groups() if new is None else [one.group for one in (await self.new()).of(new)]
        fitting = [group for group in groups if _fits(group, filters)]
        return await self.rank(fitting, await count_dead(self._core.store, fitting), status=status, limit=limit)

    async def new(self) -> Newcomers:
        """Finds groups that appeared since the last deploy, or in the last hour, and still have dead letters.

        A deploy is the first time that a worker ran a new `version` of the application. If no worker ever named a
        version, the last start of a worker counts.
        """
        return await gather_new_groups(self._core)

    async def rank(
        self,
        groups: Sequence[Group],
        dead: Mapping[str | None, int],
        *,
        status: str | None = None,
        limit: int = 100,
    ) -> builtins.list[GroupView]:
        """Lists these groups in the order of `list`, for callers that have counted their dead letters."""
        now, states = self._core.clock.now(), await _states_of(self._core.store, groups)
        stated = [(group, states.get(group.fingerprint)) for group in groups]
        chosen = [entry for entry in stated if status in (None, _status(entry[1]))]
        shown = sorted(chosen, key=_urgency)[:limit]
        lessons = await self._core.store.lessons(*(group.fingerprint for group, _ in shown))
        helped = insight.lessons_by_group(lessons)
        named = {group.fingerprint: (group, state) for group, state in shown}
        letters = await read_latest_dead_letters(self._core.store, [name for name in named if dead.get(name)])
        return [
            insight.view(group, state, dead.get(name, 0), now, helped.get(name, ()), letter=letters.get(name))
            for name, (group, state) in named.items()
        ]

    async def with_status(self, groups: Sequence[Group], status: str) -> builtins.list[str]:
        """Lists the fingerprints of the groups that have this status."""
        states = await _states_of(self._core.store, groups)
        return [group.fingerprint for group in groups if _status(states.get(group.fingerprint)) == status]

    async def show(self, fingerprint: str) -> GroupView:
        """Reads one group by its fingerprint or a unique prefix: what was tried, and the latest dead letters."""
        await self._look_if_possible()
        group = await self.find(fingerprint)
        dead = Filter(states=(State.dead,), fingerprint=group.fingerprint)
        samples = tuple((await self._core.store.find(dead, limit=SAMPLES)).jobs)
        other = insight.other_agent(group, self._core.registry.fleet)
        return msgspec.structs.replace(await self._view(group), samples=samples, other_agent=other)

    async def as_judged(self, fingerprint: str) -> GroupView | None:
        """Returns one group as it was last judged, without writing."""
        groups = await self._core.store.groups(fingerprints=[fingerprint])
        return await self._view(groups[0]) if groups else None

    async def first(self) -> GroupView | None:
        """Returns the unresolved group with the most dead letters in the manual lane."""
        store = self._core.store  # a lane is counted group by group, hence only for the largest
        dead = await store.count(Filter(states=(State.dead,)), by=("fingerprint",))
        manual: dict[tuple[str | None, ...], int] = {
            (name,): sum((await store.count(Filter(states=(State.dead,), lane="manual", fingerprint=name))).values())
            for name in insight.largest(dead, LARGEST)
        }
        names = insight.largest(manual, LARGEST)
        known = {group.fingerprint for group in await store.groups(fingerprints=names)}
        for name in filter(known.__contains__, names):
            view = await self.show(name)
            if view.status == "unresolved":
                return msgspec.structs.replace(view, manual=manual[name,])
        return None

    async def records(self, fingerprints: Sequence[str] | None = None) -> Sequence[Group]:
        """Reads the records of these groups, or of all groups, latest first. Judges and writes nothing."""
        return await self._core.store.groups(fingerprints=fingerprints)

    async def find(self, fingerprint: str, *, field: str = "fingerprint") -> Group:
        """Finds the record of one group by its fingerprint or a unique prefix. A refusal names `field`."""
        group = await self.beginning(fingerprint, field=field)
        if group is None:
            raise InvalidInput(field=field, problem=f"there is no group {fingerprint!r}")
        return group

    async def beginning(self, fingerprint: str, *, field: str = "fingerprint") -> Group | None:
        """Finds a group by a fingerprint prefix; None if no group matches. Refuses a prefix that several match."""
        check_texts(**{field: check_id(field, fingerprint)})
        exact = await self._core.store.groups(fingerprints=[fingerprint])
        if exact:
            return exact[0]
        alike = [group for group in await self._core.store.groups() if group.fingerprint.startswith(fingerprint)]
        return the_only(alike, fingerprint, field)

    async def resolve(
        self, fingerprint: str, *, who: str = DEFAULT_WHO, why: str | None = None, in_version: str | None = None
    ) -> GroupView:
        """Resolves the group. An alert follows if it comes back, in `in_version` or later if given."""
        check_words(who, why)
        check_texts(in_version=in_version)
        return await self._change(
            fingerprint,
            lambda group, state, now: insight.resolve(group, state, now, who=who, why=why, in_version=in_version),
        )

    async def ignore(
        self,
        fingerprint: str,
        *,
        until: Given | None = None,
        rate: float | None = None,
        count: int | None = None,
        who: str = DEFAULT_WHO,
        why: str | None = None,
    ) -> GroupView:
        """Ignores the group until a time, up to `rate` an hour, or for `count` more; else until reopened."""
        check_words(who, why)
        _check_number("rate", rate)
        _check_number("count", count, whole=True)
        end = None if until is None else times.later("until", until, self._core.clock.now())
        return await self._change(
            fingerprint,
            lambda group, state, now: insight.ignore(
                group, state, now, who=who, why=why, until=end, rate=rate, count=count
            ),
        )

    async def reopen(self, fingerprint: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> GroupView:
        """Makes the group unresolved again."""
        check_words(who, why)
        return await self._change(
            fingerprint, lambda group, state, now: insight.reopen(group, state, now, who=who, why=why)
        )

    async def note(self, fingerprint: str, text: str, *, who: str = DEFAULT_WHO) -> GroupView:
        """Adds a note to the group."""
        check_words(who, None)
        check_texts(text=text)
        return await self._change(fingerprint, lambda _, state, now: insight.add_note(state, now, who=who, text=text))

    async def _change(self, fingerprint: str, decide: Decide) -> GroupView:
        """Loads the group, decides and commits; decides again if another process was faster."""
        name = (await self.find(fingerprint)).fingerprint
        store = self._core.store

        async def plan() -> Proposal[tuple[Group, GroupState]]:
            (group,) = await store.groups(fingerprints=[name])
            state, version = (await read_states(store, [name])).get(name, (None, 0))
            after = decide(group, state, self._core.clock.now())
            return Proposal(f"group {name}", (group, after), puts=[GROUP_STATE.put(name, after, version)])

        (group, after), _ = await decide_and_commit(store, plan)
        if after.status != "unresolved":
            await silence(store, name)
        return await self._view(group)

    async def _view(self, group: Group) -> GroupView:
        (view,) = await self.rank([group], await count_dead(self._core.store, [group]))
        return view


def _status(state: GroupState | None) -> str:
    """Returns the group's status; a group without a document is unresolved."""
    return (state or GroupState()).status


def _urgency(entry: tuple[Group, GroupState | None]) -> tuple[int, float]:
    """Sort key of groups: unresolved first, then the latest."""
    group, state = entry
    return ("unresolved", "ignored", "resolved").index(_status(state)), -group.last_at


def _fits(group: Group, filters: dict[str, Any]) -> bool:
    return all(value is None or getattr(group, name) == value for name, value in filters.items())


def _check_filters(status: str | None, limit: int, filters: dict[str, Any], new: str | None) -> None:
    if unknown := filters.keys() - set(FILTERS):
        raise InvalidInput(field=min(unknown), problem="is not a filter of groups")
    if status is not None and status not in STATUSES:
        raise InvalidInput(field="status", problem=f"{status!r} is not one of {', '.join(STATUSES)}")
    if new is not None and new not in get_args(New):
        raise InvalidInput(field="new", problem=f"{new!r} is not one of {', '.join(get_args(New))}")
    check_limit(limit)


def _check_number(field: str, value: object, *, whole: bool = False) -> None:
    if value is None:
        return
    if not is_number(value) or (whole and not isinstance(value, int)) or not 0 <= value < 1e12:
        kind = "a whole number" if whole else "a number"
        raise InvalidInput(field=field, problem=f"{value!r} is not {kind} from 0 on")


FEW: Final = 30
"""Number of groups up to which each is counted by its index; more groups are counted together."""


async def gather_new_groups(core: Core) -> Newcomers:
    """Selects the new groups that have dead letters and are neither resolved nor ignored."""
    store, now = core.store, core.clock.now()
    deploy = await read_last_deploy(store)
    since = oldest(now, deploy)
    fresh = [group for group in await store.groups(since=since) if group.first_at >= since]
    states = await _states_of(store, fresh)
    unresolved = [group for group in fresh if _status(states.get(group.fingerprint)) == "unresolved"]
    return newcomers(now, deploy, unresolved, await count_dead(store, unresolved))


async def _states_of(store: Store, groups: Sequence[Group]) -> dict[str, GroupState | None]:
    known = await read_states(store, [group.fingerprint for group in groups])
    return {name: state for name, (state, _) in known.items()}


async def count_dead(store: Store, groups: Sequence[Group]) -> dict[str | None, int]:
    """Counts the dead letters of each of these groups."""
    if len(groups) > FEW:
        counted = await store.count(Filter(states=(State.dead,)), by=("fingerprint",))
        return {str(name): number for (name,), number in counted.items()}
    return {
        group.fingerprint: sum((await store.count(Filter((State.dead,), fingerprint=group.fingerprint))).values())
        for group in groups
    }
