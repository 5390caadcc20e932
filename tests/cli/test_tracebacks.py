"""A bug three calls deep: the failing line and its source in `dead show` and in the worker's own log."""

import json

import pytest

from tests.cli.shell import Shell

APP = """
import httpx2
import redrive

rd = redrive.Redrive(trace_url="https://traces.example.org/{trace_id}")

@rd.task(max_attempts=1)
async def bill(order: dict) -> float:
    return total(order)

def total(order):
    return sum(price(line) for line in order["lines"])

def price(line):
    return line["count"] * line["price"]

@rd.task(max_attempts=1)
async def call() -> None:
    raise httpx2.ConnectError("refused")
"""
PAYLOAD = {"order": {"lines": [{"count": 1, "price": 2.0}, {"count": 3}]}}


@pytest.fixture
def billing(shell: Shell) -> Shell:
    (shell.folder / "billing.py").write_text(APP)
    return shell


def failed(shell: Shell, *options: str) -> str:
    id = shell.enqueue("bill", PAYLOAD, *options)
    done = shell.run("worker", "billing:rd", "--drain")
    assert done.status == 0, done.err
    return id


def test_dead_show_has_the_failing_line_and_who_called_it(billing: Shell) -> None:
    text = billing.here("dead", "show", failed(billing)).out
    assert 'where     billing:15 in price: return line["count"] * line["price"]' in text
    lines = [line.strip() for line in text.splitlines()]
    places = [line for line in lines if line.startswith("> billing:")]
    assert places == [
        "> billing:15 in price",
        "> billing:12 in <genexpr>",
        "> billing:12 in total",
        "> billing:9 in bill",
    ]
    assert lines[lines.index("> billing:9 in bill") + 1] == "return total(order)"


def test_the_json_of_a_dead_letter_has_the_frames_and_their_source(billing: Shell) -> None:
    job = billing.here("dead", "show", failed(billing), "--json").json
    failure = job["history"][-1]["failure"]
    assert failure["frames"][0] == "billing:price:15"
    assert failure["source"][0] == 'return line["count"] * line["price"]'


def test_the_worker_logs_the_traceback_of_a_bug(billing: Shell) -> None:
    billing.enqueue("bill", PAYLOAD)
    done = billing.run("worker", "billing:rd", "--drain")
    assert "Traceback (most recent call last)" in done.err
    assert 'return line["count"] * line["price"]' in done.err and "KeyError: 'price'" in done.err


def test_the_worker_logs_what_heals_by_itself_in_one_line(billing: Shell) -> None:
    billing.enqueue("call")
    done = billing.run("worker", "billing:rd", "--drain")
    assert "ConnectError: refused" in done.err
    assert "Traceback" not in done.err


def test_the_json_log_has_the_traceback(billing: Shell) -> None:
    billing.enqueue("bill", PAYLOAD)
    done = billing.run("worker", "billing:rd", "--drain", "--json")
    records = [json.loads(line) for line in done.err.splitlines()]
    (traceback,) = [record["traceback"] for record in records if "traceback" in record]
    assert traceback.endswith("KeyError: 'price'")


def test_a_secret_in_the_exception_is_masked_in_the_log(billing: Shell) -> None:
    secret = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGhIj"
    (billing.folder / "leak.py").write_text(
        "import redrive\nrd = redrive.Redrive()\n\n@rd.task(max_attempts=1)\n"
        f"async def leak() -> None:\n    raise RuntimeError('key ' + {secret[:20]!r} + {secret[20:]!r})\n"
    )
    billing.enqueue("leak")
    done = billing.run("worker", "leak:rd", "--drain")
    assert "RuntimeError" in done.err and secret not in done.err
