"""Which groups are new since the last deploy and in the last hour, and how that is said."""

import pytest

from redrive.core.deploys import KEPT, Deploy, last_deploy, with_version
from redrive.core.store import Group
from redrive.deadletters.new_groups import Newcomers, in_lines, newcomers, nothing_new, oldest
from tests.deadletters.test_group import a_group

NOW = 1_800_000_000.0


def appeared(name: str, ago: float) -> Group:
    return a_group(fingerprint=name, first_at=NOW - ago, last_at=NOW - ago)


def names(new: Newcomers) -> tuple[list[str], list[str]]:
    return [one.group.fingerprint for one in new.since_deploy], [one.group.fingerprint for one in new.last_hour]


# ---- deploys


def test_a_version_is_deployed_when_it_is_first_seen() -> None:
    known = with_version((), "1.0", 10.0)
    assert with_version(known, "1.0", 99.0) is known, "a restart is no deploy"
    known = with_version(known, "1.1", 20.0)
    assert with_version(known, "1.0", 99.0) is known, "an old worker that starts again is no deploy"
    assert last_deploy(known, [500.0]) == Deploy(20.0, "1.1"), "starts say nothing where versions are known"


def test_without_a_version_the_last_start_counts() -> None:
    assert last_deploy((), [10.0, 30.0, 20.0]) == Deploy(30.0)
    assert last_deploy((), []) is None


def test_only_the_newest_versions_are_remembered() -> None:
    known: tuple[Deploy, ...] = ()
    for number in range(KEPT + 5):
        known = with_version(known, f"1.{number}", float(number))
    assert (len(known), known[0].version, known[-1].version) == (KEPT, "1.5", f"1.{KEPT + 4}")


# ---- groups


def test_groups_are_sorted_out_by_when_they_appeared() -> None:
    groups = [appeared("old", 9000), appeared("hour", 60), appeared("deployed", 5000)]
    new = newcomers(NOW, Deploy(NOW - 7200, "2"), groups, {"old": 1, "hour": 2, "deployed": 3})
    assert names(new) == (["hour", "deployed"], ["hour"]), "the latest first"


def test_a_group_without_dead_letters_is_not_news_any_more() -> None:
    new = newcomers(NOW, Deploy(NOW - 7200, "2"), [appeared("gone", 60), appeared("here", 60)], {"gone": 0, "here": 1})
    assert names(new) == (["here"], ["here"])


def test_before_any_worker_there_is_the_last_hour_alone() -> None:
    new = newcomers(NOW, None, [appeared("hour", 60)], {"hour": 1})
    assert names(new) == ([], ["hour"]) and new.public()["deploy"] is None


@pytest.mark.parametrize(("deploy", "since"), [(None, 3600.0), (Deploy(NOW - 60), 3600.0), (Deploy(NOW - 9e5), 9e5)])
def test_how_far_back_groups_are_looked_for(deploy: Deploy | None, since: float) -> None:
    assert oldest(NOW, deploy) == NOW - since


# ---- in words


def test_what_is_new_is_said_in_a_line_each() -> None:
    new = newcomers(NOW, Deploy(NOW - 7200, "2.4"), [appeared("hour", 60), appeared("deployed", 5000)],
                    {"hour": 2, "deployed": 3})  # fmt: skip
    assert in_lines(new) == [
        "2 new groups since version 2.4 was deployed 2 h ago: send: ConnectionError: reset (2), "
        "send: ConnectionError: reset (3)",
        "1 new group in the last hour: send: ConnectionError: reset (2)",
    ]


def test_many_are_not_named_one_by_one() -> None:
    groups = [appeared(str(number), 60 + number) for number in range(5)]
    (line,) = in_lines(newcomers(NOW, None, groups, dict.fromkeys("01234", 1)))
    assert line.startswith("5 new groups in the last hour: ") and line.endswith(" and 2 more")


@pytest.mark.parametrize(
    ("deploy", "line"),
    [
        (None, "No new group in the last hour."),
        (Deploy(NOW - 7200, "2.4"), "No new group since version 2.4 was deployed 2 h ago, none in the last hour."),
        (
            Deploy(NOW - 7200),
            "No new group since a worker last started, 2 h ago (no worker names a version), none in the last hour.",
        ),
    ],
)
def test_that_nothing_is_new_is_one_line(deploy: Deploy | None, line: str) -> None:
    new = newcomers(NOW, deploy, [], {})
    assert in_lines(new) == [nothing_new(new)] == [line]
