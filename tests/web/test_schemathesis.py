"""Schemathesis on the live API, all its checks: a real server, a real worker, and a store with jobs in every state."""

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import redrive
from redrive.core.job import State
from redrive.core.store import Filter
from redrive.doors.rest import TABLE
from tests.support import eventually
from tests.web.serving import TOKEN, make_rd, serving

SEMANTIC = {
    "POST /v1/jobs": "a key that stands for another payload, run_at beside delay, a payload its task cannot take",
    "POST /v1/dead-letters/triage": "nothing chosen, a time that is over",
    "POST /v1/dead-letters/{id}/triage": "a time that is over, an effect that is not there",
    "DELETE /v1/dead-letters": "a token that does not fit, nothing chosen",
    "GET /v1/dead-letters/purge-plan": "nothing chosen",
    "POST /v1/redrives": "nothing chosen, a token that does not fit",
    "POST /v1/dead-letters/edit": "nothing chosen, a token that does not fit",
    "GET /v1/reports/morning": "a time that is to come",
    "GET /v1/reports/weekly": "a time zone that is none",
    "GET /v1/reports/monthly": "a time zone that is none",
    "GET /v1/reports/failures": "a time zone that is none, a span that ends before it begins",
    "GET /v1/reports/activity": "minutes beside hours",
    "GET /v1/jobs/{id}/diff": "a run that never was",
    "POST /v1/operations/call": "a key that stands for other params, params that the task cannot take",
    "POST /v1/operations/submit": "a key that stands for other params, params that the task cannot take",
    "POST /v1/operations/{id}/retry": "a task that is not known here",
    "POST /v1/queues/{name}/pause": "a name that is too long, a queue that is not there",
    "POST /v1/queues/{name}/resume": "a name that is too long",
    "POST /v1/sessions/{session}/grants": "a session's name that is too long",
}
"""Operations with rules that a schema cannot tell: there 422 is right for data that fits the schema."""
RUN = "from schemathesis.cli import schemathesis; schemathesis()"


async def jobs_in_every_state(rd: redrive.Redrive) -> None:
    """Also a redrive, a workflow, notices, notes, acts and groups."""
    await rd.queues.pause("later", new=True)
    await rd.enqueue("greet", {}, queue="later")
    await rd.enqueue("endless", {})
    await rd.enqueue("greet", {}, session_id="s1", agent="cto")
    for number in range(6):
        await rd.enqueue("broken", {"number": number, "password": "hunter22"}, session_id="s1")
    for task in ("refund", "ask", "unknown"):
        await rd.enqueue(task, {}, session_id="s1")
    await eventually(lambda: rd.bus.counts["broken", "dead_letter"] == 6)
    letters = [job.id for job in (await rd.dead.list()).jobs]
    await rd.dead.discard(letters[0])
    await rd.dead.purge([letters[1]])
    await rd.dead.defer(letters[2], owner="ceo", until=3600.0)
    await rd.dead.note(letters[3], "look here")
    await rd.redrives.start([letters[4]])
    flow = rd.workflow("article")
    flow.add("greet", name="a")
    await flow.start()

    async def everywhere() -> bool:
        counted = await rd.store.count(Filter(), by=("state",))
        return {state for (state,) in counted} >= set(map(str, State))

    await eventually(everywhere, "there are jobs in every state")


def settings_file(folder: Path) -> Path:
    """ASCII: which characters beyond it are printable is more than a pattern says."""
    lines = [
        "[generation]", 'codec = "ascii"', "allow-x00 = false",
        "[phases.coverage]", 'unexpected-methods = ["PATCH", "PUT"]',
    ]  # fmt: skip
    for name in SEMANTIC:
        lines += [
            "[[operations]]", f"include-name = '{name}'", "[operations.checks.positive_data_acceptance]",
            'expected-statuses = ["2xx", "401", "403", "404", "409", "422"]',
        ]  # fmt: skip
    path = folder / "schemathesis.toml"
    path.write_text("\n".join(lines), "utf-8")
    return path


@pytest.mark.chaos
@pytest.mark.timeout(1800)  # it sends thousands of requests: on a busy machine the usual time is not enough
async def test_every_operation_keeps_what_its_document_says(tmp_path: Path, size: Callable[[int, int], int]) -> None:
    rd = make_rd(tmp_path / "jobs.db", payload_limit=20_000)

    @rd.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with rd, serving(rd, grace=0.0) as served:
        await jobs_in_every_state(rd)
        words = (
            "--config-file", str(settings_file(tmp_path)), "run", f"{served.url}/openapi.json",
            "--header", f"Authorization: Bearer {TOKEN}", "--checks", "all", "--max-examples", str(size(20, 500)),
            "--exclude-path", "/v1/events",  # it never ends: tests/web/test_feed.py
            "--phases", ("fuzzing", "coverage,fuzzing")[size(0, 1)], "--no-color",
            *(("--generation-deterministic",) if size(1, 0) else ()),
        )  # fmt: skip
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RUN, *words, cwd=tmp_path, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said = (await child.communicate())[0].decode()
    assert child.returncode == 0, said[-20_000:]
    tested = re.search(r"Tested: (\d+)", said)
    assert tested is not None and int(tested[1]) == len(TABLE) - 2, "all but the stream and the document itself"
