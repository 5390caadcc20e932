"""The generated parts of README.md and docs/, from the code they describe.

python -m tools.docs            writes them
python -m tools.docs --check    says whether they are up to date

A page marks such a part with two comments; what stands between them is replaced, the rest is written by hand:

    <!-- generated: lifecycle.moves -->
    <!-- end -->
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tools import agents, commands, failures, reference, rest, tables

ROOT = Path(__file__).parents[1]
PART = re.compile(r"(?P<open><!-- generated: (?P<name>[\w.]+) -->\n)(?P<text>.*?)(?P<close><!-- end -->)", re.DOTALL)

PARTS: dict[str, Callable[[], str]] = {
    "lifecycle.moves": tables.moves,
    "lifecycle.diagram": tables.diagram,
    "lifecycle.dead_reasons": tables.dead_reasons,
    "lifecycle.hold_reasons": tables.hold_reasons,
    "policies.defaults": tables.policy_fields,
    "policies.reasons": tables.reasons,
    "presets.queues": tables.preset_queues,
    "presets.agent_policy": tables.agent_policy,
    "policies.backoffs": tables.backoffs,
    "failures.rules": failures.rules,
    "failures.details": failures.details,
    "failures.statuses": failures.statuses,
    "failures.classes": failures.classes,
    "failures.codes": failures.codes,
    "failures.numbers": failures.numbers,
    "failures.phrases": failures.phrases,
    "failures.stops": failures.stops,
    "failures.aliases": failures.aliases,
    "strategies.order": failures.order,
    "strategies.ways": failures.ways,
    "preflight.models": failures.models,
    "presets.agents": failures.fleet,
    "breakers.options": failures.breaker_options,
    "breakers.opening": failures.opening,
    "jsonl.fields": failures.fields,
    "cycle.statuses": failures.cycle_statuses,
    "morning.needs": failures.needs,
    "groups.alerts": failures.alerts,
    "groups.trends": failures.trends,
    "agents.outcomes": agents.outcomes,
    "effects.seen": agents.seen,
    "effects.together": agents.together,
    "effects.once": agents.once,
    "effects.never_sent": agents.never_sent,
    "consent.grant": agents.grant,
    "consent.covers": agents.covers,
    "schedules.cron": agents.cron,
    "schedules.catch_up": agents.catch_up,
    "schedules.nicknames": agents.nicknames,
    "workflows.steps": agents.step_states,
    "workflows.states": agents.flow_states,
    "notices.rules": agents.rules,
    "notices.questions": agents.questions,
    "reference.settings": tables.settings,
    "reference.delivery": tables.delivery,
    "reference.notify": tables.notify,
    "reference.signals": tables.signals,
    "reference.errors": reference.errors,
    "reference.api": reference.api,
    "reference.cli": commands.cli,
    "reference.rest": rest.routes,
    "reference.filters": rest.filters,
    "reference.triage": rest.triage,
    "reference.problems": rest.problems,
    "reference.metrics": rest.metrics,
    "example.hello": lambda: example("hello"),
    "example.fastapi_app": lambda: example("fastapi_app"),
    "example.django_shop": lambda: example("django_shop"),
    "example.effects": lambda: example("effects"),
    "example.http_delivery": lambda: example("http_delivery"),
    "example.script": lambda: example("script"),
    "example.sites": lambda: example("sites"),
    "example.nightly": lambda: example("nightly"),
    "example.limits": lambda: example("limits"),
    "example.mounted": lambda: example("mounted"),
}


def example(name: str) -> str:
    """A program of examples/, as a fenced block."""
    return f"```python\n{(ROOT / 'examples' / f'{name}.py').read_text('utf-8').strip()}\n```"


def pages(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page with its generated parts as they should be."""

    def fill(part: re.Match[str]) -> str:
        if part["name"] not in PARTS:
            raise SystemExit(f"no such generated part: {part['name']}; there are {', '.join(PARTS)}")
        return f"{part['open']}\n{PARTS[part['name']]().strip()}\n\n{part['close']}"

    return PART.sub(fill, text)


def stale() -> list[Path]:
    """Pages that say something else than the code."""
    return [page for page in pages() if page.exists() and filled(text := page.read_text("utf-8")) != text]


def main() -> None:
    outdated = stale()
    if "--check" not in sys.argv[1:]:
        for page in outdated:
            page.write_text(filled(page.read_text("utf-8")), "utf-8")
    elif outdated:
        names = ", ".join(page.relative_to(ROOT).as_posix() for page in outdated)
        raise SystemExit(f"out of date: {names}; run ./dev docs")


if __name__ == "__main__":
    main()
