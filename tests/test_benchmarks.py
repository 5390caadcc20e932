"""The benchmarks run, and their table has its rows. What they measure is judged by people, not here."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import against, all_peers, latency_peers, page, peers_nats, plot, report, sizing, watched
from benchmarks.__main__ import main
from benchmarks.bench import ROOT, Bench, Check, Contestant
from benchmarks.idle import STATUS
from benchmarks.rows import PARTS, ROWS, find_row, rows_of
from tests.nats import need_server

pytestmark = pytest.mark.timeout(400)
ON_LINUX = pytest.mark.skipif(not STATUS.exists(), reason="only Linux says what another process has used")
Run = Once = Callable[..., Any]


class Nobody:
    """Shows no progress."""

    def begin(self, what: str, steps: int) -> None: ...
    def step(self, what: str) -> None: ...


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`./dev bench ... --json`, as small as it gets; contestants are processes of their own."""

    def run(*arguments: str) -> Any:
        assert main(["--quick", "--rounds", "1", "--json", "--folder", str(tmp_path), *arguments]) == 0
        assert list(tmp_path.iterdir()) == []  # nothing is left behind
        said = capsys.readouterr()
        assert "total" in said.err
        return json.loads(said.out)

    return run


@pytest.fixture
def once(tmp_path: Path) -> Once:
    """One contestant, once."""

    def run(function: str, **arguments: Any) -> Any:
        return Bench(tmp_path, Nobody(), quick=True).once(Contestant(function, arguments))

    return run


def test_the_row_that_was_asked_for_is_measured(bench: Run) -> None:
    said = bench("callers")
    (check,) = said["checks"]
    assert (check["row"], check["relation"], check["limit"], check["unit"]) == (2, "≥", 12, "× one at a time")
    assert check["values"].keys() == {"redrive", "one at a time"}
    assert said["quick"] is True


def test_starting_is_measured_over_the_bare_interpreter(bench: Run) -> None:
    checks = bench("8")["checks"]
    assert [(check["row"], check["aim"]) for check in checks] == [(8, None), (8, 60), (8, None)]
    times = checks[0]["values"]
    assert all(len(taken) == 1 and taken[0] > 0 for taken in times.values())
    (bare,), (imported,), (program,) = (times[n] for n in ("bare interpreter", "import redrive", "redrive --version"))
    assert checks[0]["reached"] == pytest.approx(imported - bare)  # on a busy machine this may be below 0
    assert checks[2]["reached"] == program


def test_every_row_has_a_number_a_name_and_a_part() -> None:
    assert [row.number for row in ROWS.values()] == list(range(1, 28))
    assert {row.name for part in PARTS for row in rows_of(part)} == ROWS.keys()
    assert find_row("drain") is find_row("4") is ROWS["drain"]
    assert find_row("28") is None


def test_an_unknown_row_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["drian"])
    assert "no such row: drian; there are enqueue," in capsys.readouterr().err


def test_redrive_is_judged_beside_raw(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_peers, "installed", list)
    first, second = bench("enqueue")["checks"]
    assert (first["unit"], first["limit"], first["aim"]) == ("× raw", 0.6, 0.7)
    rates = {name: rate for name, (rate,) in first["values"].items()}
    assert first["reached"] == pytest.approx(rates["redrive"] / rates["raw"])
    assert second["reached"] == pytest.approx(rates["raw by a thread"] / rates["raw"])


@pytest.mark.long
@pytest.mark.parametrize(("row", "verb"), [("enqueue", "enqueued"), ("bulk", "enqueued_many"), ("drain", "drained")])
def test_every_other_queue_stands_beside_redrive(bench: Run, row: str, verb: str) -> None:
    """Those that are installed: most of them only by `./dev bench`."""
    first, *_ = bench(row)["checks"]
    assert first["values"].keys() >= {"redrive", "raw", *all_peers.contestants(verb, 1)}
    assert all(value > 0 for values in first["values"].values() for value in values)


def test_what_the_other_queues_do_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_peers, "installed", lambda: list(all_peers.VERBS))
    verbs = {verb for verbs in all_peers.VERBS.values() for verb in verbs}
    named = [one.function for verb in verbs for one in all_peers.contestants(verb, 1).values()]
    named += [f"benchmarks.latency_peers:{name}" for name in latency_peers.STARTED.values()]
    assert len(named) == 24
    for module, name in (function.split(":") for function in named):
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.long
@pytest.mark.parametrize("row", ["failing", "latency", "watched", "growth", "workers", "queues", "idle", "written"])
def test_a_long_row_is_measured(bench: Run, row: str) -> None:
    """Where files are in memory, nothing is written to a disk."""
    checks = bench(row)["checks"]
    assert checks and all(check["values"] for check in checks)
    assert all(value >= 0 for check in checks for values in check["values"].values() for value in values)


@ON_LINUX
def test_what_an_idle_worker_costs_is_counted(once: Once) -> None:
    found = once("benchmarks.idle:measured", seconds=1, settled=0.2)
    assert found["wake-ups"] > 0 and found["CPU"] > 0 and found["written"] >= 0


