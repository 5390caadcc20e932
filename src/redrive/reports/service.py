"""`rd.reports`: reads from the store what reports need. Only `notify` writes: a notice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from msgspec.structs import replace

from redrive.core.checks import check_choice, check_range
from redrive.core.commit import commit
from redrive.core.documents import WAITING
from redrive.core.job import Category, Job, State
from redrive.core.notice import QUOTED, TEXT_CAP, Level, Notice, Quote, waiting_key, with_words
from redrive.core.store import Filter, OutcomeTally, Tally, Total
from redrive.core.times import Given as Instant
from redrive.core.times import earlier, zone_of
from redrive.deadletters.groups import gather_new_groups
from redrive.engine.worker_registry import Announcement, list_living
from redrive.errors import InvalidOption
from redrive.failures.classify import ALIASES
from redrive.jobs.publishing_store import publish_notice
from redrive.notices.courier import quoted_by
from redrive.reports import periods as insight
from redrive.reports.activity import (
    HOUR,
    MINUTE,
    UNFINISHED,
    Activity,
    AgentLoad,
    activity,
    from_minutes,
    from_tallies,
)
from redrive.reports.activity import load as load_of
from redrive.reports.morning import MESSAGE_TEXT, SHOWN, Morning, headline, in_lines
from redrive.reports.periods import FailureLog, Kind, Report
from redrive.reports.top_screen import LOOKED_AT, Glance, glance, longest

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.notices.service import Notices
    from redrive.reports.watch import Watch

DAY: Final = 86400.0
MOST_MONTHS: Final = 120
MOST_WEEKS: Final = 520
MOST_MINUTES: Final = 24 * 60
"""Minutes are remembered for a day."""
MOST_HOURS: Final = 24 * 62
LONGEST_LOG: Final = 366 * DAY
FIRST_DAY: Final = date(1970, 1, 2)
LAST_DAY: Final = date(2999, 12, 31)
T = TypeVar("T", Tally, OutcomeTally, Total)


class Reports:
    """Weeks, months, failures and activity in numbers."""

    def __init__(self, core: Core, watch: Watch, notices: Notices) -> None:
        self._core = core
        self._watch = watch
        self._notices = notices

    async def weekly(
        self,
        weeks: int = 4,
        *,
        tz: str = "UTC",
        queue: str | None = None,
        task: str | None = None,
        agent: str | None = None,
    ) -> Report:
        """Reports the last weeks, this one included: jobs processed, dead letters, outcomes, causes, strategies."""
        check_range("weeks", weeks, 1, MOST_WEEKS)
        periods = insight.weeks(self._core.clock.now(), weeks, zone_of("tz", tz))
        return await self._report("weekly", tz, periods, queue=queue, task=task, agent=agent)

    async def monthly(
        self,
        months: int = 12,
        *,
        tz: str = "UTC",
        queue: str | None = None,
        task: str | None = None,
        agent: str | None = None,
    ) -> Report:
        """Reports the last months, this one included: jobs processed, dead letters, outcomes, causes, strategies."""
        check_range("months", months, 1, MOST_MONTHS)
        periods = insight.months(self._core.clock.now(), months, zone_of("tz", tz))
        return await self._report("monthly", tz, periods, queue=queue, task=task, agent=agent)

    async def _report(self, kind: Kind, tz: str, periods: Sequence[insight.Period], **given: str | None) -> Report:
        store, wanted = self._core.store, _given(given)
        books = []
        for place, period in enumerate(periods):
            hours, causes_told = insight.hours_of(period), place >= len(periods) - 2
            totals, outcomes = await store.totals(*hours), await store.outcomes(*hours, whole=True)
            tallies = await store.tallies(*hours, whole=True) if causes_told else []
            books.append(insight.Book(period, _of(totals, wanted), _of(outcomes, wanted), _of(tallies, wanted)))
        return insight.report(kind, tz, books)

    async def failures(
        self,
        *,
        agent: str | None = None,
        category: str | None = None,
        date: date | str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        tz: str = "UTC",
        limit: int = 50,
        **filters: str | None,
    ) -> FailureLog:
        """Reports failures by day: of one agent, one category, one day (or a span; the last week by default).

        Other filters: queue, task, detail, error_class. The report includes the latest dead letters that match and are
        still dead, `limit` at most; the numbers are kept for ever.
        """
        check_range("limit", limit, 0, 10_000)
        if unknown := filters.keys() - {"queue", "task", "detail", "error_class"}:
            raise InvalidOption(field=min(unknown), problem="is not a filter of failures")
        if category is not None:
            check_choice("category", category, get_args(Category))
        if (detail := filters.get("detail")) is not None:
            filters["detail"] = ALIASES.get(detail, detail)
        zone = zone_of("tz", tz)
        start, end = self._span(date, since, until, zone)
        given: dict[str, Any] = _given({**filters, "agent": agent})

        def fits(tally: Tally, its: str) -> bool:
            return category in (None, its) and _fits(tally, given)

        days = insight.days(start, end, zone)
        tallies = [tally for day in days for tally in await self._core.store.tallies(*day, whole=True)]
        lines = insight.failure_lines(tallies, start, end, zone, fits)
        chosen = Filter(states=(State.dead,), category=category, since=start, until=end, **given)
        page = await self._core.store.find(chosen, limit=limit + 1)
        more = len(page.jobs) > limit
        return insight.failure_log(start, end, tz, lines, page.jobs[:limit], more_letters=more)

    def _span(
        self, day: date | str | None, since: Instant | None, until: Instant | None, zone: tzinfo
    ) -> tuple[float, float]:
        now = self._core.clock.now()
        if day is not None:
            if since is not None or until is not None:
                raise InvalidOption(field="date", problem="is given beside since or until; give one of them")
            start = datetime.combine(_day(day), time(), zone)
            following = datetime.combine(_day(day) + timedelta(days=1), time(), zone)
            return start.timestamp(), following.timestamp()
        end = now + 1.0 if until is None else earlier("until", until, now)  # the current moment, too
        start_at = end - 7 * DAY if since is None else earlier("since", since, now)
        if not (0 < end - start_at <= LONGEST_LOG + HOUR and start_at >= 0):
            raise InvalidOption(field="since", problem="must be before `until`, by a year at most, and after 1970")
        return start_at // HOUR * HOUR, end

    async def activity(
        self, *, minutes: int | None = None, hours: int | None = None, queue: str | None = None
    ) -> Activity:
        """Returns series for plots, by the minute (the last hour by default, a day at most) or by the hour.

        Per queue: enqueued, succeeded, retried, buried, redriven, and how many jobs were unfinished at each moment.
        The call takes milliseconds, however many jobs there are.
        """
        if minutes is not None and hours is not None:
            raise InvalidOption(field="minutes", problem="is given beside hours; give one of them")
        number, step = (60 if minutes is None else minutes, MINUTE) if hours is None else (hours, HOUR)
        check_range("minutes" if hours is None else "hours", number, 1, MOST_MINUTES if hours is None else MOST_HOURS)
        store, now = self._core.store, self._core.clock.now()
        since = now // step * step - (number - 1) * step
        if hours is None:
            moved = from_minutes(await store.minutes(since, now + 1.0))
        else:
            moved = from_tallies(await store.tallies(since, now + 1.0))
        unfinished = await self._count_unfinished()
        if queue is not None:
            moved, unfinished = [m for m in moved if m.queue == queue], {queue: unfinished.get(queue, 0)}
        return activity(now, number, step, moved, unfinished)

    async def _count_unfinished(self) -> dict[str, int]:
        states = tuple(State(name) for name in UNFINISHED)
        counted = await self._core.store.count(Filter(states=states), by=("queue",))
        return {str(queue): number for (queue,), number in counted.items()}

    async def load(self, *, hours: int = 24) -> list[AgentLoad]:
        """Counts by agent the jobs that wait, run, are held or dead now, and the moves of the last hours."""
        check_range("hours", hours, 1, MOST_HOURS)
        now = self._core.clock.now()
        counted = await self._core.store.count(Filter(), by=("agent", "state"))
        tallies = await self._core.store.tallies(now - hours * HOUR, now + 1.0)
        return load_of(counted, tallies, self._core.registry.fleet.agents)

    async def glance(self, *, minutes: int = 30, running: int = 10, troubles: int = 10) -> Glance:
        """Reads one screen of everything that matters now: `redrive top` shows the screen once a second."""
        check_range("minutes", minutes, 2, MOST_MINUTES)
        check_range("troubles", troubles, 0, 100)
        store, now = self._core.store, self._core.clock.now()
        latest = (await store.groups(since=now - DAY))[:troubles]
        dead = {
            group.fingerprint: sum(
                (await store.count(Filter(states=(State.dead,), fingerprint=group.fingerprint))).values()
            )
            for group in latest
        }
        return glance(
            now,
            await self._watch.health(),
            await self._watch.numbers(),
            await self.activity(minutes=minutes),
            await self.running(running),
            latest,
            dead,
            await self._watch.breakers(),
            await gather_new_groups(self._core),
        )

    async def running(self, number: int) -> list[Job]:
        """Lists the jobs that have run for longest, among the running jobs that were enqueued first."""
        check_range("running", number, 0, 1000)
        page = await self._core.store.find(Filter(states=(State.running,)), limit=max(number, LOOKED_AT), oldest=True)
        return longest(page.jobs, number)

    async def oldest_due(self, number: int) -> list[Job]:
        """Lists the waiting jobs that have been due for longest."""
        check_range("number", number, 0, 1000)
        return await self._core.store.overdue(self._core.clock.now(), limit=number)

    async def living_workers(self) -> list[Announcement]:
        """Lists the announcements of all living workers; cheaper than `rd.workers()`, which reads their jobs too."""
        return await list_living(self._core.store, self._core.clock.now())

    async def notify(self, found: Report | Morning) -> int:
        """Sends a report through the channels; returns how many messages the channels of this process took.

        A quiet morning is not sent. A message that no channel takes now waits in the store for a worker that has one.
        """
        if isinstance(found, Morning):
            if found.ok:
                return 0
            text, quotes = "\n".join(in_lines(_without_quotes(found))), _quotes(found)
            return await self._tell("morning", "actionable", headline(found), text, quotes)
        text = "\n".join([*(_line(row) for row in found.rows), _line(found.total), *insight.advice(found)])
        return await self._tell(found.kind, "acknowledgement", insight.headline(found), text)

    async def _tell(self, kind: str, level: Level, title: str, text: str, quotes: tuple[Quote, ...] = ()) -> int:
        core, now = self._core, self._core.clock.now()
        notice = Notice(f"{kind}.{int(now * 1000)}", kind, level, "user", title, text[:TEXT_CAP], now, quotes=quotes)
        put = WAITING.put(waiting_key(notice), notice)
        await commit(core.store, puts=[put], what=f"the {kind} report will be told")
        publish_notice(core.bus, with_words(notice, await quoted_by(core.store, [notice])))
        return await self._notices.deliver()


def _without_quotes(page: Morning) -> Morning:
    """Removes the jobs' own words from the morning: the message may wait for a channel, and must not keep them."""
    needs = [replace(need, what=QUOTED) if need.job_id else need for need in page.needs]
    cured = [replace(one, what=one.error_class or "no error was recorded") for one in page.cured]
    return replace(page, needs=needs, cured=cured)


