"""The page for Prometheus: well-formed, true, and without ids."""

import re

import pytest

import redrive
from tests.support import eventually
from tests.web.serving import Served, problem_in

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[0-9.e+-]+)')


async def scrape(served: Served) -> dict[str, float]:
    answer = await served.client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in answer.text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split(" ")
            assert name not in kinds and kind in ("gauge", "counter")
            assert (kind == "counter") is name.endswith("_total")
            kinds[name] = kind
        elif not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None and match[1] in kinds, line
            assert line.rpartition(" ")[0] not in found, "told twice"
            found[line.rpartition(" ")[0]] = float(match[3])
    return found


async def test_the_numbers_are_those_of_the_store(served: Served) -> None:
    ids = [(await served.rd.enqueue("broken", {"n": n})).id for n in range(3)]
    ids.append((await served.rd.enqueue("greet", {}, delay=3600)).id)
    await served.rd.queues.pause("greet")
    await eventually(lambda: served.rd.bus.counts["broken", "dead_letter"] == 3)
    found = await scrape(served)
    assert found['redrive_jobs{queue="broken",state="dead"}'] == 3
    assert found['redrive_dead_letters{queue="broken",lane="manual"}'] == 3
    assert found['redrive_jobs{queue="greet",state="waiting"}'] == 1
    assert found['redrive_due_jobs{queue="greet"}'] == 0
    assert found['redrive_queue_paused{queue="greet"}'] == 1
    assert found['redrive_accepted_jobs_total{queue="broken"}'] == 3
    assert found['redrive_events_total{queue="broken",type="dead_letter"}'] == 3
    assert (found["redrive_healthy"], found["redrive_workers"], found["redrive_attempts_total"]) == (0, 1, 3)
    assert found[f'redrive_build_info{{version="{redrive.__version__}"}}'] == 1
    text = (await served.client.get("/metrics")).text
    assert not [id for id in ids if id in text]


async def test_names_are_escaped(still: Served) -> None:
    for name in ('a"b', "a\\b", 'x"} 1\\'):
        await still.rd.enqueue("greet", {}, queue=name)
    found = await scrape(still)
    assert found['redrive_jobs{queue="a\\"b",state="waiting"}'] == 1
    assert found['redrive_jobs{queue="a\\\\b",state="waiting"}'] == 1
    assert found['redrive_jobs{queue="x\\"} 1\\\\",state="waiting"}'] == 1


async def test_how_long_work_waits(still: Served) -> None:
    assert (await scrape(still))["redrive_oldest_due_job_seconds"] == 0
    job = await still.rd.enqueue("greet", {})
    found = await scrape(still)
    assert found["redrive_oldest_due_job_seconds"] > 0
    await still.rd.jobs.cancel(job.id)
    assert (await scrape(still))["redrive_oldest_due_job_seconds"] == 0


@pytest.mark.parametrize("path", ["/readyz", "/v1/health", "/metrics"])
async def test_a_store_that_is_gone_is_a_503_with_a_time_to_come_back(
    still: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object, **__: object) -> None:
        raise redrive.StoreUnavailable("the disk is away")

    for verb in ("check", "doc", "count"):
        monkeypatch.setattr(still.rd.store, verb, gone)
    answer = await still.client.get(path)
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert problem_in(answer)["detail"] == "the disk is away"
    assert (await still.client.get("/healthz")).status_code == 200
