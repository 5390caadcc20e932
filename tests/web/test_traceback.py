"""The traceback of a failed attempt on the job's page, over REST, and in the log record of the attempt."""

import logging
import re
from html import unescape

import pytest

import redrive
from tests.support import soon
from tests.web.serving import serving


def total(order: dict[str, list[dict[str, float]]]) -> float:
    return sum(price(line) for line in order["lines"])


def price(line: dict[str, float]) -> float:
    return line["count"] * line["price"]


async def failed(rd: redrive.Redrive) -> str:
    @rd.task(max_attempts=1)
    async def bill(order: dict[str, list[dict[str, float]]]) -> float:
        return total(order)

    job = await bill.enqueue({"lines": [{"count": 3}]})
    await rd.drain()
    return job.id


SOURCE = 'return line["count"] * line["price"]'


async def test_the_page_of_a_job_shows_the_failing_line_beside_its_payload(rd: redrive.Redrive) -> None:
    id = await failed(rd)
    async with serving(rd, worker=False, dashboard=True) as served:
        page = unescape((await soon(served.client.get(f"/jobs/{id}"))).text)
    (trace,) = re.findall(r'<details class="trace" open>.*?</details>', page, re.DOTALL)
    first = re.findall(r"<li class=\"([\w-]+)\">(.*?)</li>", trace, re.DOTALL)[0]
    assert first[0] == "trace-yours" and SOURCE in first[1] and "price" in first[1]
    assert trace.index("in price") < trace.index("in total") < trace.index("in bill"), "innermost first"


async def test_rest_answers_with_the_frames_and_their_source(rd: redrive.Redrive) -> None:
    id = await failed(rd)
    async with serving(rd, worker=False) as served:
        job = (await soon(served.client.get(f"/v1/dead-letters/{id}"))).json()
    failure = job["history"][-1]["failure"]
    assert failure["frames"][0].startswith(f"{__name__}:price:") and failure["source"][0] == SOURCE


async def test_the_log_record_of_a_failed_attempt_has_the_exception(
    rd: redrive.Redrive, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "redrive.attempt"):
        await failed(rd)
    (record,) = [record for record in caplog.records if record.name == "redrive.attempt"]
    assert record.exc_info is not None and isinstance(record.exc_info[1], KeyError)
    assert "price" in (caplog.text)


async def test_a_job_with_a_trace_links_to_it(rd: redrive.Redrive) -> None:
    rd.core.holder.settings = redrive.config.load(
        {"url": rd.settings.url, "trace_url": "https://traces.example.org/{trace_id}"}
    )
    trace = "0af7651916cd43dd8448eb211c80319c"
    job = await rd.enqueue("nobody_runs", {}, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    async with serving(rd, worker=False, dashboard=True) as served:
        page = (await soon(served.client.get(f"/jobs/{job.id}"))).text
    assert f'href="https://traces.example.org/{trace}"' in page
