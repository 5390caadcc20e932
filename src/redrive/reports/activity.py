"""Makes series for plots and sparklines: jobs that came in and went out over time, and the backlog. Pure.

The backlog of a past moment is not stored: it is the backlog of now, less the jobs that came in since, plus the jobs
that went out since. So a plot of a day costs a few thousand small rows, however many jobs there are.

The sums do not say whether a job that a person resolved was held or dead before. The job is taken to have been dead, as
most are: a job that was held and resolved is missing from the past, but no job appears there that was not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from redrive.core.job import At
from redrive.core.store import Minute, Tally
from redrive.core.view import Keys, Share, Shown
from redrive.reports.periods import category_of

MINUTE: Final = 60.0
HOUR: Final = 3600.0
Flow = Literal["enqueued", "succeeded", "retried", "buried", "redriven"]
FLOWS: Final[tuple[Flow, ...]] = ("enqueued", "succeeded", "retried", "buried", "redriven")
"""Moves that are plotted."""
BEGINS: Final = frozenset({"enqueued", "redriven", "deferred"})
"""Moves after which a job is unfinished and was not before."""
ENDS: Final = frozenset({"succeeded", "buried", "cancelled", "recalled"})
"""Moves after which a job is no longer unfinished. Not `resolved`, which dead letters are, too."""
UNFINISHED: Final = ("waiting", "running", "held")
AS: Final[Mapping[str, str]] = {**{flow: flow for flow in FLOWS}, "resolved": "succeeded"}


class MoveCount(msgspec.Struct, frozen=True):
    """Number of times a move happened in a queue in the minute or hour that began at `at`."""

    at: float
    queue: str
    move: str
    number: int


def from_minutes(minutes: Iterable[Minute]) -> list[MoveCount]:
    return [MoveCount(one.at, one.queue, one.move, one.number) for one in minutes]


def from_tallies(tallies: Iterable[Tally]) -> list[MoveCount]:
    return [MoveCount(one.hour, one.queue, one.move, one.number) for one in tallies]


class Series(Shown, msgspec.Struct, frozen=True):
    """Numbers of one queue, or of all queues together, bucket by bucket."""

    FLAT: ClassVar = ("flows",)
    queue: str
    flows: Annotated[dict[str, list[int]], Keys(FLOWS)]
    backlog: list[int]
    """Unfinished jobs (waiting, running or held) at the end of each bucket; the last is now."""

    @property
    def quiet(self) -> bool:
        return not any(self.backlog) and not any(map(any, self.flows.values()))


class Activity(Shown, msgspec.Struct, frozen=True):
    """Series of every queue over the same buckets; the last bucket is not over yet."""

    since: At
    until: At
    step: float
    starts: list[float]
    queues: list[Series]
    """Series by name of the queue, without queues that had no jobs and no moves."""
    total: Series

    def of(self, queue: str) -> Series:
        """Returns the series of a queue; flat if the queue has none."""
        own = next((series for series in self.queues if series.queue == queue), None)
        return own or _flat(queue, len(self.starts))

    def rate(self, queue: str | None, flow: Flow) -> float:
        """Returns how often a minute a move happens now: over the current bucket and the one before."""
        values = (self.total if queue is None else self.of(queue)).flows[flow]
        seconds = self.until - self.starts[-1] + (self.step if len(self.starts) > 1 else 0.0)
        return sum(values[-2:]) * MINUTE / max(seconds, 1.0)


def _flat(queue: str, length: int) -> Series:
    return Series(queue, {flow: [0] * length for flow in FLOWS}, [0] * length)


def buckets(now: float, number: int, step: float) -> list[float]:
    """Lists where the last `number` whole buckets up to now begin."""
    last = now // step * step
    return [last - step * back for back in range(number - 1, -1, -1)]


def activity(
    now: float, number: int, step: float, moved: Iterable[MoveCount], unfinished: Mapping[str, int]
) -> Activity:
    """Builds the series of all queues. `unfinished`: jobs of each queue that wait, run or are held now.

    A row may be finer than a bucket.
    """
    starts = buckets(now, number, step)
    rows: dict[str, dict[str, list[int]]] = defaultdict(lambda: {flow: [0] * number for flow in (*FLOWS, _GAINED)})
    for one in moved:
        place = int((one.at - starts[0]) // step)
        if 0 <= place < number:
            row = rows[one.queue]
            if one.move in AS:
                row[AS[one.move]][place] += one.number
            row[_GAINED][place] += one.number * ((one.move in BEGINS) - (one.move in ENDS))
    names = sorted(rows.keys() | {name for name, left in unfinished.items() if left})
    series = [_make_series(name, rows[name], unfinished.get(name, 0)) for name in names]
    return Activity(starts[0], now, step, starts, series, _total(series, number))


_GAINED: Final = "gained"
"""The row of how many more jobs are unfinished after each bucket."""


def _make_series(queue: str, row: dict[str, list[int]], left: int) -> Series:
    """Computes the backlog at the end of each bucket from the backlog of now."""
    backlog = []
    for gained in reversed(row.pop(_GAINED)):
        backlog.append(max(0, left))
        left -= gained
    return Series(queue, row, backlog[::-1])


def _total(series: Sequence[Series], number: int) -> Series:
    if not series:
        return _flat("", number)
    flows: dict[str, list[int]] = {flow: _add_columns([one.flows[flow] for one in series]) for flow in FLOWS}
    return Series("", flows, _add_columns([one.backlog for one in series]))


def _add_columns(columns: Sequence[Sequence[int]]) -> list[int]:
    return [sum(values) for values in zip(*columns, strict=True)]


# ---- agents


class AgentLoad(Shown, msgspec.Struct, frozen=True):
    """Jobs of one agent now, and how its attempts ended lately."""

    SHOWN: ClassVar = ("failure_rate",)
    agent: str | None
    waiting: int = 0
    running: int = 0
    held: int = 0
    dead: int = 0
    done: int = 0
    """Jobs done lately."""
    retried: int = 0
    buried: int = 0
    mix: dict[str, int] = {}
    """Failed attempts by category, the most first."""

    @property
    def failure_rate(self) -> Share | None:
        """Share of dead letters among the jobs that the agent brought to an end lately."""
        ended = self.done + self.buried
        return self.buried / ended if ended else None


def load(
    counted: Mapping[tuple[str | None, ...], int], tallies: Iterable[Tally], known: Iterable[str] = ()
) -> list[AgentLoad]:
    """Sums up jobs and moves by agent. Agents in `known` are listed in any case."""
    now: dict[str | None, dict[str, int]] = {name: {} for name in known}
    for (agent, state), number in counted.items():
        now.setdefault(agent, {})[str(state)] = number
    lately: dict[str | None, list[Tally]] = {}
    for tally in tallies:
        lately.setdefault(tally.agent, []).append(tally)
    names = sorted(now.keys() | lately.keys(), key=lambda name: (name is None, name or ""))
    return [_load(name, now.get(name, {}), lately.get(name, [])) for name in names]


def _load(agent: str | None, now: Mapping[str, int], lately: Sequence[Tally]) -> AgentLoad:
    happened, mix = Counter[str](), Counter[str]()
    for tally in lately:
        happened[AS.get(tally.move, tally.move)] += tally.number
        if tally.move in ("retried", "buried") and tally.error_class:
            mix[category_of(tally.detail)] += tally.number
    ranked = dict(sorted(mix.items(), key=lambda entry: (-entry[1], entry[0])))
    states = {state: now.get(state, 0) for state in (*UNFINISHED, "dead")}
    ended = {"done": happened["succeeded"], "retried": happened["retried"], "buried": happened["buried"]}
    return AgentLoad(agent, **states, **ended, mix=ranked)