def _quotes(page: Morning) -> tuple[Quote, ...]:
    """Lists the quotes, one for each QUOTED mark, in order."""
    return tuple(
        Quote(need.job_id, need.error_class or need.kind, MESSAGE_TEXT) for need in page.needs[:SHOWN] if need.job_id
    )


def _line(row: insight.Row) -> str:
    open_ = f", {row.open} open" if row.open else ""
    return (
        f"{row.label}: {row.processed:,} processed, {row.died} dead ({insight.percent(row.rate, 2)}), "
        f"{row.auto} auto, {row.human} human{open_}"
    )


def _given(filters: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value is not None}


def _of(rows: Sequence[T], given: dict[str, str]) -> list[T]:
    return [one for one in rows if _fits(one, given)]


def _fits(one: Any, given: dict[str, str]) -> bool:
    return all(getattr(one, name) == value for name, value in given.items())


def _day(given: object) -> date:
    try:
        day = date.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise InvalidOption(field="date", problem=f"{given!r} is not a day such as 2031-05-17") from None
    if not isinstance(day, date) or isinstance(day, datetime) or not FIRST_DAY <= day <= LAST_DAY:
        raise InvalidOption(field="date", problem=f"{given!r} is not a day from {FIRST_DAY} to {LAST_DAY}")
    return day
