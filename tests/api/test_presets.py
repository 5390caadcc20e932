"""Presets: ready-made queues and agents for those who ask for them, and nothing of the kind for the others."""

import re
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import PRESETS, Agent, ConfigError, Policy, Redrive
from redrive.core.job import State
from redrive.failures.classify import DETAILS
from tests import elsewhere
from tests.support import FakeClock, count_in_files, drain_until_over, opened, snapshot, soon

SEVEN, ELEVEN = PRESETS["seven_agents"], PRESETS["agent_os"]
NAMES = frozenset({*PRESETS, *ELEVEN.queues, *SEVEN.agents, "ceo"})
"""Every name that a preset brings."""


# ---- without one


@pytest.mark.behaviour("R-0a")
def test_a_fresh_queue_has_no_agents_no_escalation_and_no_queues() -> None:
    rd = Redrive()
    assert (rd.settings.preset, rd.registry.queues) == ((), {})
    assert (rd.registry.fleet.agents, rd.registry.fleet.escalation) == ({}, None)
    assert rd.settings.escalation is None


@pytest.mark.behaviour("R-0e")
async def test_a_fresh_users_file_holds_no_name_that_the_user_did_not_write(
    database: Path, tmp_path: Path, clock: FakeClock
) -> None:
    """Failures of every kind, with an agent and without, and what people look at afterwards."""
    async with opened(database, clock=clock) as rd:

        @rd.task("write", max_attempts=2)
        async def write(ctx: redrive.Context, kind: str, prompt: str = "Write.") -> dict[str, str]:
            return {"error": "it went wrong", "error_kind": kind}

        @rd.task("give_up")
        async def give_up() -> None:
            raise redrive.GiveUp("not today")

        @rd.task("by_hand", retry_policy="manual")
        async def by_hand() -> None:
            raise ValueError("no")

        for kind in DETAILS.keys() - {"released", "own_limits"}:  # these use no attempts
            await write.enqueue(kind)
            await write.options(agent="eve").enqueue(kind)
        too_long = await rd.enqueue("write", {"kind": "network", "prompt": "x" * 800_000})
        handles = [too_long, await give_up.enqueue(), await by_hand.enqueue()]
        await drain_until_over(rd, clock)
        await rd.make_scheduler(rd.make_worker()).tick()
        told = [await rd.health(), await rd.numbers(), await rd.reports.load(), await rd.morning(), await rd.stats()]
        dead = [job async for job in rd.store.scan() if job.state is State.dead]
        categories = {DETAILS[job.detail or "unknown"][0] for job in dead}
        assert categories >= {"transient", "conditional", "permanent", "unknown"}
        assert {job.id for job in dead} >= {handle.id for handle in handles}
        assert {job.owner for job in dead} == {None}
        assert _names_in(told) == set()
    found = count_in_files(tmp_path, *(name for name in NAMES if len(name) > 3))
    assert elsewhere.replica_of(database).name in found and set(found.values()) == {0}
    assert _names_in(snapshot(database)) == set()


def _names_in(said: object) -> set[str]:
    """Names of presets as whole words: three letters may be a part of any word, or of a checksum."""
    return NAMES & set(re.findall(r"\w+", str(said)))


@pytest.mark.behaviour("R-0e")
async def test_the_look_finds_the_names_of_a_preset(database: Path, tmp_path: Path, clock: FakeClock) -> None:
    """The control of the test above: with a preset the same looks find its names."""
    async with opened(database, clock=clock, preset=["agent_os", "seven_agents"]) as rd:

        @rd.task(queue="graph_write")
        async def give_up() -> None:
            raise redrive.GiveUp("not today")

        await give_up.enqueue()
        await soon(rd.drain())
    assert sum(count_in_files(tmp_path, "graph_write").values()) > 0
    assert _names_in(snapshot(database)) == {"graph_write", "ceo"}


# ---- asking for one


def has_eleven(rd: Redrive) -> bool:
    return rd.registry.queues == ELEVEN.queues


def has_seven(rd: Redrive) -> bool:
    return (rd.registry.fleet.agents, rd.registry.fleet.escalation) == (SEVEN.agents, "ceo")


@pytest.mark.behaviour("R-0b")
def test_each_preset_brings_its_part_and_both_bring_all() -> None:
    assert [(has_eleven(rd), has_seven(rd)) for rd in (Redrive(preset="agent_os"), Redrive(preset="seven_agents"))] == [
        (True, False), (False, True),
    ]  # fmt: skip
    for both in (["agent_os", "seven_agents"], ("seven_agents", "agent_os")):
        rd = Redrive(preset=both)  # type: ignore[arg-type]  # a list of names is a list of any text here
        assert has_eleven(rd) and has_seven(rd)


@pytest.mark.behaviour("R-0b")
async def test_jobs_of_the_seven_agents_have_three_tries(database: Path) -> None:
    async with opened(database, preset="seven_agents") as rd, opened(database) as plain:
        theirs, ours = (await rd.enqueue("review", agent="cto")).job, (await rd.enqueue("review")).job
        policy = rd.registry.policy_for(theirs)
        assert (policy.max_attempts, policy.base, policy.cap, policy.backoff) == (3, 30.0, 300.0, "doubling")
        assert rd.registry.policy_for(ours).max_attempts == 5, "a job without an agent is none of theirs"
        assert plain.registry.policy_for(theirs) == plain.registry.policy_for(ours), "and without the preset none is"


