"""A world in which the jobs of a fleet fail as one fleet's published account counts them, and heal as such causes heal.

The account names 118 dead letters of ten months and their causes, not how long each lasted. What is assumed about that
stands in `Rates`, once for the usual world and once for a harsher one, and is printed before anything runs. Chance is
drawn from the seed, the job and the number of the try, so that no order of events changes what a world does.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tools.voices import Voices

Category = Literal["transient", "conditional", "permanent"]
DAY: Final = 86_400.0
MIX: Final[dict[str, tuple[Category, int]]] = {
    "llm_provider_timeout": ("transient", 31),
    "llm_provider_rate_limit": ("transient", 18),
    "network_transient": ("transient", 8),
    "github_api_rate_limit": ("transient", 9),
    "gke_node_preemption": ("transient", 6),
    "context_window_overflow": ("conditional", 17),
    "hallucination_loop": ("conditional", 5),
    "token_budget_exceeded": ("conditional", 4),
    "model_confusion": ("conditional", 3),
    "authority_exceeded": ("permanent", 7),
    "impossible_task": ("permanent", 4),
    "dependency_unavailable": ("permanent", 3),
    "data_integrity": ("permanent", 3),
}
"""The published counts of dead letters by cause: 72 transient, 29 conditional, 17 permanent."""
SMALL, LARGE = "claude-sonnet-4", "claude-opus-4"
AGENTS: Final = {
    "code_review": "cto",
    "implementation": "backend",
    "content_creation": "marketing",
    "deployment": "devops",
    "security_review": "cso",
}
"""Kinds of work, and who does them."""
PROVIDER, GITHUB = "api.anthropic.com", "api.github.com"
BYTES_PER_TOKEN: Final = 3.5


class Rates(NamedTuple):
    """Everything that the account does not say."""

    name: str
    days: float = 10.0
    healthy: int = 60
    """Jobs that meet no trouble, spread over the days."""
    burst_share: float = 0.6
    """Of the provider's failures: overloads that are over after 10 to 120 seconds. The others fall into incidents.

    So chosen that some 80 % of the transient failures heal within three attempts; the account says 89 %.
    """
    incident_median: float = 3600.0
    incident_sigma: float = 1.0
    jobs_per_incident: int = 7
    batch: float = 0.7
    """Share of an incident's jobs that come in its first minute; the others come at any time in it."""
    flapping: float = 0.0
    """Chance that a call fails in the first twenty minutes after an incident."""
    limit_waits: tuple[float, ...] = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
    """What a provider's 429 asks for."""
    limit_silent: float = 0.3
    """Share of the provider's rate limits that name no time; they last 20 to 90 seconds."""
    github_reset: tuple[float, float] = (300.0, 3600.0)
    blip: tuple[float, float] = (2.0, 90.0)
    overflow_windows: tuple[tuple[float, int], ...] = ((0.8, 13), (0.4, 3), (0.0, 1))
    """Shares of 100,000 tokens that fit, and how many jobs have such a model; 0: no cut makes it fit."""
    loop_heals: float = 0.75
    """Per try with another model or agent. The same model gives the same wrong answer for ever."""
    budget_heals: float = 0.8
    """Per try with a smaller output. The same limit is exceeded for ever."""
    confusion_heals: float = 0.6
    """Per try, changed or not."""


USUAL: Final = Rates("usual")
HARSH: Final = Rates(
    "harsher",
    burst_share=0.15,
    incident_median=9000.0,
    incident_sigma=1.2,
    flapping=0.3,
    limit_waits=(30.0, 60.0, 300.0, 900.0, 1800.0),
    limit_silent=0.5,
    github_reset=(1800.0, 3600.0),
    blip=(30.0, 600.0),
    overflow_windows=((0.8, 9), (0.4, 5), (0.0, 3)),
    loop_heals=0.5,
    budget_heals=0.5,
    confusion_heals=0.4,
)


@dataclass(frozen=True)
class Errand:
    """One job of the world: when it comes, what it calls, and what goes wrong with it."""

    key: str
    at: float
    cause: str | None
    work: str
    host: str
    late: bool = False
    """Its failure comes after its effect."""
    fits: float = 1.0

    @property
    def category(self) -> Category | None:
        return MIX[self.cause][0] if self.cause else None


class Window(NamedTuple):
    """A time in which a host answers nobody."""

    host: str
    start: float
    end: float
    kind: str
    silent: bool = False


@dataclass
class Ledger:
    """What was seen from outside."""

    calls: Counter[str] = field(default_factory=Counter)
    """Executions of a job's task that got to its outside call."""
    effects: Counter[str] = field(default_factory=Counter)
    healthy_failed: int = 0


