"""What pages show to a fresh user holds no name that the user did not write."""

import re
from pathlib import Path

import pytest

import redrive
from redrive import PRESETS
from tests.support import soon
from tests.web.serving import serving

NAMES = frozenset({*PRESETS, "ceo"}.union(*([*preset.queues, *preset.agents] for preset in PRESETS.values())))


@pytest.mark.behaviour("R-0e")
async def test_no_page_names_anybody_else(database: Path) -> None:
    async with redrive.Redrive(database) as rd:

        @rd.task(max_attempts=1)
        async def write(kind: str) -> dict[str, str]:
            return {"error": "it went wrong", "error_kind": kind}

        for kind in ("network", "contention", "hallucination_loop", "authority", "bug", "unknown"):
            await write.options(agent="eve").enqueue(kind)
        await soon(rd.drain())
        async with serving(rd, worker=False, dashboard=True) as served:
            for page in ("/", "/agents", "/queues", "/dead", "/v1/health", "/v1/queues", "/v1/agents"):
                answer = await soon(served.client.get(page))
                assert answer.status_code == 200, (page, answer.text)
                assert NAMES & set(re.findall(r"\w+", answer.text)) == set(), page
