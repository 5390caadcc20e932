"""Nothing public is without its place: names, errors, commands, settings, pages. And nothing generated is stale."""

import re
import tomllib
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest

import redrive
import redrive.errors
from redrive.config import Settings, load
from redrive.core import notice, outcome, policy, workflow
from redrive.core.agents import CONTEXTS
from redrive.core.job import Cause
from redrive.core.lifecycle import MOVES
from redrive.core.notice import NotifyPolicy
from redrive.core.policy import Policy
from redrive.core.presets import PRESETS
from redrive.doors.cli import cli
from redrive.doors.rest import TABLE
from redrive.doors.rest.openapi import document
from redrive.engine import probes
from redrive.failures.classify import ALIASES, CLASSES, DETAILS, RULES
from redrive.failures.classify.codes import CODES, plain
from redrive.http.delivery import DeliveryPolicy
from redrive.jobs.records import FIVE
from redrive.retries.breaker import OPENING
from redrive.retries.remedies import WAYS
from redrive.scripts.cycle_rules import WORDS
from tests.docs.pages import PAGES, ROOT, anchors, blocks, inline, links
from tools import agents, docs, failures, tables
from tools.commands import walk

REFERENCE = ROOT / "docs" / "reference"


def text(path: str) -> str:
    return (ROOT / "docs" / path).read_text("utf-8")


def test_no_generated_page_is_stale() -> None:
    assert not docs.stale(), "run ./dev docs"


def test_every_generated_part_is_shown_somewhere() -> None:
    used = {part["name"] for page in PAGES for part in docs.PART.finditer(page.read_text("utf-8"))}
    assert used == set(docs.PARTS)


def test_a_stale_page_is_noticed() -> None:
    page = text("policies.md")
    assert docs.filled(page.replace("| `max_attempts` | `5` |", "| `max_attempts` | `6` |")) == page
    assert docs.filled(page.replace("<!-- end -->", "something\n<!-- end -->")) == page


@pytest.mark.parametrize("name", sorted(redrive.__all__))
def test_every_public_name_has_a_place(name: str) -> None:
    listed = f"### `redrive.{name}`\n" in text("reference/api.md")
    assert listed or f"`redrive.{name}` |" in text("reference/errors.md")


def test_every_error_has_a_place() -> None:
    kinds = [
        name
        for name, kind in vars(redrive.errors).items()
        if isinstance(kind, type) and kind.__module__ == "redrive.errors"
    ]
    page = text("reference/errors.md")
    assert [name for name in kinds if f'<a id="{name.lower()}"></a>' not in page] == []


def test_every_command_has_a_place() -> None:
    page = text("reference/cli.md")
    missing = [path for path, _ in walk(cli, "redrive") if f"## `{path}`\n" not in page]
    assert missing == []


@pytest.mark.parametrize("struct", [Settings, DeliveryPolicy, NotifyPolicy, Policy])
def test_every_setting_has_a_place(struct: type) -> None:
    page = text("reference/settings.md")
    assert [name for name in struct.__struct_fields__ if f"| `{name}` |" not in page] == []  # type: ignore[attr-defined]


def test_the_tables_of_the_code_are_whole() -> None:
    assert [name for name in MOVES if f"| `{name}` |" not in text("lifecycle.md")] == []
    assert [name for name in DETAILS if f"| `{name}` |" not in text("failures.md")] == []
    assert [name for name in PRESETS["agent_os"].queues if f"| `{name}` |" not in text("presets.md")] == []


def test_the_tables_of_failures_are_whole() -> None:
    page = text("failures.md")
    assert [name for name, _ in RULES if f"| `{name}` |" not in page] == []
    assert [name for name in CLASSES if f"`{name.rpartition('.')[2]}`" not in page and f"`{name}`" not in page] == []
    spelled = {plain(word) for word in inline(ROOT / "docs" / "failures.md")}
    assert [code for code in CODES if code not in spelled] == []
    assert [name for name in ALIASES if f"`{name}`" not in page] == []
    assert [name for name in WAYS if f"| `{name}` |" not in text("strategies.md")] == []
    assert [name for name in CONTEXTS if f"| `{name}`… |" not in text("preflight.md")] == []
    assert [name for name in PRESETS["seven_agents"].agents if f"| `{name}` |" not in text("presets.md")] == []
    assert [name for name in OPENING if f"`{name}`" not in text("breakers.md")] == []
    assert [name for name in FIVE if f"| **`{name}`** |" not in text("howto/jsonl.md")] == []
    assert [name for name in WORDS if f"| `{name}` |" not in text("howto/scripts.md")] == []


def test_the_numbers_of_the_ways_are_those_of_the_code() -> None:
    """Spelled out once more, by hand: a number that changes in the code must change here, too."""
    page = text("strategies.md")
    for detail, seconds in {
        "context_overflow": 10,
        "hallucination_loop": 60,
        "token_budget": 10,
        "refusal": 120,
    }.items():
        assert f"| `{detail}` | {seconds} s |" in page
    assert "`compress_context` to 80,000 tokens" in page
    assert "`simplify_task`: 600 tokens of output where the limit was 1,001" in page