@ON_LINUX
def test_what_a_job_costs_is_counted(once: Once) -> None:
    """All of the log goes to the disk, where the files are on one."""
    found = once("benchmarks.written:of_redrive", verb="drain", size=100)
    assert found["CPU"] > 0 and found["log"] > 50
    assert found["disk"] == 0 or found["disk"] * 1.1 > found["log"]


@ON_LINUX
def test_watchers_watch(once: Once) -> None:
    """They fail by themselves where they see nothing."""
    assert once("benchmarks.watched:cpu_per_job", size=2_000, clients=watched.CLIENTS) > 0


def test_a_hub_is_measured_beside_raw(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    need_server()
    monkeypatch.setattr(peers_nats, "installed", lambda: False)
    (check,) = bench("hub-enqueue")["checks"]
    rates = {name: rate for name, (rate,) in check["values"].items()}
    assert check["limit"] == 0.35
    assert check["reached"] == pytest.approx(rates["redrive"] / rates["raw"])


def test_a_thin_process_enqueues_through_a_hub(once: Once) -> None:
    need_server()
    assert once("benchmarks.thin:one_by_one", size=10) > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("row", "limit"), [("hub-drain", 0.75), ("thin", 0.7), ("lone", 6.0), ("hub-start", None), ("postgres", None)]
)
def test_a_fleet_is_measured(bench: Run, row: str, limit: float | None) -> None:
    """Without taskiq-nats, which only `./dev bench` installs, what is compared with it is not measured."""
    need_server()
    first, *_ = bench(row)["checks"]
    assert first["limit"] == limit
    assert all(value > 0 for values in first["values"].values() for value in values)
    assert first["reached"] is None or first["reached"] > 0


def test_opening_a_foreign_file_is_measured_with_and_without_the_guard(bench: Run) -> None:
    (check,) = bench("opening")["checks"]
    assert check["values"].keys() == {"guarded", "without"}
    assert all(taken > 0 for times in check["values"].values() for taken in times)


def test_every_page_and_answer_is_asked(bench: Run) -> None:
    """Small here. The rows name what was slowest, so the addresses were found at all."""
    pages, answers = bench("answers")["checks"]
    assert {"/", "/dead", "/morning", "/queues"} <= pages["values"].keys()
    assert {"/v1/jobs", "/v1/jobs/{id}", "/v1/dead-letters?queue", "/v1/reports/morning"} <= answers["values"].keys()
    assert all(len(times) >= 1 for check in (pages, answers) for times in check["values"].values())
    assert pages["reached"] > 0 and answers["reached"] > 0


# -- two checkouts


def test_two_checkouts_are_measured_in_turn(bench: Run) -> None:
    """Here both are this one."""
    (found,) = bench("--against", str(ROOT), "enqueue")
    assert found["work"] == "enqueue, one at a time"
    assert found["ratio"] == pytest.approx(found["after"][0] / found["before"][0])
    assert found["verdict"] == "too few rounds"


def test_what_another_checkout_cannot_do_is_told(bench: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "src" / "redrive"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("class Redrive: ...\n")
    (found,) = bench("--against", str(other.parent.parent), "bulk")
    assert found["verdict"] == "not measured"
    assert "Redrive" in found["failure"]


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no src/redrive"):
        against.source_of(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "better", "verdict"),
    [
        ([100, 101, 102], [99, 103, 100], "more", "the same"),
        ([100, 101, 102], [80, 83, 79], "more", "SLOWER"),
        ([100, 101, 102], [80, 83, 79], "less", "faster"),
        ([100, 101, 102], [99, 100, 101], "more", "the same"),  # always a little less, and no more than noise
        ([100] * 7, [90] * 6 + [140], "more", "the same"),
        ([100] * 10, [90] * 9 + [140], "more", "SLOWER"),  # of so many rounds one may be an accident
    ],
)
def test_a_difference_counts_where_every_round_says_it(
    before: list[float], after: list[float], better: str, verdict: str
) -> None:
    assert against.Comparison("row", "work", "/s", better, before, after).verdict == verdict


def test_another_source_is_what_a_contestant_runs(tmp_path: Path) -> None:
    package = tmp_path / "redrive"
    package.mkdir()
    (package / "__init__.py").write_text("class Redrive: ...\n")
    ours = Bench(tmp_path, Nobody(), quick=True)
    assert ours.once(Contestant("benchmarks.source:which", source=tmp_path)) == str(tmp_path)
    assert ours.once(Contestant("benchmarks.source:which")) == str(ROOT / "src")


# -- the table and the page


def verdicts(relation: Any, aim: float | None = None) -> list[str]:
    return [report.verdict(Check(1, "work", number, relation, 2.0, "×", {}, aim=aim)) for number in (1.9, 2.0, 2.1)]