class World:
    """Downstreams, models and permissions, and the errands that call them. Times are seconds from its beginning."""

    def __init__(self, rates: Rates, seed: int, voices: Voices) -> None:
        self.rates = rates
        self.seed = seed
        self.voices = voices
        self.now = 0.0
        self.ledger = Ledger()
        self.windows: list[Window] = []
        self._by_host: dict[str, list[Window]] = defaultdict(list)
        self.errands = sorted(self._planned(), key=lambda one: (one.at, one.key))
        self._known = {one.key: one for one in self.errands}

    # ---- planning

    def _planned(self) -> list[Errand]:
        plan = self._provider_failures() + self._rate_limits() + self._github_limits() + self._blips()
        for cause in ("gke_node_preemption", *(name for name, (kind, _) in MIX.items() if kind != "transient")):
            plan += self._apart(cause)
        for window in self.windows:
            self._by_host[window.host].append(window)
        return plan + [self._healthy(number) for number in range(self.rates.healthy)]

    def _dice(self, *what: object) -> random.Random:
        return random.Random(f"{self.seed}/{'/'.join(map(str, what))}")

    def _errand(self, cause: str, number: int, at: float, host: str = PROVIDER, **more: Any) -> Errand:
        dice = self._dice("work", cause, number)
        return Errand(f"{cause}-{number:02}", at, cause, dice.choice(list(AGENTS)), host, **more)

    def _provider_failures(self) -> list[Errand]:
        cause, rates = "llm_provider_timeout", self.rates
        total = MIX[cause][1]
        bursts = round(total * rates.burst_share)
        plan = []
        for number in range(bursts):
            dice = self._dice(cause, "burst", number)
            start = dice.uniform(0, rates.days * DAY)
            self.windows.append(Window(PROVIDER, start, start + dice.uniform(10, 120), "overloaded"))
            plan.append(self._errand(cause, number, start, late=dice.random() < 0.3))
        for first in range(bursts, total, rates.jobs_per_incident):
            dice = self._dice(cause, "incident", first)
            start = dice.uniform(0, rates.days * DAY)
            length = rates.incident_median * 2.718281828 ** dice.gauss(0, rates.incident_sigma)
            self.windows.append(Window(PROVIDER, start, start + length, dice.choice(["overloaded", "unavailable"])))
            for number in range(first, min(first + rates.jobs_per_incident, total)):
                arrives = start + dice.random() * (60.0 if dice.random() < rates.batch else length * 0.95)
                plan.append(self._errand(cause, number, arrives, late=dice.random() < 0.3))
        return plan

    def _rate_limits(self) -> list[Errand]:
        """Three jobs at a time meet a limit."""
        cause, plan = "llm_provider_rate_limit", []
        for first in range(0, MIX[cause][1], 3):
            dice = self._dice(cause, first)
            start, silent = dice.uniform(0, self.rates.days * DAY), dice.random() < self.rates.limit_silent
            length = dice.uniform(20, 90) if silent else dice.choice(self.rates.limit_waits)
            self.windows.append(Window(PROVIDER, start, start + length, "limited", silent))
            plan += [self._errand(cause, number, start + dice.random() * length * 0.5)
                     for number in range(first, first + 3)]  # fmt: skip
        return plan

    def _github_limits(self) -> list[Errand]:
        """Bulk pull requests: three jobs at a time meet a limit that ends at a named time."""
        cause, plan = "github_api_rate_limit", []
        for first in range(0, MIX[cause][1], 3):
            dice = self._dice(cause, first)
            start = dice.uniform(0, self.rates.days * DAY)
            self.windows.append(Window(GITHUB, start, start + dice.uniform(*self.rates.github_reset), "limited"))
            plan += [self._errand(cause, number, start + number, GITHUB, late=dice.random() < 0.5)
                     for number in range(first, first + 3)]  # fmt: skip
        return plan

    def _blips(self) -> list[Errand]:
        cause, plan = "network_transient", []
        for number in range(MIX[cause][1]):
            dice = self._dice(cause, number)
            start, host = dice.uniform(0, self.rates.days * DAY), f"site-{number}.example"
            self.windows.append(
                Window(host, start, start + dice.uniform(*self.rates.blip), dice.choice(["dns", "tls"]))
            )
            plan.append(self._errand(cause, number, start, host, late=dice.random() < 0.5))
        return plan

    def _apart(self, cause: str) -> list[Errand]:
        """Failures of single jobs, at any time."""
        fits = [share for share, number in self.rates.overflow_windows for _ in range(number)]
        host = GITHUB if cause in ("authority_exceeded", "data_integrity") else PROVIDER
        return [
            self._errand(
                cause, number, self._dice(cause, number).uniform(0, self.rates.days * DAY), host,
                fits=fits[number] if cause == "context_window_overflow" else 1.0,
            )
            for number in range(MIX[cause][1])
        ]  # fmt: skip

    def _healthy(self, number: int) -> Errand:
        """A job that comes when its host answers."""
        dice = self._dice("healthy", number)
        host = dice.choice([PROVIDER, PROVIDER, GITHUB])
        while True:
            at = dice.uniform(0, self.rates.days * DAY)
            if self._down(host, at) is None and self._flaps(host, at) == 0.0:
                return Errand(f"healthy-{number:03}", at, None, dice.choice(list(AGENTS)), host)

    # ---- being called

    def call(self, key: str, *, tokens: int, model: str, agent: str | None, limit: int, text: str) -> None:
        """What an outside call of this job comes to now: returns, or raises what the client library raises."""
        errand = self._known[key]
        self.ledger.calls[key] += 1
        turn = self.ledger.calls[key]
        if errand.category == "permanent":
            self._refuse(errand)
        self._answer(errand, turn)
        if errand.category == "conditional":
            self._think(errand, turn, tokens, model, agent, limit)

    def _refuse(self, errand: Errand) -> None:
        number = int(errand.key[-2:])
        raise self.voices.refused(errand.cause or "", number)

    def _answer(self, errand: Errand, turn: int) -> None:
        """The host itself: down, limited, or there."""
        window = self._down(errand.host, self.now)
        if window is not None:
            left = window.end - self.now
            if window.kind == "limited":
                if errand.host == GITHUB:
                    raise self.voices.github_limited(left)
                raise self.voices.limited(None if window.silent else left)
            if window.kind in ("dns", "tls"):
                raise self.voices.unreachable(errand.host, window.kind)
            raise self.voices.overloaded(window.kind)
        if self._dice("flap", errand.key, turn).random() < self._flaps(errand.host, self.now):
            raise self.voices.overloaded("overloaded")

    def _down(self, host: str, at: float) -> Window | None:
        return next((one for one in self._by_host[host] if one.start <= at < one.end), None)

    def _flaps(self, host: str, at: float) -> float:
        kinds = ("overloaded", "unavailable")
        recent = any(one.end <= at < one.end + 1200 for one in self._by_host[host] if one.kind in kinds)
        return self.rates.flapping if recent else 0.0

    def _think(self, errand: Errand, turn: int, tokens: int, model: str, agent: str | None, limit: int) -> None:
        """The model itself: too much to read, caught in a loop, cut off, confused."""
        luck = self._dice("luck", errand.key, turn).random()
        match errand.cause:
            case "context_window_overflow":
                window = int(errand.fits * 100_000 * (1.25 if model == LARGE else 1.0))
                if tokens > window:
                    raise self.voices.too_long(tokens, window, int(errand.key[-2:]))
            case "hallucination_loop":
                other = model != SMALL or agent != AGENTS[errand.work]
                if not other or luck >= self.rates.loop_heals:
                    raise self.voices.wrong_output(f"{{'answer': {errand.key!r}")
            case "token_budget_exceeded":
                if limit >= LIMIT or luck >= self.rates.budget_heals:
                    raise self.voices.cut_off(int(errand.key[-2:]))
            case _:
                if luck >= self.rates.confusion_heals:
                    raise self.voices.confused(f"answered another question ({turn})")

    def perform(self, key: str) -> str:
        """The effect that a job is for. Seen from outside."""
        self.ledger.effects[key] += 1
        return f"done for {key}"


LIMIT: Final = 2_000
"""Tokens of output that a job asks for."""


def messages_of(errand: Errand) -> list[dict[str, str]]:
    """A conversation; a long one where the job is to be too long for its model."""
    task = {"role": "user", "content": f"Do the {errand.work} of {errand.key}."}
    if errand.cause != "context_window_overflow":
        return [task]
    past = [{"role": role, "content": "background " * 900} for _ in range(18) for role in ("assistant", "user")]
    return [task, *past]


def tokens_of(messages: Sequence[dict[str, str]]) -> int:
    return int(sum(len(one["content"]) for one in messages) / BYTES_PER_TOKEN)


def windows_in_words(world: World) -> str:
    kinds = Counter(window.kind for window in world.windows)
    longest = max(window.end - window.start for window in world.windows)
    return f"{len(world.windows)} troubles {dict(kinds)}, the longest {longest / 3600:.1f} h"