def test_the_numbers_of_the_pages_on_agents_are_those_of_the_code() -> None:
    """What these pages say in words. Whoever changes a number here changes the sentence, too."""
    assert (outcome.INLINE, probes.COOL_DOWN, probes.TIMEOUT) == (100_000, 30, 10)
    assert "100,000 characters" in text("agents.md") and "for 30 seconds" in text("agents.md")
    assert policy.REASONS["deferred_submit"].lease == 600 and "a lease of ten minutes" in text("agents.md")
    assert policy.REASONS["retry"].max_age == 1800 and "half an hour" in text("agents.md")
    waits = policy.schedule(policy.effective(None, None, None, "retry"))
    assert waits == [10, 20, 45, 90] and "after 10, 20, 45 and 90 seconds" in text("agents.md")
    assert (notice.BURST, notice.FOLD_SECONDS, notice.ACKNOWLEDGED_FOR) == (6, 300, 7 * 86400)
    told = text("howto/notifications.md")
    assert "at most six messages go out in five minutes" in told and "age out after a week" in told
    assert (NotifyPolicy().page_after, NotifyPolicy().page_window) == (3, 3600)
    assert "Three dead letters within an hour" in told
    assert workflow.MAX_STEPS == 10_000 and "more than 10,000" in text("howto/workflows.md")


@pytest.mark.parametrize(
    ("words", "make"),
    [
        (failures.STRATEGY_WORDS, failures.order),
        (failures.FIELD_WORDS, failures.fields),
        (failures.STATUS_WORDS, failures.cycle_statuses),
        (failures.NEED_WORDS, failures.needs),
        (failures.ALERT_WORDS, failures.alerts),
        (failures.TREND_WORDS, failures.trends),
        (agents.OUTCOME_WORDS, agents.outcomes),
        (agents.KNOWN_WORDS, agents.once),
        (agents.REPLAY_WORDS, agents.together),
        (agents.GRANT_WORDS, agents.grant),
        (agents.CRON_WORDS, agents.cron),
        (agents.CATCH_UP_WORDS, agents.catch_up),
        (agents.STEP_WORDS, agents.step_states),
        (agents.FLOW_WORDS, agents.flow_states),
        (agents.REASON_WORDS, agents.rules),
        (agents.QUESTION_WORDS, agents.questions),
        (tables.DEAD_WORDS, tables.dead_reasons),
        (tables.POLICY_WORDS, tables.policy_fields),
        (tables.SETTING_WORDS, tables.settings),
        (tables.NOTIFY_WORDS, tables.notify),
    ],
    ids=lambda made: getattr(made, "__name__", ""),
)
def test_a_missing_word_is_noticed(
    words: dict[str, object], make: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    monkeypatch.delitem(words, list(words)[-1])  # the last: put back, it stands where it stood
    with pytest.raises(SystemExit, match="no words for"):
        make()


TOML = [(block.page, block.line, block.text) for page in PAGES for block in blocks(page) if block.language == "toml"]


@pytest.mark.parametrize(("page", "line", "lines"), TOML, ids=[f"{page}:{line}" for page, line, _ in TOML])
def test_every_settings_file_of_a_page_is_taken(page: str, line: int, lines: str, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(lines, "utf-8")
    settings = load({"url": "jobs.db"}, environ={}, folder=tmp_path)
    assert settings != load({"url": "jobs.db"}, environ={}, folder=tmp_path / "nowhere"), f"{page}:{line} sets nothing"


def test_every_option_of_a_job_is_mentioned_where_people_learn() -> None:
    """`Task.options` takes nothing that no page but the reference knows."""
    from redrive.jobs.job_options import OPTIONS

    taught = " ".join(span for page in PAGES if page.parent != REFERENCE for span in inline(page))
    taught += " ".join(page.read_text("utf-8") for page in PAGES if page.parent != REFERENCE)
    assert [name for name in sorted(OPTIONS) if not re.search(rf"\b{name}\b", taught)] == []


# The glossary -------------------------------------------------------------------------------------------------------

GLOSSARY = [line.strip("| ").split(" | ") for line in text("concepts.md").splitlines() if line.count(" | ") == 5]
"""The lines of both tables: word, meaning, Python, command line, REST, dashboard."""


def glossary(column: int) -> list[str]:
    return [span for line in GLOSSARY for span in re.findall(r"`([^`]+)`", line[column])]


def test_the_names_of_the_glossary_exist() -> None:
    """Those of Python and REST; `test_commands` tries every command of a page."""
    things = {
        "rd": redrive.Redrive(":memory:"),
        "job": redrive.Job,
        "attempt": redrive.Attempt(1, "failed", cause=Cause("transient", "network", "later")),
        "JobDead": redrive.JobDead("", job_id="", reason=""),
    }
    for name in glossary(2):
        first, _, path = name.partition("(")[0].partition(".")
        attrgetter(path or "__doc__")(things.get(first) or getattr(redrive, first))
    rest = document(TABLE)
    routes = {f"{method.upper()} {path}" for path, methods in rest["paths"].items() for method in methods}
    fields = {name for schema in rest["components"]["schemas"].values() for name in schema.get("properties", {})}
    fields |= set(redrive.Attempt.__struct_fields__)
    unknown = [name for name in glossary(4) if name.partition("?")[0] not in routes | fields]
    assert unknown == []


# Links and navigation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target} does not exist"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target} has no such heading"
        inside = file.is_relative_to(ROOT / "docs") or page.parent == ROOT
        assert inside, f"{page.name}: {target} is not part of the site"


def test_the_navigation_has_every_page_once() -> None:
    listed: list[str] = []

    def collect(entries: object) -> None:
        if isinstance(entries, str):
            listed.append(entries)
        elif isinstance(entries, dict):
            for value in entries.values():
                collect(value)
        elif isinstance(entries, list):
            for value in entries:
                collect(value)

    collect(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"])
    pages = sorted(page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(listed) == pages


def test_the_promise_is_the_same_everywhere() -> None:
    promise = re.compile(r"^\*Accepted means synced.*?\*$", re.MULTILINE | re.DOTALL)
    said = {" ".join(found.split()) for page in PAGES for found in promise.findall(page.read_text("utf-8"))}
    assert len(said) == 1