def test_a_verdict_follows_its_limit() -> None:
    assert verdicts("≥") == ["MISS", "pass", "pass"]
    assert verdicts("≤") == ["pass", "pass", "MISS"]
    assert verdicts("<") == ["pass", "MISS", "MISS"]
    assert verdicts("≥", aim=2.1) == ["MISS", "pass", "pass, and the aim"]
    assert verdicts("≤", aim=1.9) == ["pass, and the aim", "pass", "MISS"]
    assert Check(1, "work", None, "≥", 2.0, "×", {}).passed is None
    assert Check(1, "work", 0.1, "≥", None, "×", {}).passed is True  # measured and said


def test_a_row_that_misses_says_why() -> None:
    missing = [Check(4, "drain", 0.3, "≥", 0.45, "× raw", {}), Check(13, "hub", 0.4, "≥", 0.35, "× raw", {})]
    (line,) = report.missed(missing)
    assert line.startswith("Row 4 misses: raw runs two statements")


def as_measured() -> list[Check]:
    """What a run could have found, without running it."""
    checks = [Check(row.number, row.name, 1.0, "≥", 0.5, "× raw", {}, {}, 0.7) for row in ROWS.values()]
    named = {row: number for number, row in enumerate(ROWS)}
    rates = {"redrive": [2.0, 3.0], "raw": [4.0, 4.0], "huey": [1.0]}
    for row in ("enqueue", "bulk", "hub-enqueue"):
        number = named[row]
        checks[number] = Check(number + 1, row, 0.5, "≥", 0.5, "× raw", {"raw": "4/s"}, rates, 0.7)
    sizes = {"1,100": [1.0, 1.0], "110,000": [2.0, 2.0]}
    said = {"at 1,100": "1.0 ms", "at 110,000": "2.0 ms"}
    checks[named["growth"]] = Check(23, "claim", 2.0, "≤", None, "× at 1,100", said, sizes)
    checks[named["workers"]] = Check(24, "drain", 1.5, "≥", None, "× one", {"one": "2/s"}, {"one": [2.0], "two": [3.0]})
    return checks


def test_the_page_is_written_from_what_an_earlier_run_measured(tmp_path: Path) -> None:
    data = report.data(as_measured(), ["a note"], report.machine(tmp_path), quick=False)
    again = json.loads(json.dumps(data))
    checks = report.checks_of(again)
    assert checks == as_measured()
    parts = page.texts(checks, again["notes"], again["machine"])
    page.write(tmp_path / "performance.md", parts, page.figures(checks, parts))
    text = (tmp_path / "performance.md").read_text("utf-8")
    assert "| 1 | enqueue | raw 4/s | 0.500 × raw | ≥ 0.5 × raw | ≥ 0.7 × raw | pass |" in text
    assert "| claim | 1.0 ms | 2.0 ms | 2.00 × |" in text
    for name in (page.FIGURE, page.growth_report.FIGURE, page.growth_report.QUEUES):
        assert f"(images/{name})" in text
        assert ElementTree.parse(tmp_path / "images" / name).getroot().tag.endswith("svg")


def test_a_part_that_is_not_measured_stays_on_the_page(tmp_path: Path) -> None:
    there = tmp_path / "performance.md"
    page.write(there, {"file": "one\n", "growth": "two\n", "fleet": "three\n"}, {})
    page.write(there, {"fleet": "four\n"}, {})
    assert there.read_text("utf-8") == (
        f"{page.HEAD}<!-- part: file -->\none\n<!-- part: growth -->\ntwo\n<!-- part: fleet -->\nfour\n"
    )
    some = [check for check in as_measured() if check.row != 23]
    assert page.texts(some, [], report.machine(tmp_path)).keys() == {"file", "fleet"}


def test_the_rates_of_the_page_on_sizes_are_those_of_the_table(tmp_path: Path) -> None:
    there = tmp_path / "sizing.md"
    there.write_text((ROOT / "docs" / "sizing.md").read_text("utf-8"), "utf-8")
    wanted = (*sizing.FILE_RATES.values(), *sizing.FLEET_RATES.values())
    of = {row: {who: [row * 1000.0] for number, who in wanted if number == row} for row, _ in wanted}
    checks = [Check(row, "work", 1.0, "≥", None, "×", {}, values) for row, values in of.items()]
    sizing.renew(there, sizing.blocks(checks))
    text = there.read_text("utf-8")
    assert "| `enqueue_many` | 3,000 |\n" in text
    assert (
        "13,000 per second on a hub with JetStream, 19,000 (NATS) and\n19,000 (HTTP) through a hub, 22,000 on" in text
    )
    assert sizing.blocks(checks[1:]).keys() == {"fleet rates"}
    assert text.count("\n") == (ROOT / "docs" / "sizing.md").read_text("utf-8").count("\n")


def test_a_figure_says_its_values() -> None:
    panel = plot.Panel("drain & claim", "× raw", {"redrive": 0.5, "huey": 0.25}, {"must": 0.4, "aim": 0.6})
    for drawn in (plot.bars([panel]), plot.lines([panel])):
        said = [part.text for part in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
        assert {"drain & claim (× raw)", "redrive", "huey", "0.500", "0.250"} <= set(said)