@pytest.mark.behaviour("R-0b")
@pytest.mark.parametrize(
    "text", ['preset = "agent_os"', '[redrive]\npreset = "agent_os"', '[redrive]\npreset = ["agent_os"]']
)
def test_the_file_names_a_preset(tmp_path: Path, text: str) -> None:
    (tmp_path / "redrive.toml").write_text(text)
    assert has_eleven(Redrive())


@pytest.mark.behaviour("R-0b")
def test_the_environment_goes_over_the_file_and_an_argument_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redrive.toml").write_text('[redrive]\npreset = "agent_os"')
    monkeypatch.setenv("REDRIVE_PRESET", "seven_agents")
    assert Redrive().settings.preset == ("seven_agents",)
    assert Redrive(preset="agent_os").settings.preset == ("agent_os",)
    assert Redrive(preset=()).settings.preset == ()
    monkeypatch.setenv("REDRIVE_PRESET", "agent_os, seven_agents")
    assert has_eleven(Redrive()) and has_seven(Redrive())
    monkeypatch.setenv("REDRIVE_PRESET", "")
    assert Redrive().settings.preset == ()


def test_the_table_of_the_file_takes_every_plain_setting_once(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_text("[redrive]\nconcurrency = 7\n[queues.mail]\nmax_attempts = 2\n")
    assert (Redrive().settings.concurrency, Redrive().settings.queues) == (7, {"mail": Policy(max_attempts=2)})
    file.write_text("concurrency = 6\n[redrive]\nconcurrency = 7\n")
    with pytest.raises(ConfigError, match=r"concurrency stands at the top and in \[redrive\]; keep one"):
        Redrive()
    file.write_text("redrive = 5\n")
    with pytest.raises(ConfigError, match=r"redrive must be a table, \[redrive\]"):
        Redrive()


@pytest.mark.behaviour("R-0c")
@pytest.mark.parametrize("way", ["argument", "list", "file", "environment"])
def test_an_unknown_preset_is_refused_with_the_names_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    said: Any = {"argument": "agents", "list": ["agent_os", "agents"]}.get(way)
    if way == "file":
        (tmp_path / "redrive.toml").write_text('[redrive]\npreset = "agents"')
    elif way == "environment":
        monkeypatch.setenv("REDRIVE_PRESET", "agents")
    with pytest.raises(ConfigError) as refused:
        Redrive(preset=said)
    assert str(refused.value) == "preset: there is no preset 'agents'; the presets are agent_os, seven_agents"


@pytest.mark.behaviour("R-0c")
@pytest.mark.parametrize("said", [5, True, {"agent_os": 1}, ["agent_os", None], [5]], ids=str)
def test_what_is_no_name_is_refused(said: Any) -> None:
    with pytest.raises(ConfigError, match=r"^preset: .*the presets are agent_os, seven_agents$"):
        Redrive(preset=said)


# ---- over it


@pytest.mark.behaviour("R-0d")
def test_the_users_own_words_go_over_the_presets(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(
        """
escalation = "ada"
[redrive]
preset = ["agent_os", "seven_agents"]
[queues.feedback]
max_attempts = 9
[queues.mine]
base = 7
[agents.cto]
does = ["poetry"]
[agents.bard]
does = ["poetry"]
[agent_policy]
max_attempts = 4
"""
    )
    rd = Redrive(queues={"mesh_keys": Policy(backoff="adaptive")})
    assert rd.registry.queues["mesh_keys"].max_attempts == 10, "a queue that an argument speaks of keeps the rest"
    fleet = rd.registry.fleet
    assert fleet.agents == {**SEVEN.agents, "cto": Agent(("poetry",)), "bard": Agent(("poetry",))}
    assert (fleet.alternate("bard", "poetry"), fleet.escalation) == ("cto", "ada")
    rd = Redrive()
    feedback = rd.registry.queue_policy("feedback")
    assert (feedback.max_attempts, feedback.criticality, feedback.base) == (9, "critical", 2.0)
    assert rd.registry.queue_policy("mine").base == 7
    assert rd.registry.queue_policy("learning_capture").max_attempts == 3


@pytest.mark.behaviour("R-0d")
async def test_an_agent_policy_of_ones_own_goes_over_the_presets_and_needs_none(database: Path) -> None:
    own = {"max_attempts": 4}
    async with opened(database, preset="seven_agents", agent_policy=own) as rd, opened(database, agent_policy=own) as b:
        policy = rd.registry.policy_for((await rd.enqueue("review", agent="cto")).job)
        assert (policy.max_attempts, policy.base) == (4, 30.0)
        policy = b.registry.policy_for((await b.enqueue("review", agent="cto")).job)
        assert (policy.max_attempts, policy.base) == (4, 2.0)
    with pytest.raises(ConfigError, match=r"agent_policy\.base: has no effect"):
        Redrive(agent_policy={"base": 3, "backoff": "none"})


@pytest.mark.behaviour("R-0d")
def test_an_empty_escalation_turns_the_presets_off() -> None:
    assert Redrive(preset="seven_agents", escalation="").registry.fleet.escalation is None


@pytest.mark.behaviour("R-0d")
async def test_a_presets_queues_are_shown_once_they_are_used(database: Path) -> None:
    async with opened(database, preset="agent_os") as rd:
        assert await rd.numbers() == []
        await rd.enqueue("work", queue="feedback")
        assert [queue.name for queue in await rd.numbers()] == ["feedback"]
